"""Narrow floats with scales per matrix, block or output: fp8, MXFP4, and the formats of NVIDIA Model Optimizer."""

from collections.abc import Mapping

from perfmodel.core.errors import DataError
from perfmodel.transformer.weight_formats._base import FIELD, FP32, Family, Fields, MatrixFormat, PerBlock, Quantized, Rule


def fp8(fields: Fields) -> Quantized:
    """Formats of fp8: 32-bit scales, one per block of ``weight_block_size`` [outputs, inputs], else one per matrix; fbgemm_fp8: per output.

    Static activations add a scale per matrix. Source: DeepSeek-V3, README_WEIGHTS.md (weight_scale_inv, 128 x 128);
    huggingface/transformers, FineGrainedFP8Config, FbgemmFp8Config.
    """
    method, size = fields.get("quant_method", str), fields.get("weight_block_size", list)
    static = fields.get("activation_scheme", str, "dynamic") == "static"
    if size is not None and not (len(size) == 2 and all(type(side) is int and side > 0 for side in size)):
        raise DataError(f"{FIELD}.weight_block_size is {size!r:.40}: it should be two whole numbers", "such as [128, 128]")
    words, outputs, inputs = method, None, None
    if size:
        outputs, inputs = size
        words = f"{method}, blocks of {outputs} x {inputs}"
    elif method == "fbgemm_fp8":
        outputs = 1
    scales = [PerBlock(inputs, outputs, FP32)]
    if static:
        scales.append(PerBlock(None, None, FP32))
    kept = fields.patterns("modules_to_not_convert", "ignored_layers")
    return Quantized(words, (Rule(MatrixFormat("fp8", 8, tuple(scales), "fp8")),), ("lm_head", *kept))


MXFP4 = MatrixFormat("mxfp4", 4, (PerBlock(32, 1, 8),), "fp4")
"""MXFP4: 4-bit floats with an 8-bit exponent for every 32 inputs. Source: OCP Microscaling Formats 1.0."""


def mxfp4(fields: Fields) -> Quantized:
    """Formats of MXFP4: only the experts' matrices have it. ``modules_to_not_convert`` lists further modules that stay unquantized.

    Source: huggingface/transformers, Mxfp4Config, which converts the experts and nothing else.
    """
    return Quantized("mxfp4", (Rule(MXFP4, ("experts",)),), fields.patterns("modules_to_not_convert"))


MODELOPT_HARMLESS = "producer kv_cache_scheme kv_cache_quant_algo config_groups quant_method has_zero_point pre_quant_scale"
"""Names of fields that change no byte of the weights."""
BOTH = PerBlock(None, None, 2 * FP32)
"""Bits per matrix: an fp32 scale of the weights and one of the activations."""
NVFP4 = MatrixFormat("nvfp4", 4, (PerBlock(16, 1, 8), BOTH), "fp4")
MODELOPT_FORMATS = {
    "FP8": MatrixFormat("fp8", 8, (BOTH,), "fp8"),
    "FP8_PB_WO": MatrixFormat("fp8", 8, (PerBlock(128, 128, FP32),), "fp8"),
    "FP8_PER_CHANNEL_PER_TOKEN": MatrixFormat("fp8", 8, (PerBlock(None, 1, FP32),), "fp8"),
    "NVFP4": NVFP4,
    "W4A16_NVFP4": NVFP4,
    "MXFP8": MatrixFormat("fp8", 8, (PerBlock(32, 1, 8),), "fp8"),
}
"""Formats of Model Optimizer by the name of its algorithm, ``quant_algo``."""
MIXED = "MIXED_PRECISION"
PUBLISHED_AS = {
    "nvfp4": Rule(NVFP4),
    "mxfp4": Rule(MXFP4, ("experts",)),
    "fp8-block": Rule(MODELOPT_FORMATS["FP8_PB_WO"]),
    "fp8-tensor": Rule(MODELOPT_FORMATS["FP8"]),
}
"""Formats that ``--weights-dtype`` asks for, as usual checkpoints have them: NVFP4 (NVIDIA), MXFP4 of experts (OpenAI), fp8 in blocks
(DeepSeek, Qwen) or per matrix."""


def modelopt(fields: Fields) -> Quantized:
    """Formats of Model Optimizer, which names its algorithm in config.json or, as in hf_quant_config.json, under ``quantization``.

    Matrices in ``ignore`` and ``exclude_modules`` keep theirs. MIXED_PRECISION has an algorithm per module. An unknown algorithm, or NVFP4
    in groups other than 16, gives a result without rules. Scales of a quantized KV cache, 8 B a layer, are not counted.

    Source: NVIDIA/Model-Optimizer, modelopt.torch.export (weight, weight_scale, weight_scale_2, input_scale); vllm-project/vllm,
    docs/features/quantization/modelopt.md.
    """
    inner = fields.get("quantization", dict)
    if inner is not None:
        fields = fields.inside("quantization", inner)
    algorithm = fields.get("quant_algo", str, "").upper()
    kept, layers = fields.patterns("ignore", "exclude_modules"), fields.get("quantized_layers", dict, {})
    modules: dict[str, list[str]] = {}  # by algorithm
    if algorithm == MIXED:
        for name, module in layers.items():
            if isinstance(module, Mapping):
                modules.setdefault(str(module.get("quant_algo")), []).append(name)
    algorithms = list(modules) if algorithm == MIXED else [algorithm]
    group_size = fields.get("group_size", int) or 16
    unknown = not algorithms or any(name not in MODELOPT_FORMATS for name in algorithms)
    if unknown or ("NVFP4" in algorithm and group_size != 16):
        return Quantized(f"modelopt, {algorithm or 'no algorithm'}")
    words, unread = f"modelopt, {' and '.join(algorithms)}", fields.unread(MODELOPT_HARMLESS.split())
    rules = [Rule(MODELOPT_FORMATS[name], tuple(modules[name]) if algorithm == MIXED else None) for name in algorithms]
    return Quantized(words, tuple(rules), kept, unread)


FAMILIES = {
    **dict.fromkeys(("fp8", "fbgemm_fp8"), Family(fp8, "fmt scale_fmt activation_scale_ub dequantize kv_cache_scheme")),
    "mxfp4": Family(mxfp4, "dequantize"),
    **dict.fromkeys(("modelopt", "modelopt_fp4", "modelopt_mixed", "modelopt_mxfp8"), Family(modelopt, MODELOPT_HARMLESS)),
}
