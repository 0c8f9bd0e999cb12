"""Integers, packed into words or not, with a scale per group or output.

AWQ: 4-bit integers packed into 32-bit words, per group a 16-bit scale and a packed zero point.

Source: AutoAWQ, WQLinear_GEMM (qweight, qzeros, scales); huggingface/transformers, AwqConfig.

GPTQ: integers packed into 32-bit words, per group a 16-bit scale and a packed zero point, per input the index of its group.

Source: AutoGPTQ and GPTQModel, QuantLinear (qweight, qzeros, scales, g_idx); huggingface/transformers, GPTQConfig. All linear layers
inside the decoder layers are quantized; the index is stored whether or not ``desc_act`` orders the inputs.

bitsandbytes: int8 with a 32-bit scale per output, or 4 bits with a scale for every 64 elements, itself quantized if ``double_quant``.

Source: bitsandbytes, Int8Params and Params4bit (quant_state); huggingface/transformers, BitsAndBytesConfig.
"""

from perfmodel.transformer.weight_formats._base import FP16, FP32, Family, Fields, MatrixFormat, PerBlock, Quantized, Rule, group


def awq(fields: Fields) -> Quantized:
    """Formats of AWQ. ``w_bit`` and ``q_group_size`` are the names of llm-awq."""
    bits = fields.get("w_bit", int) or fields.count("bits")
    size = group(fields.get("q_group_size", int) or fields.count("group_size", 128))
    words = f"awq, {bits} bits" + (f", groups of {size}" if size else "")
    if bits not in (4, 8):
        return Quantized(words)
    stored = MatrixFormat(f"int{bits}", bits, (PerBlock(size, 1, FP16), PerBlock(size, 1, bits)))
    return Quantized(words, (Rule(stored),), ("lm_head", *fields.patterns("modules_to_not_convert")))


def gptq(fields: Fields) -> Quantized:
    """Formats of GPTQ. ``modules_in_block_to_quantize``: only these; ``lm_head``: the head too."""
    bits, size = fields.count("bits"), group(fields.count("group_size", 128))
    only = tuple(str(name) for names in fields.get("modules_in_block_to_quantize", list, []) for name in names)
    head, layout = fields.get("lm_head", bool, False), fields.get("checkpoint_format", str, "gptq")
    words = f"gptq, {bits} bits" + (f", groups of {size}" if size else "")
    if bits not in (2, 3, 4, 8) or layout not in ("gptq", "gptq_v2") or fields.get("dynamic", dict, {}):
        return Quantized(words)
    stored = MatrixFormat(f"int{bits}", bits, (PerBlock(size, 1, FP16), PerBlock(size, 1, bits), PerBlock(1, None, 32)))
    return Quantized(words, (Rule(stored, only or None),), () if head else ("lm_head",))


TABLES = 8 * (16 * 4 + 4)
"""Bits per 4-bit matrix: the 16 values of its code and an offset; double_quant adds a code of 256 values."""


def bitsandbytes(fields: Fields) -> Quantized:
    """Formats of bitsandbytes; no rules if neither field is set."""
    kept = ("lm_head", *fields.patterns("llm_int8_skip_modules"))
    four, eight = fields.get("load_in_4bit", bool, False), fields.get("load_in_8bit", bool, False)
    double = fields.get("bnb_4bit_use_double_quant", bool, False)
    if eight:
        return Quantized("bitsandbytes, 8 bits", (Rule(MatrixFormat("int8", 8, (PerBlock(None, 1, FP32),))),), kept)
    if not four:
        return Quantized("bitsandbytes")
    scales = (PerBlock(64, 1, 8), PerBlock(64 * 256, 1, FP32)) if double else (PerBlock(64, 1, FP32),)
    tables = PerBlock(None, None, TABLES + 8 * 1024 if double else TABLES)
    return Quantized("bitsandbytes, 4 bits", (Rule(MatrixFormat("int4", 4, (*scales, tables))),), kept)


FAMILIES = {
    "awq": Family(awq, "zero_point version backend do_fuse fuse_max_seq_len exllama_config modules_to_fuse"),
    "gptq": Family(
        gptq,
        "desc_act sym damp_percent true_sequential static_groups model_name_or_path model_file_base_name dataset tokenizer use_exllama "
        "exllama_config use_cuda_fp16 model_seqlen block_name_to_quantize batch_size module_name_preceding_first_block pad_token_id "
        "max_input_length cache_block_outputs disable_exllama backend is_marlin_format meta version cache_examples_on_gpu use_triton "
        "pack_dtype",
    ),
    "bitsandbytes": Family(
        bitsandbytes,
        "bnb_4bit_compute_dtype bnb_4bit_quant_type bnb_4bit_quant_storage llm_int8_threshold llm_int8_enable_fp32_cpu_offload "
        "llm_int8_has_fp16_weight _load_in_4bit _load_in_8bit",
    ),
}
