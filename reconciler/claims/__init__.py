"""Claims: which are missing, which are released, and when."""
