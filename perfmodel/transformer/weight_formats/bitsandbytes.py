"""bitsandbytes: int8 with a 32-bit scale per output, or 4 bits with a scale for every 64 elements, itself quantized if ``double_quant``.

Source: bitsandbytes, Int8Params and Params4bit (quant_state); huggingface/transformers, BitsAndBytesConfig.
"""

from perfmodel.transformer.weight_formats._base import FP32, Fields, MatrixFormat, Quantized, Rule

METHODS = ("bitsandbytes",)
HARMLESS = (
    "bnb_4bit_compute_dtype", "bnb_4bit_quant_type", "bnb_4bit_quant_storage", "llm_int8_threshold",
    "llm_int8_enable_fp32_cpu_offload", "llm_int8_has_fp16_weight", "_load_in_4bit", "_load_in_8bit",
)  # fmt: skip
TABLES = 8 * (16 * 4 + 4)
"""Bits of a 4-bit matrix's own: the 16 values of its code and an offset. With double_quant a code of 256 values more."""


def read(fields: Fields) -> Quantized:
    """Neither field: nothing that is known here."""
    kept = ("lm_head", *fields.patterns("llm_int8_skip_modules"))
    four, eight = fields.get("load_in_4bit", bool, False), fields.get("load_in_8bit", bool, False)
    double = fields.get("bnb_4bit_use_double_quant", bool, False)
    if eight:
        return Quantized("bitsandbytes, 8 bits", (Rule(MatrixFormat("int8", 8, ((None, 1, FP32),))),), kept)
    if not four:
        return Quantized("bitsandbytes")
    scales = ((64, 1, 8), (64 * 256, 1, FP32), (None, None, TABLES + 8 * 1024)) if double else ((64, 1, FP32), (None, None, TABLES))
    return Quantized("bitsandbytes, 4 bits", (Rule(MatrixFormat("int4", 4, scales)),), kept)
