"""Whole programs: timed on a GPU, with their profiles."""
