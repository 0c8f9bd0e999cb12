"""Transformers: what a model consists of, its parameters and its KV cache, exactly."""
