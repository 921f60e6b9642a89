"""The checks of `ateplace doctor`, a module for each thing that is looked at."""
