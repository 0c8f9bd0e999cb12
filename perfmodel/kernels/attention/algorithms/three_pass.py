"""Attention by safe softmax in three passes over the keys: maximum, sum of exponentials, then O."""

from perfmodel.kernels.attention.algorithms._passes import algorithm

ALGORITHM = algorithm("safe", "three", passes=3, vector=4, exponentials=2)
