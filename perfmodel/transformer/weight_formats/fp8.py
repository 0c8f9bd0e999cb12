"""fp8: 8-bit floats with 32-bit scales, one per block of ``weight_block_size``, else one per matrix; fbgemm_fp8: one per output.

Source: DeepSeek-V3, README_WEIGHTS.md (weight_scale_inv, 128 x 128); huggingface/transformers, FineGrainedFP8Config, FbgemmFp8Config.
"""

from perfmodel.core.errors import DataError
from perfmodel.transformer.weight_formats._base import FIELD, FP32, Fields, MatrixFormat, Quantized, Rule

METHODS = ("fp8", "fbgemm_fp8")
HARMLESS = ("fmt", "scale_fmt", "activation_scale_ub", "dequantize", "kv_cache_scheme")


def read(fields: Fields) -> Quantized:
    """A block is written [outputs, inputs]; static activations add a scale per matrix."""
    method, size = fields.get("quant_method", str), fields.get("weight_block_size", list)
    static = fields.get("activation_scheme", str, "dynamic") == "static"
    if size is not None and not (len(size) == 2 and all(type(one) is int and one > 0 for one in size)):
        raise DataError(f"{FIELD}.weight_block_size is {size!r:.40}: it should be two whole numbers", "such as [128, 128]")
    outputs, inputs = size or ((1, None) if method == "fbgemm_fp8" else (None, None))
    words = method + (f", blocks of {outputs} x {inputs}" if size else "")
    scales = ((inputs, outputs, FP32), *(((None, None, FP32),) if static else ()))
    kept = fields.patterns("modules_to_not_convert", "ignored_layers")
    return Quantized(words, (Rule(MatrixFormat("fp8", 8, scales, "fp8")),), ("lm_head", *kept))
