"""Library kernels that campaigns measure beside those of ``perfmodel calibrate``: products of fp8, and attention that fills its mask.

torch-scaled-mm multiplies fp8 operands with one scale each into bf16; torch-eager-masked-fill is eager attention whose masked scores are
filled in place of added to.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from perfmodel.core.errors import UnavailableError
from perfmodel.core.workload import BACKWARD
from perfmodel.validation.cases import KernelCase
from perfmodel.validation.libraries import Prepared, Torch, relative_error
from perfmodel.validation.libraries.kernels import CHECKED_MATMUL_ROWS, LIBRARIES, attention, operands
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


PREPARED = {**LIBRARIES, ("attention", "torch-eager-masked-fill"): _masked_fill, ("matmul", "torch-scaled-mm"): _scaled_mm}
"""What prepares every library kernel, by workload and name."""
find = partial(find_in, table=PREPARED)
