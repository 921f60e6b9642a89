"""`ateplace doctor`: one module for each check, and what they read."""
