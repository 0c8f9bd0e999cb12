"""torch.nn.functional.scaled_dot_product_attention with one backend allowed: FlashAttention-2, cuDNN, or memory-efficient.

Operands are stored as models do: [batch, length, heads, d] in prefill, where a projection wrote them (from any other order the
flash backward copies the output and its gradient first), [batch, kv_heads, kv_len, d] in decode, where they are a cache. The
backward pass is timed alone, through autograd, on a graph that is kept.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import Any

from perfmodel.core.errors import UnavailableError
from perfmodel.core.workload import BACKWARD, FORWARD
from perfmodel.validation.libraries.base import Library, LibraryCase, Prepared, Torch, dtype_of
from perfmodel.validation.libraries.reference import gradient_error, output_error

BACKENDS = {
    "torch-sdpa-flash": "FLASH_ATTENTION",
    "torch-sdpa-cudnn": "CUDNN_ATTENTION",
    "torch-sdpa-efficient": "EFFICIENT_ATTENTION",
}


def operands(case: LibraryCase, torch: Torch, length_first: bool) -> tuple[Any, Any, Any]:
    """Random Q [batch, heads, n, d], K and V [batch, kv_heads, kv_len, d]; ``length_first``: stored as [batch, length, heads, d]."""
    s, dtype = case.shape, dtype_of(case, torch)

    def draw(heads: Any, length: Any) -> Any:
        stored = (s["batch"], length, heads, s["d"]) if length_first else (s["batch"], heads, length, s["d"])
        drawn = torch.randn(stored, dtype=dtype, device="cuda")
        seen = drawn.transpose(1, 2) if length_first else drawn
        return seen.requires_grad_(case.direction == BACKWARD)

    return draw(s["heads"], s["n"]), draw(s["kv_heads"], s["kv_len"]), draw(s["kv_heads"], s["kv_len"])


def attention(case: LibraryCase, torch: Torch, q: Any, k: Any, v: Any, run: Any) -> Prepared:
    """``run()`` itself, or its backward pass alone."""
    causal = bool(case.shape["causal"])
    if case.direction == FORWARD:
        return Prepared(run, partial(output_error, torch, q, k, v, causal))
    out = run()
    grad = torch.randn_like(out)

    def backward() -> Any:
        return torch.autograd.grad(out, (q, k, v), grad, retain_graph=True)

    return Prepared(backward, partial(gradient_error, torch, q, k, v, causal, grad))


def prepare(case: LibraryCase, torch: Torch) -> Prepared:
    """One SDPA backend on one case."""
    causal, grouped = bool(case.shape["causal"]), case.shape["heads"] != case.shape["kv_heads"]
    if causal and case.shape["n"] != case.shape["kv_len"]:
        raise UnavailableError(f"{case.implementation}: PyTorch aligns a causal mask to the first key", "give n = kv_len")
    module = import_module("torch.nn.attention")
    backend = getattr(module.SDPBackend, BACKENDS[case.implementation])
    q, k, v = operands(case, torch, length_first=case.shape["n"] != 1)

    def run() -> Any:
        with module.sdpa_kernel(backend):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped)

    return attention(case, torch, q, k, v, run)


LIBRARIES = tuple(Library(name, "attention", (FORWARD, BACKWARD), prepare) for name in BACKENDS)
