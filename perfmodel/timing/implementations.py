"""Which time models describe which implementation, the first that covers a case."""

from __future__ import annotations

from perfmodel.core.errors import UnavailableError
from perfmodel.timing.base import Case, Model, find_model

_FUSED = ("flash-decode", "flash-prefill")
_PUBLISHED = ("flash-published",)
_FEW = ("flash-few",)
MODELS_OF: dict[str, tuple[str, ...]] = {
    "numba-flash": ("register-tiles",),
    "numba-flash-mma": ("flash-prefill",),
    "numba-flash1": ("numba-flash1",),
    "numba-standard": ("numba-standard",),
    "numba-matmul": ("numba-matmul",),
    "numba-matmul-naive": ("numba-matmul-naive",),
    "vllm-flash-attn": _FUSED,
    "torch-sdpa-flash": _FUSED,
    "torch-sdpa-cudnn": _FUSED,
    "torch-sdpa-efficient": _FUSED,
    "fa1": _FEW,
    "fa1-triton": _FEW,
    "fa2": _FUSED,
    "fa3": ("flash-prefill", *_FEW),
    "fa3-no-pipelining": ("flash-prefill",),
    "fa3-no-specialization": ("flash-prefill",),
    "xformers": _FUSED,
    "cudnn-attention": _PUBLISHED,
    "cudnn-attention-deterministic": _PUBLISHED,
    "cudnn-attention-mxfp8": _PUBLISHED,
    "cudnn-attention-mxfp8-deterministic": _PUBLISHED,
    "triton-attention": _PUBLISHED,
    "triton-tileir": _PUBLISHED,
    "torch-eager": ("eager-attention",),
    "torch-standard": ("eager-published",),
    "megatron": ("eager-published",),
    "cublas": ("gemm",),
    "torch-matmul": ("gemm",),
    "torch-softmax": ("softmax-rows",),
    "numba-copy": ("copy",),
    "torch-copy": ("copy",),
    "torch-scale": ("stream",),
    "torch-mask": ("broadcast",),
    "torch-add": ("stream",),
    "torch-silu-mul": ("stream",),
    "torch-rope": ("stream",),
    "nccl": ("nccl",),
    "vllm-flash-attn-fp8-cache": ("flash-decode-narrow",),
    "trtllm-mla": ("latent-attention",),
    "trtllm-fp8-linear": ("fp8-linear",),
    "triton-moe": ("experts",),
    "trtllm-moe": ("experts",),
    "torch": ("torch-step",),
    "huggingface": ("torch-training",),
    "torch-rms-norm": ("stream",),
    "torch-layer-norm": ("stream",),
}
_EAGER = ("eager-attention", "eager-published")
COMPOSITE = ("torch-step", "torch-training", *_EAGER, "numba-flash1", "numba-standard", "numba-matmul", "numba-matmul-naive")
"""Models that call for the calibrations of other implementations: fitted after those."""


def model_of(case: Case) -> Model:
    """The model that describes ``case``; UnavailableError if there is none."""
    for name in MODELS_OF.get(case.implementation, ()):
        model = find_model(name)
        if model.covers(case):
            return model
    raise UnavailableError(f"no time model of {case.implementation}/{case.direction}")
