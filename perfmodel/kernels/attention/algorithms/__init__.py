"""Every attention algorithm: each module in this folder defines one ``ALGORITHM``.

In all of them ``forward(w, tile)`` and ``backward(w, tile)`` return kernels over tensors of the shapes in ``Attention``, whose accesses
are in elements over all heads and sequences. The formulas in their docstrings are per head, with T_r query tiles and T_c key tiles;
"a square problem" has n = kv_len and d = d_v.
"""

from __future__ import annotations

from importlib import import_module

from perfmodel.core.errors import UsageError, suggest
from perfmodel.core.plugins import module_names
from perfmodel.kernels.attention.base import Algorithm

_ORDER = ("standard", "flash1", "flash2")


def names() -> list[str]:
    """Canonical names, the reference algorithm first."""
    algorithm_names = [name.replace("_", "-") for name in module_names(__path__)]
    return sorted(algorithm_names, key=lambda name: (_ORDER.index(name) if name in _ORDER else len(_ORDER), name))


def find(name: str) -> Algorithm:
    """The algorithm called ``name`` or by an alias; UsageError with the nearest names otherwise."""
    known: list[str] = []
    for canonical in sorted(names(), key=lambda canonical: canonical != name):  # its own module first, often the only one loaded
        algorithm: Algorithm = import_module(f"{__name__}.{canonical.replace('-', '_')}").ALGORITHM
        known += (algorithm.name, *algorithm.aliases)
        if name in known:
            return algorithm
    raise UsageError(f"--algorithm: unknown algorithm {name!r}", suggest(name, [*known, "all"]))
