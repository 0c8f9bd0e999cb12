"""Measuring on an NVIDIA GPU: times of the project's kernels, hardware counters, and what the machine itself reaches.

Importing this package loads neither numba nor numpy, and needs no GPU.
"""
