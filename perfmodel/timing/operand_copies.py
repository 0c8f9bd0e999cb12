"""Copies of operands that a library makes before its kernel, as element-wise passes.

PyTorch's FlashAttention-2 backward pass copies O and dO to contiguous [b, n, h, d]. Where operands are contiguous [b, h, n, d], O has their
layout, so both are copied; as views of [b, n, h, d] neither is. flash-attention's own package takes [b, n, h, d], and copies only operands
whose head dim is not the innermost. Source: PyTorch, aten/src/ATen/native/transformers/cuda/attention_backward.cu, in
``_flash_attention_backward`` ``grad_out.contiguous()`` and ``out.contiguous()``; flash_attn_interface.py, ``maybe_contiguous``.
"""

from __future__ import annotations

from perfmodel.core.workload import BACKWARD, CONTIGUOUS, Attention, Pass
from perfmodel.timing.base import Case

COPYING = "torch-sdpa-flash"
"""Implementation whose backward pass copies O and dO."""


def operand_copies(case: Case) -> list[Pass]:
    """Copies of O and dO that come before the kernels of ``case``; none for a single head or query, whose layouts are the same."""
    w = case.workload
    if not isinstance(w, Attention) or w.layout != CONTIGUOUS or (case.implementation, case.direction) != (COPYING, BACKWARD):
        return []
    if w.n == 1 or w.heads == 1:
        return []
    elements = w.query_heads * w.n * w.dv
    divisions = 3 if w.batch > 1 else 2  # one per dimension of b, n, h, d but the first
    return [Pass("strided", elements, elements * w.dtype.size, elements * w.dtype.size, w.dtype, divisions)] * 2
