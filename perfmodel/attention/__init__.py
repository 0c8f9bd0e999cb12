"""Attention: a workload becomes a list of kernels. One file per algorithm in ``algorithms/``.

The package can be called: ``perfmodel.attention(...)`` is ``perfmodel.api.attention``.
"""

from perfmodel.plugins import make_callable

make_callable(__name__, "attention")
