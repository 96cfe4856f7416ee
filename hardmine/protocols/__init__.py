"""What `evaluate` runs: one file per published evaluation protocol."""
