"""ateplace: reconciler."""
