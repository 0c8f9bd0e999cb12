"""Time models, one file per family of kernels; each has a ``MODEL``."""
