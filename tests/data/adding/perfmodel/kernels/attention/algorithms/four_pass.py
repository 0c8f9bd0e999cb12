"""Four passes over the keys: the third writes nothing, as a check of the sum might."""

from dataclasses import replace

from perfmodel.kernels.attention.algorithms._passes import algorithm

ALGORITHM = replace(algorithm("safe", "four", passes=4, vector=6, exponentials=3), source="an example", aliases=())
