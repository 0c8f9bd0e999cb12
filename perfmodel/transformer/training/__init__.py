"""Training: memory, rematerialization, step time, parallelism."""
