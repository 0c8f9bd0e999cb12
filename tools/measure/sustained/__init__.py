"""Kernels and steps that run for seconds: time, clock, watts and joules, under whatever power limit the GPU has. No setting is touched."""
