"""Analytical performance model for attention and transformers on accelerators."""

__version__ = "0.1.0"
