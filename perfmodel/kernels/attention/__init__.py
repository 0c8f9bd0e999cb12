"""Attention: a workload becomes a list of kernels. One file per algorithm in ``algorithms/``."""
