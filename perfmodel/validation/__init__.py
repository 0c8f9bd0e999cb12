"""Predictions compared with measurements: GPU kernels, runs, records and their comparison."""
