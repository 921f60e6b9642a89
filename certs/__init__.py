"""ateplace: certs."""
