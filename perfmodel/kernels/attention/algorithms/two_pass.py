"""Attention by online softmax in two passes over the keys: maximum and sum together, then O."""

from perfmodel.kernels.attention.algorithms._passes import algorithm

ALGORITHM = algorithm("online", "two", passes=2, vector=6, exponentials=3)
