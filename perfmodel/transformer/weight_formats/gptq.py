"""GPTQ: integers packed into 32-bit words, per group a 16-bit scale and a packed zero point, per input the index of its group.

Source: AutoGPTQ and GPTQModel, QuantLinear (qweight, qzeros, scales, g_idx); huggingface/transformers, GPTQConfig. All linear layers
inside the decoder layers are quantized; the index is stored whether or not ``desc_act`` orders the inputs.
"""

from perfmodel.transformer.weight_formats._base import FP16, Fields, MatrixFormat, Quantized, Rule, group

METHODS = ("gptq",)
BITS = (2, 3, 4, 8)
HARMLESS = (
    "desc_act", "sym", "damp_percent", "true_sequential", "static_groups", "model_name_or_path", "model_file_base_name",
    "dataset", "tokenizer", "use_exllama", "exllama_config", "use_cuda_fp16", "model_seqlen", "block_name_to_quantize", "batch_size",
    "module_name_preceding_first_block", "pad_token_id", "max_input_length", "cache_block_outputs", "disable_exllama", "backend",
    "is_marlin_format", "meta", "version", "cache_examples_on_gpu", "use_triton", "pack_dtype",
)  # fmt: skip


def read(fields: Fields) -> Quantized:
    """``modules_in_block_to_quantize``: only these; ``lm_head``: the head too."""
    bits, size = fields.whole("bits"), group(fields.whole("group_size", 128))
    only = tuple(str(name) for names in fields.get("modules_in_block_to_quantize", list, []) for name in names)
    head, layout = fields.get("lm_head", bool, False), fields.get("checkpoint_format", str, "gptq")
    words = f"gptq, {bits} bits" + (f", groups of {size}" if size else "")
    if bits not in BITS or layout not in ("gptq", "gptq_v2") or fields.get("dynamic", dict, {}):
        return Quantized(words)
    stored = MatrixFormat(f"int{bits}", bits, ((size, 1, FP16), (size, 1, bits), (1, None, 32)))
    return Quantized(words, (Rule(stored, only or None),), () if head else ("lm_head",))
