"""Grids of configurations, from one point to a billion. The package can be called: ``perfmodel.sweep(...)`` is ``perfmodel.api.sweep``."""

from perfmodel.core.plugins import make_callable

make_callable(__name__)
