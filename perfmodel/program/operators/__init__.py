"""The table of operators, with one file per family: the FLOP and bytes of each call."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module

from perfmodel.core.plugins import plugins
from perfmodel.program.calls import Call, UnknownError
from perfmodel.transformer.op import Op

INDUCTOR = "triton_"


@cache
def table() -> dict[str, Callable[[Call], Op | tuple[Op, ...]]]:
    """All known operators by name."""
    return dict(plugins((__name__,), "OPERATOR", "OPERATORS"))


def counted(call: Call) -> tuple[Op, ...]:
    """The kernels of ``call`` with FLOP and bytes; UnknownError if the operator is unknown."""
    function = table().get(call.name)
    if function is None:
        if not call.name.startswith(INDUCTOR):
            raise UnknownError(f"{call.name or 'a kernel without operator'} is not in the table of operators")
        function = import_module(f"{__name__}.fused").inductor
    assert function is not None
    try:
        ops = function(call)
        return ops if isinstance(ops, tuple) else (ops,)
    except (IndexError, ValueError, KeyError, ZeroDivisionError) as error:
        raise UnknownError(f"{call.name}: its arguments are not as expected ({error})") from None
