"""What every role of ateplace shares."""

__version__ = "0.1.0"
