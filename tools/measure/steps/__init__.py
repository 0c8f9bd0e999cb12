"""Whole steps of a transformer in plain PyTorch, on one GPU or several, and the collectives between them: what runs and how it is timed."""
