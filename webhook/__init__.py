"""The mutating admission webhook: gives each new ateom what it needs to be placed."""
