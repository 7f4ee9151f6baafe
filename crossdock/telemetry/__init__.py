"""What a service says of itself to those who run it: logs and metrics."""
