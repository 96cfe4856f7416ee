"""hardmine: mine once, train hard."""
