"""Narrow floats with scales per matrix, block or output.

fp8: 8-bit floats with 32-bit scales, one per block of ``weight_block_size``, else one per matrix; fbgemm_fp8: one per output.

Source: DeepSeek-V3, README_WEIGHTS.md (weight_scale_inv, 128 x 128); huggingface/transformers, FineGrainedFP8Config, FbgemmFp8Config.

MXFP4: 4-bit floats, an 8-bit exponent for every 32 inputs; in gpt-oss only the experts' matrices.

Source: OCP Microscaling Formats 1.0; huggingface/transformers, Mxfp4Config, which converts the experts and nothing else.

NVIDIA Model Optimizer: the algorithm by name, in config.json or as hf_quant_config.json has it under ``quantization``.

Source: NVIDIA/Model-Optimizer, modelopt.torch.export (weight, weight_scale, weight_scale_2, input_scale); vllm-project/vllm,
docs/features/quantization/modelopt.md. Scales of a quantized KV cache, 8 B a layer, are not counted.
"""

from collections.abc import Mapping

from perfmodel.core.errors import DataError
from perfmodel.transformer.weight_formats._base import FIELD, FP32, Family, Fields, MatrixFormat, Quantized, Rule


def fp8(fields: Fields) -> Quantized:
    """Formats of fp8. A block is written [outputs, inputs]; static activations add a scale per matrix."""
    method, size = fields.get("quant_method", str), fields.get("weight_block_size", list)
    static = fields.get("activation_scheme", str, "dynamic") == "static"
    if size is not None and not (len(size) == 2 and all(type(side) is int and side > 0 for side in size)):
        raise DataError(f"{FIELD}.weight_block_size is {size!r:.40}: it should be two whole numbers", "such as [128, 128]")
    outputs, inputs = size or ((1, None) if method == "fbgemm_fp8" else (None, None))
    words = method + (f", blocks of {outputs} x {inputs}" if size else "")
    scales = ((inputs, outputs, FP32), *(((None, None, FP32),) if static else ()))
    kept = fields.patterns("modules_to_not_convert", "ignored_layers")
    return Quantized(words, (Rule(MatrixFormat("fp8", 8, scales, "fp8")),), ("lm_head", *kept))


MXFP4 = MatrixFormat("mxfp4", 4, ((32, 1, 8),), "fp4")


def mxfp4(fields: Fields) -> Quantized:
    """Formats of MXFP4. ``modules_to_not_convert`` lists further modules that stay unquantized."""
    return Quantized("mxfp4", (Rule(MXFP4, ("experts",)),), fields.patterns("modules_to_not_convert"))


MODELOPT_HARMLESS = "producer kv_cache_scheme kv_cache_quant_algo config_groups quant_method has_zero_point pre_quant_scale"
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
PUBLISHED_AS = {
    "nvfp4": Rule(NVFP4),
    "mxfp4": Rule(MXFP4, ("experts",)),
    "fp8-block": Rule(ALGORITHMS["FP8_PB_WO"]),
    "fp8-tensor": Rule(ALGORITHMS["FP8"]),
}
"""Formats of further checkpoints: NVIDIA's NVFP4, OpenAI's MXFP4 of experts, fp8 in blocks (DeepSeek, Qwen) or per matrix."""


def modelopt(fields: Fields) -> Quantized:
    """Formats of Model Optimizer; matrices in ``ignore`` and ``exclude_modules`` keep theirs. MIXED_PRECISION has an algorithm per module.

    An unknown algorithm, or NVFP4 in groups other than 16, gives a result without rules.
    """
    inner = fields.get("quantization", dict)
    if inner is not None:
        fields = fields.inside("quantization", inner)
    algorithm = fields.get("quant_algo", str, "").upper()
    kept, layers = fields.patterns("ignore", "exclude_modules"), fields.get("quantized_layers", dict, {})
    listed = layers.items() if algorithm == MIXED else ()
    algorithms = {name: str(module.get("quant_algo")) for name, module in listed if isinstance(module, Mapping)}
    used = list(dict.fromkeys(algorithms.values())) if algorithm == MIXED else [algorithm]
    size = fields.get("group_size", int) or 16
    if not used or any(name not in ALGORITHMS for name in used) or ("NVFP4" in algorithm and size != 16):
        return Quantized(f"modelopt, {algorithm or 'no algorithm'}")
    words, unread = f"modelopt, {' and '.join(used)}", fields.unread(MODELOPT_HARMLESS.split())
    if algorithm != MIXED:
        return Quantized(words, (Rule(ALGORITHMS[algorithm]),), kept, unread)
    rules = [Rule(ALGORITHMS[name], tuple(module for module, other in algorithms.items() if other == name)) for name in used]
    return Quantized(words, tuple(rules), kept, unread)


FAMILIES = {
    **dict.fromkeys(("fp8", "fbgemm_fp8"), Family(fp8, "fmt scale_fmt activation_scale_ub dequantize kv_cache_scheme")),
    "mxfp4": Family(mxfp4, "dequantize"),
    **dict.fromkeys(("modelopt", "modelopt_fp4", "modelopt_mixed", "modelopt_mxfp8"), Family(modelopt, MODELOPT_HARMLESS)),
}
