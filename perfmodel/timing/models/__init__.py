"""Time models, one file per family of kernels, which has a ``MODEL``, or several by name in ``MODELS``."""
