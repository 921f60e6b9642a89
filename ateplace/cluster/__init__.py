"""What we know of the cluster: pure, and confined to one event loop."""
