"""One file per family; each lists its ``LIBRARIES``."""
