"""Time models of whole steps, one per file."""
