"""ateplace: extender."""
