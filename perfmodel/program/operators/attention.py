"""Fused attention of PyTorch, FlashAttention's own package, vLLM and AITER, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from perfmodel.core.cost import Kernel, Tile, Work
from perfmodel.core.dtypes import DTYPES, Dtype
from perfmodel.core.errors import PerfmodelError
from perfmodel.core.workload import BACKWARD, FORWARD, Attention
from perfmodel.kernels.attention.algorithms import flash2
from perfmodel.program.calls import Call, Operand, UnknownError
from perfmodel.timing.base import chosen
from perfmodel.transformer.op import ATTENTION, KEY_TILE, Op, Timed

TILE = Tile(128, KEY_TILE)


def attention(call: Call, w: Attention, implementations: tuple[str, ...], direction: str = FORWARD) -> Op:
    """One pass of ``w`` by the first calibrated one of ``implementations``.

    In fp32 it runs on tensor cores, in parts of tf32. Source: PyTorch, mem_eff_attention/gemm_kernel_utils.h.
    """
    multiplied = replace(w, dtype=DTYPES["tf32"]) if w.dtype.name == "fp32" else w
    kernels = flash2.forward(multiplied, TILE) if direction == FORWARD else flash2.backward(multiplied, TILE)
    accesses = tuple(access for kernel in kernels for access in kernel.accesses)
    kernel = Kernel(
        call.name,
        multiplied.dtype,
        accesses,
        sum(k.flops for k in kernels),
        sum(k.executed_flops for k in kernels),
        work=sum((k.work for k in kernels), Work()),
        needed=sum((k.needed for k in kernels), Work()),
    )
    return Op(call.name, ATTENTION, 1, kernel, _timed(w, implementations, direction))


def _timed(w: Attention, implementations: tuple[str, ...], direction: str) -> Timed:
    """The prediction to request: of the kernel without mask and dropout, slower by a factor with them; in fp32, of eager attention."""
    mask = "mask of odd rows" if w.kv_len % VECTOR else "mask"
    extras = " and ".join([mask] * w.mask + ["dropout"] * (w.dropout > 0))
    similar = f"{implementations[0]} with {extras}" if extras else ""
    slower = chosen("attention_extras")[direction].get(extras, 1.0)
    if w.dtype.name == "fp32":
        implementations, similar, slower = ("torch-eager",), "attention kernel by kernel in fp32", 1.0
    return Timed("attention", replace(w, dropout=0.0, mask=False), implementations, direction=direction, similar=similar, slower=slower)


VECTOR = 8
"""Elements of a mask in one vector load; rows of another length are loaded element by element."""


def shaped(
    call: Call, heads_first: bool, first: int = 0, *, causal: int | None, dropout: int | None = None, mask: int | None = None
) -> Attention:
    """The workload of Q, K, V from place ``first`` on: [b, h, n, d] if ``heads_first``, else [b, n, h, d].

    ``causal``, ``dropout``, ``mask``: places of the flag, the probability and the additive mask.
    """
    q, k, v = (call.tensor(first + place) for place in range(3))
    if any(len(tensor.shape) != 4 for tensor in (q, k, v)):
        raise UnknownError(f"{call.name} of packed sequences")
    batch, heads, n, d = _order(q, heads_first)
    _, kv_heads, kv_len, _ = _order(k, heads_first)
    return _checked(
        Attention(
            n,
            kv_len,
            d,
            v.shape[-1],
            batch,
            heads,
            kv_heads,
            _dtype(q),
            causal=causal is not None and call.is_true(causal),
            mask=mask is not None and len(call.arguments) > mask and isinstance(call.arguments[mask], Operand),
            dropout=_dropout(call, dropout),
        )
    )


def _order(operand: Operand, heads_first: bool) -> tuple[int, ...]:
    b, second, third, d = operand.shape
    return (b, second, third, d) if heads_first else (b, third, second, d)


def _dtype(q: Operand) -> Dtype:
    if q.dtype not in DTYPES:
        raise UnknownError(f"no attention in {q.dtype}")
    return DTYPES[q.dtype]


def _dropout(call: Call, place: int | None) -> float:
    try:
        return float(call.value(place, "0")) if place is not None else 0.0
    except ValueError:
        return 0.0


def _checked(w: Attention) -> Attention:
    try:
        return w.check()
    except PerfmodelError as error:
        raise UnknownError(str(error)) from None


def packed(call: Call, lengths: int, causal: bool = True) -> Attention:
    """The workload of packed sequences [tokens, h, d], taken as equally long; the tensor at ``lengths`` has their starts."""
    q, k = call.tensor(0), call.tensor(1)
    sequences = max(1, call.tensor(lengths).elements - 1)
    n = max(1, q.shape[0] // sequences)
    return _checked(Attention(n, n, q.shape[2], q.shape[2], sequences, q.shape[1], k.shape[-2], _dtype(q), causal))


def sdpa(
    call: Call, names: tuple[str, ...], heads_first: bool, causal: int, dropout: int, mask: int | None = None, direction: str = FORWARD
) -> Op:
    """Rule for PyTorch's own attention operators; a backward pass has dO before Q."""
    first = 0 if direction == FORWARD else 1
    return attention(call, shaped(call, heads_first, first, causal=causal, dropout=dropout, mask=mask), names, direction)


def variable(call: Call, names: tuple[str, ...], lengths: int) -> Op:
    """Rule for attention over packed sequences."""
    return attention(call, packed(call, lengths), names)


FLASH, EFFICIENT, CUDNN = ("torch-sdpa-flash",), ("torch-sdpa-efficient",), ("torch-sdpa-cudnn",)
OPERATORS: dict[str, Callable[[Call], Op]] = {
    "aten::_flash_attention_forward": partial(sdpa, names=FLASH, heads_first=False, causal=8, dropout=7),
    "aten::_flash_attention_backward": partial(sdpa, names=FLASH, heads_first=False, causal=11, dropout=10, direction=BACKWARD),
    "aten::_efficient_attention_forward": partial(sdpa, names=EFFICIENT, heads_first=False, causal=9, dropout=8, mask=3),
    "aten::_efficient_attention_backward": partial(
        sdpa, names=EFFICIENT, heads_first=False, causal=14, dropout=11, mask=4, direction=BACKWARD
    ),
    "aten::_cudnn_attention_forward": partial(sdpa, names=CUDNN, heads_first=True, causal=10, dropout=9, mask=3),
    "aten::_cudnn_attention_backward": partial(sdpa, names=CUDNN, heads_first=True, causal=14, dropout=13, mask=8, direction=BACKWARD),
    "flash_attn::_flash_attn_forward": partial(sdpa, names=("fa2",), heads_first=False, causal=5, dropout=3),
    "aiter::mha_batch_prefill": partial(variable, names=("aiter",), lengths=3),
}
