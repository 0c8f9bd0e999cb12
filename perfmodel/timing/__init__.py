"""Predicted time: calibrated models of kernels on devices, their fit, and what their errors were."""
