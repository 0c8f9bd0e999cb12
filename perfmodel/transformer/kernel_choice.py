"""Choice of the kernels of a step: names of calibrated implementations, the first that is known for the device counts."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from perfmodel.core.errors import DataError, suggest
from perfmodel.kernels.collectives import ALL_REDUCE, AT_ONCE

GATHERING = "allgather_reducescatter"
"""In place of an all-to-all, every GPU gets all tokens and adds up all results. Source: vLLM, VLLM_ALL2ALL_BACKEND, its default."""
EXCHANGES = frozenset({"deepep"})
"""Libraries whose kernels send tokens to their experts and bring results back: implementations of dispatch and combine."""
WORKLOAD_OF = {
    **dict.fromkeys(("all_reduce", "collectives", "all_to_all"), "collective"),
    **dict.fromkeys(("attention", "narrow_attention"), "attention"),
    "latent_attention": "latent-attention",
    **dict.fromkeys(("products", "narrow_products"), "matmul"),
    "experts": "moe",
}
"""What the implementations of a field are calibrated for."""


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """Implementations by the kind of kernel. ``attention``: of heads' K and V, the fastest that is calibrated on the device; else of all.

    ``narrow_attention``: over a cache of 8 bits.

    ``all_to_all`` with GATHERING: tokens reach experts by all-gather and reduce-scatter, of which ``collectives`` names the kernels.
    ``fused_all_reduce``: small all-reduces do the residual add and the norm after them, where element-wise operations are fused.
    ``experts``: in 16 bits and in fp8; ``mxfp4_experts``, ``nvfp4_experts``: made for weights in that format; ``widened_experts``: those
    that widen weights of any other narrow format to 16 bits. Where none of these is calibrated, ``experts`` count.
    ``rounds_apart``: x is rounded by a kernel of its own before a product in 8 bits or fewer. ``shared_as_routed``: of models with so
    many routed experts, that which sees every token is one more of them, where it is as wide and they are not dealt out; 0: of none.
    """

    all_reduce: tuple[str, ...] = ("nccl",)
    collectives: tuple[str, ...] = ("nccl",)
    all_to_all: tuple[str, ...] = ("nccl",)
    attention: tuple[str, ...] = ()
    narrow_attention: tuple[str, ...] = ("vllm-flash-attn-fp8-cache",)
    latent_attention: tuple[str, ...] = ("trtllm-mla",)
    products: tuple[str, ...] = ("torch-matmul", "cublas", "xla")
    narrow_products: tuple[str, ...] = ("trtllm-fp8-linear",)
    rounds_apart: bool = False
    experts: tuple[str, ...] = ("triton-moe", "trtllm-moe")
    mxfp4_experts: tuple[str, ...] = ("triton-mxfp4-moe", "trtllm-mxfp4-moe")
    nvfp4_experts: tuple[str, ...] = ("trtllm-fp4-moe",)
    widened_experts: tuple[str, ...] = ("marlin-moe",)
    fused_all_reduce: bool = False
    shared_as_routed: int = 0

    def of_collective(self, op: str) -> tuple[str, ...]:
        """Implementations of the collective ``op``, the first choice first."""
        return {ALL_REDUCE: self.all_reduce, **dict.fromkeys(AT_ONCE, self.all_to_all)}.get(op, self.collectives)

    def check(self, known: Mapping[str, Collection[str]]) -> None:
        """DataError for an implementation that is not among the ``known`` ones of its workload, or for none at all."""
        for place, workload in WORKLOAD_OF.items():
            names = sorted({*known.get(workload, ()), *([GATHERING] if place == "all_to_all" else [])})
            if not getattr(self, place) and place != "attention":
                raise DataError(f"kernels.{place} is empty", f"name one at least: {', '.join(names)}")
            wrong = next((name for name in getattr(self, place) if name not in names), None)
            if wrong is not None:
                raise DataError(f"kernels.{place}: no implementation of {workload} is called {wrong!r}", suggest(wrong, names))


EAGER = KernelChoice(attention=("torch-sdpa-flash",))
"""Kernels of a step that PyTorch launches one by one: ``scaled_dot_product_attention`` tries FlashAttention-2 first.

Source: aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, priority_order.
"""
