"""Networks, losses, recipes, checkpoints and the training loop."""
