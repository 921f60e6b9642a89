"""The verb filter: choose a node, claim it, answer it."""
