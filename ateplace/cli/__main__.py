"""`python -m ateplace.cli`."""

from ateplace.cli.main import main

main()
