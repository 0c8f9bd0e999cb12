"""Copies of operands that a library makes before its kernel, as element-wise passes.

PyTorch's FlashAttention-2 backward pass wants O and dO contiguous as [b, n, h, d]. They have the layout of the operands: if that is
[b, h, n, d], both are copied; if operands are views of [b, n, h, d], neither is. The flash-attention package takes [b, n, h, d] and copies
only operands whose head dim is not the innermost. Source: PyTorch, aten/src/ATen/native/transformers/cuda/attention_backward.cu, in
``_flash_attention_backward`` ``grad_out.contiguous()`` and ``out.contiguous()``; flash_attn_interface.py, ``maybe_contiguous``.
"""

from __future__ import annotations

from perfmodel.core.workload import BACKWARD, CONTIGUOUS, Attention, Pass
from perfmodel.timing.base import Case


def operand_copies(case: Case) -> list[Pass]:
    """Copies of O and dO that come before the kernels of ``case``; none for a single head or query, whose layouts are the same."""
    w = case.workload
    if (case.implementation, case.direction) != ("torch-sdpa-flash", BACKWARD) or not isinstance(w, Attention):
        return []
    if w.layout != CONTIGUOUS or w.n == 1 or w.heads == 1:
        return []
    elements = w.query_heads * w.n * w.dv
    divisions = 3 if w.batch > 1 else 2  # an index is divided once per dimension of b, n, h, d but the first
    copied_bytes = elements * w.dtype.size
    return [Pass("strided", elements, copied_bytes, copied_bytes, w.dtype, divisions)] * 2
