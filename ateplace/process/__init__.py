"""What every process of ours is made of: its life, its servers, health, logs and metrics."""
