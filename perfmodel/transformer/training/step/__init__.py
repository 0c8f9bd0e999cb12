"""A training step in time: its kernels, what several GPUs exchange, how long it takes, and the layout that is fastest."""
