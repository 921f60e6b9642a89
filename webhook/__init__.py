"""ateplace: webhook."""
