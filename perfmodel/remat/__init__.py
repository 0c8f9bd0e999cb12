"""Rematerialization: what backward needs kept, what it can build again, and which schedule does it best."""
