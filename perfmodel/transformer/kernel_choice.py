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
"""Workload that implementations are calibrated for, by field of ``KernelChoice``."""


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """Implementations by the kind of kernel; the first that is calibrated is taken.

    ``all_to_all``: dispatch and combine of experts; with GATHERING among them, tokens reach experts by all-gather and reduce-scatter, whose
    kernels ``collectives`` names. ``attention``: over K and V of heads; of those calibrated on the device the fastest is taken, not the
    first, and with none the fastest of all known ones. ``narrow_attention``: over a cache of 8 bits. ``narrow_products``: in 8 bits or
    fewer. ``rounds_apart``: a separate kernel rounds x before such a product.

    ``experts``: in 16 bits and in fp8. ``mxfp4_experts``, ``nvfp4_experts``: made for weights in that format; ``widened_experts``: they
    widen weights of any other narrow format to 16 bits. If none of these is calibrated, ``experts`` replace them. ``fused_all_reduce``:
    small all-reduces do the residual add and the norm after them, where element-wise operations are fused. ``shared_as_routed``: models
    with this number of routed experts run the shared expert as one more of them, if it is as wide and they are not divided among GPUs.
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
        if op == ALL_REDUCE:
            return self.all_reduce
        return self.all_to_all if op in AT_ONCE else self.collectives

    def check(self, known: Mapping[str, Collection[str]]) -> None:
        """DataError for a name that is not among the ``known`` implementations of its workload, and for a field without any."""
        for field, workload in WORKLOAD_OF.items():
            allowed, chosen = {*known.get(workload, ())}, getattr(self, field)
            if field == "all_to_all":
                allowed.add(GATHERING)
            if not chosen and field != "attention":
                raise DataError(f"kernels.{field} is empty", f"name one at least: {', '.join(sorted(allowed))}")
            for name in chosen:
                if name not in allowed:
                    problem = f"kernels.{field}: no implementation of {workload} is called {name!r}"
                    raise DataError(problem, suggest(name, sorted(allowed)))


EAGER = KernelChoice(attention=("torch-sdpa-flash",))
"""Kernels of a step that PyTorch launches one by one: ``scaled_dot_product_attention`` tries FlashAttention-2 first.

Source: aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, priority_order.
"""
