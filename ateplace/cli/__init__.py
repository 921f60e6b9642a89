"""What an administrator runs: the command line, and every command behind it."""
