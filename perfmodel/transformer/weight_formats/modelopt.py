"""Checkpoints of NVIDIA Model Optimizer: the algorithm's name is in config.json, or under ``quantization`` as in hf_quant_config.json.

Source: NVIDIA/Model-Optimizer, modelopt.torch.export (weight, weight_scale, weight_scale_2, input_scale); vllm-project/vllm,
docs/features/quantization/modelopt.md. Scales of a quantized KV cache, 8 B a layer, are not counted.
"""

from collections.abc import Mapping

from perfmodel.transformer.weight_formats._base import FIELD, FP32, Fields, MatrixFormat, Quantized, Rule

METHODS = ("modelopt", "modelopt_fp4", "modelopt_mixed", "modelopt_mxfp8")
HARMLESS = ("producer", "kv_cache_scheme", "kv_cache_quant_algo", "config_groups", "quant_method", "has_zero_point", "pre_quant_scale")
BOTH = (None, None, 2 * FP32)
"""Bits per matrix: an fp32 scale of the weights and one of the activations."""
NVFP4 = MatrixFormat("nvfp4", 4, ((16, 1, 8), BOTH), "fp4")
ALGORITHMS = {
    "FP8": MatrixFormat("fp8", 8, (BOTH,), "fp8"),
    "FP8_PB_WO": MatrixFormat("fp8", 8, ((128, 128, FP32),), "fp8"),
    "FP8_PER_CHANNEL_PER_TOKEN": MatrixFormat("fp8", 8, ((None, 1, FP32),), "fp8"),
    "NVFP4": NVFP4,
    "W4A16_NVFP4": NVFP4,
    "MXFP8": MatrixFormat("fp8", 8, ((32, 1, 8),), "fp8"),
}
MIXED = "MIXED_PRECISION"


def read(fields: Fields) -> Quantized:
    """Formats of the matrices; those in ``ignore`` and ``exclude_modules`` keep theirs. MIXED_PRECISION has an algorithm per module.

    An unknown algorithm, or NVFP4 in groups other than 16, gives a result without rules.
    """
    inner = fields.get("quantization", dict)
    if inner is not None:
        fields = Fields(inner, f"{FIELD}.quantization")
    algorithm = fields.get("quant_algo", str, "").upper()
    kept, layers = fields.patterns("ignore", "exclude_modules"), fields.get("quantized_layers", dict, {})
    found = {name: str(one.get("quant_algo")) for name, one in layers.items() if isinstance(one, Mapping)} if algorithm == MIXED else {}
    used = list(dict.fromkeys(found.values())) if algorithm == MIXED else [algorithm]
    size = fields.get("group_size", int) or 16
    if not used or any(name not in ALGORITHMS for name in used) or ("NVFP4" in algorithm and size != 16):
        return Quantized(f"modelopt, {algorithm or 'no algorithm'}")
    words, unread = f"modelopt, {' and '.join(used)}", fields.unread(HARMLESS)
    if algorithm != MIXED:
        return Quantized(words, (Rule(ALGORITHMS[algorithm]),), kept, unread)
    rules = [Rule(ALGORITHMS[name], tuple(module for module, other in found.items() if other == name)) for name in used]
    return Quantized(words, tuple(rules), kept, unread)
