"""Rematerialization: what backward needs kept, what it can build again, and which schedule does it best; called, it is the command."""

from perfmodel.core.plugins import make_callable

make_callable(__name__)
