"""Choice of the kernels of a step: names of calibrated implementations, of which the first one known for the device is taken."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from perfmodel.core.errors import DataError, suggest
from perfmodel.core.frozen import dataclass
from perfmodel.kernels.collectives import ALL_REDUCE, AT_ONCE

GATHERING = "allgather_reducescatter"
"""Exchange in which every GPU gets all tokens and adds up all results. Source: vLLM, VLLM_ALL2ALL_BACKEND, its default."""
EXCHANGES = frozenset({"deepep"})
"""Libraries whose kernels send tokens to their experts and bring results back: implementations of dispatch and combine."""
WORKLOAD_OF = {
    **dict.fromkeys(("all_reduce", "collectives", "all_to_all"), "collective"),
    **dict.fromkeys(("attention", "narrow_attention"), "attention"),
    "latent_attention": "latent-attention",
    **dict.fromkeys(("products", "narrow_products"), "matmul"),
    "experts": "moe",
}
"""Workload that the implementations of each field are calibrated for."""


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """Implementations by the kind of kernel.

    ``attention``: over K and V of heads; the fastest of those calibrated on the device, else of all. ``narrow_attention``: over a cache of
    8 bits. ``all_to_all`` with GATHERING: tokens reach experts by all-gather and reduce-scatter, whose kernels ``collectives`` names.
    ``fused_all_reduce``: small all-reduces do the residual add and the norm after them, where element-wise operations are fused.
    ``experts``: in 16 bits and in fp8; ``mxfp4_experts``, ``nvfp4_experts``: made for weights in that format; ``widened_experts``: they
    widen weights of any other narrow format to 16 bits. If none of these is calibrated, ``experts`` replace them. ``rounds_apart``: a
    separate kernel rounds x before a product in 8 bits or fewer. ``shared_as_routed``: number of routed experts of models that run the
    shared expert as one more of them, if it is as wide and they are not divided among GPUs; 0 for no model.
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
        """DataError for an implementation that is not ``known`` for its workload, and for a field without any."""
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
