"""AWQ: 4-bit integers packed into 32-bit words, per group a 16-bit scale and a packed zero point.

Source: AutoAWQ, WQLinear_GEMM (qweight, qzeros, scales); huggingface/transformers, AwqConfig.
"""

from perfmodel.transformer.weight_formats._base import FP16, Fields, MatrixFormat, Quantized, Rule, group

METHODS = ("awq",)
HARMLESS = ("zero_point", "version", "backend", "do_fuse", "fuse_max_seq_len", "exllama_config", "modules_to_fuse")


def read(fields: Fields) -> Quantized:
    """``w_bit`` and ``q_group_size`` are the names of llm-awq."""
    bits = fields.get("w_bit", int) or fields.whole("bits")
    size = group(fields.get("q_group_size", int) or fields.whole("group_size", 128))
    words = f"awq, {bits} bits" + (f", groups of {size}" if size else "")
    if bits not in (4, 8):
        return Quantized(words)
    stored = MatrixFormat(f"int{bits}", bits, ((size, 1, FP16), (size, 1, bits)))
    return Quantized(words, (Rule(stored),), ("lm_head", *fields.patterns("modules_to_not_convert")))
