"""Predictions held against machines: GPU kernels, runs, records and their comparison."""
