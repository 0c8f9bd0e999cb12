"""Attention kernel by kernel: batched Q K^T, scale, additive causal mask, softmax, batched P V, scores in memory each time."""

from __future__ import annotations

import math
from typing import Any

from perfmodel.core.errors import UnavailableError
from perfmodel.core.workload import BACKWARD, FORWARD
from perfmodel.validation.libraries.base import Library, LibraryCase, Prepared, Torch
from perfmodel.validation.libraries.families.sdpa import attention, operands


def prepare(case: LibraryCase, torch: Torch) -> Prepared:
    """The whole sequence. A causal case says ``mask`` too, as the mask is a tensor that a kernel adds: no ``masked_fill``."""
    causal, masked = bool(case.shape["causal"]), bool(case.shape.get("mask", False))
    if causal != masked or case.shape["heads"] != case.shape["kv_heads"]:
        raise UnavailableError("torch-eager: causal without mask, or grouped heads", "give causal and mask alike, kv_heads = heads")
    q, k, v = operands(case, torch, length_first=False)  # from another order each matmul would copy first
    scale = 1 / math.sqrt(q.shape[-1])
    mask = torch.full((q.shape[2], k.shape[2]), -math.inf, dtype=q.dtype, device="cuda").triu(1) if causal else None

    def run() -> Any:
        scores = torch.matmul(q, k.transpose(-2, -1)) * scale
        if mask is not None:
            scores = scores + mask
        return torch.matmul(torch.softmax(scores, -1), v)

    return attention(case, torch, q, k, v, run)


LIBRARIES = (Library("torch-eager", "attention", (FORWARD, BACKWARD), prepare),)
