"""Which time models describe which implementation, the first that covers a case."""

from __future__ import annotations

from perfmodel.errors import UnavailableError
from perfmodel.timing.base import Case, Model, find_model

_FUSED = ("flash-decode", "flash-prefill")
_PUBLISHED = ("flash-published",)
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
    "fa2": _PUBLISHED,
    "cudnn-attention": _PUBLISHED,
    "cudnn-attention-deterministic": _PUBLISHED,
    "cudnn-attention-mxfp8": _PUBLISHED,
    "cudnn-attention-mxfp8-deterministic": _PUBLISHED,
    "triton-attention": _PUBLISHED,
    "triton-tileir": _PUBLISHED,
    "torch-eager": ("eager-attention",),
    "cublas": ("gemm",),
    "torch-matmul": ("gemm",),
    "torch-softmax": ("softmax-rows",),
    "numba-copy": ("copy",),
    "torch-copy": ("copy",),
    "torch-scale": ("stream",),
    "torch-mask": ("stream",),
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
COMPOSITE = ("torch-step", "torch-training", "eager-attention", "numba-flash1", "numba-standard", "numba-matmul", "numba-matmul-naive")
"""Models that call for the calibrations of other implementations: fitted after those."""


def model_of(case: Case) -> Model:
    """The model that describes ``case``; UnavailableError if there is none."""
    for name in MODELS_OF.get(case.implementation, ()):
        model = find_model(name)
        if model.covers(case):
            return model
    raise UnavailableError(f"no time model of {case.implementation}/{case.direction}")
