"""Library kernels that campaigns measure beside those of ``perfmodel calibrate``.

torch-scaled-mm multiplies fp8 operands with one scale each into bf16; torch-eager-masked-fill is eager attention whose masked scores are
filled in place of added to. torch-flex is FlexAttention, with block masks of the default size, and ``torch-compile-X`` the step of
``torch-X``, as torch.compile builds them for one shape; torch-compile-add-rms-norm adds and norms, and returns both.
"""

from __future__ import annotations

import math
from functools import partial
from importlib import import_module
from typing import Any

from perfmodel.core.errors import UnavailableError
from perfmodel.core.workload import BACKWARD
from perfmodel.validation.cases import KernelCase
from perfmodel.validation.libraries import Prepare, Prepared, Torch, relative_error
from perfmodel.validation.libraries.kernels import CHECKED_MATMUL_ROWS, EPSILON, LIBRARIES, STEPS, Step, attention, operands, rows_of
from perfmodel.validation.libraries.kernels import find as find_in


def _scaled_mm(case: KernelCase, torch: Torch) -> Prepared:
    """Matmul in fp8 with B stored [n, k]; the result is bf16."""
    s = case.shape
    a, b = (torch.randn((s[rows], s["k"]), device="cuda").to(torch.float8_e4m3fn) for rows in ("m", "n"))
    one = torch.ones((), device="cuda")

    def error(found: Any) -> float:
        last = a[-CHECKED_MATMUL_ROWS:].double()
        return relative_error(found[-CHECKED_MATMUL_ROWS:], last @ b.double().t())

    return Prepared(lambda: torch._scaled_mm(a, b.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16), error)


def _masked_fill(case: KernelCase, torch: Torch) -> Prepared:
    """Eager attention with masked_fill: causal, and only the forward pass."""
    if not case.shape["causal"] or case.direction == BACKWARD:
        raise UnavailableError("torch-eager-masked-fill without a mask, or backward", "give a causal forward case")
    q, k, v = operands(case, torch, length_first=False)
    scale = 1 / math.sqrt(q.shape[-1])
    hidden = torch.ones((q.shape[2], k.shape[2]), dtype=torch.bool, device="cuda").triu(1)

    def run() -> Any:
        scores = (torch.matmul(q, k.transpose(-2, -1)) * scale).masked_fill(hidden, -math.inf)
        return torch.matmul(torch.softmax(scores, -1), v)

    return attention(case, torch, q, k, v, run)


def _flex(case: KernelCase, torch: Torch) -> Prepared:
    """FlexAttention, compiled; a causal case has a block mask, with its window if it has one."""
    module, s = import_module("torch.nn.attention.flex_attention"), case.shape
    window, mask = s.get("window"), None
    q, k, v = operands(case, torch, length_first=True)
    if s["causal"]:

        def visible(b: Any, h: Any, row: Any, key: Any) -> Any:
            return (row >= key) & (row - key < window) if window else row >= key

        mask = module.create_block_mask(visible, None, None, s["n"], s["kv_len"], device="cuda")
    torch._dynamo.reset()
    run = torch.compile(module.flex_attention, dynamic=False)
    return attention(case, torch, q, k, v, lambda: run(q, k, v, block_mask=mask, enable_gqa=s["heads"] != s["kv_heads"]))


def _add_norm(torch: Torch, x: Any, y: Any, weight: Any) -> tuple[Any, Any]:
    total = x + y
    return torch.nn.functional.rms_norm(total, weight.shape, weight, EPSILON), total


def _compiled(step: Step, case: KernelCase, torch: Torch) -> Prepared:
    """A step over rows, compiled."""
    torch._dynamo.reset()
    return rows_of(step, case, torch, partial(torch.compile, dynamic=False))


COMPILED = "torch-compile-"
PREPARED: dict[tuple[str, str], Prepare] = {
    **LIBRARIES,
    ("attention", "torch-eager-masked-fill"): _masked_fill,
    ("attention", "torch-flex"): _flex,
    ("matmul", "torch-scaled-mm"): _scaled_mm,
    **{
        (workload, name.replace("torch-", COMPILED)): partial(_compiled, step)
        for name, (workload, step) in {**STEPS, "torch-add-rms-norm": ("norm", _add_norm)}.items()
        if name != "torch-scale"
    },
}
"""What prepares every library kernel, by workload and name."""
find = partial(find_in, known=PREPARED)
