"""compressed-tensors (llm-compressor, RedHatAI): groups of modules, each with the bits, the strategy and the symmetry of its weights.

Source: vllm-project/compressed-tensors, QuantizationArgs and the compressors of each ``format``: scales in the model's 16 bits, fp8
under NVFP4 and 8-bit exponents under MXFP4; packed formats store the shape; ``actorder: group`` an index per input.
"""

from collections.abc import Mapping

from perfmodel.core.errors import DataError
from perfmodel.transformer.weight_formats._base import FIELD, FP16, FP32, Family, Fields, MatrixFormat, PerBlock, Quantized, Rule, group

HARMLESS = (
    "quantization_status kv_cache_scheme global_compression_ratio version run_compressed output_activations observer observer_kwargs "
    "dynamic transform_config zp_dtype"
)
PACKED, NVFP4, MXFP4 = "pack-quantized", "nvfp4-pack-quantized", "mxfp4-pack-quantized"
FORMATS = (PACKED, NVFP4, MXFP4, "int-quantized", "float-quantized", "naive-quantized", "mixed-precision")
SHAPE = 2 * 64
"""Bits of a stored shape."""


def read(fields: Fields) -> Quantized:
    """Formats, one rule per group; ``ignore`` names what stays. Sparse formats have no rule."""
    layout, rules, unread = fields.get("format", str, "naive-quantized"), [], []
    for name, raw in fields.get("config_groups", dict, {}).items():
        if not isinstance(raw, Mapping):
            raise DataError(f"{FIELD}.config_groups.{name}: not an object", "give weights and targets in it")
        fields_of = fields.inside(f"config_groups.{name}", raw)
        stored, more = _stored(fields_of, fields_of.get("format", str, layout))
        if stored is None:
            return Quantized(f"compressed-tensors, {layout}")
        targets = fields_of.patterns("targets")
        rules.append(Rule(stored, None if "Linear" in targets else targets))
        unread += [*more, *fields_of.unread(HARMLESS.split())]
    sparse = fields.get("sparsity_config", dict, {})
    if layout not in FORMATS or sparse.get("format", "dense") != "dense" or not rules:
        return Quantized(f"compressed-tensors, {layout}")
    words = " and ".join(dict.fromkeys(rule.stored.name for rule in rules))
    return Quantized(f"compressed-tensors, {words}", tuple(rules), fields.patterns("ignore"), tuple(unread))


def _stored(group_fields: Fields, layout: str) -> tuple[MatrixFormat | None, tuple[str, ...]]:
    """The format of a group's weights (None if there is no rule), and its unread fields."""
    weights = group_fields.inside("weights", group_fields.get("weights", dict, {}))
    bits, kind = weights.count("num_bits", 8), weights.get("type", str, "int")
    strategy, size = weights.get("strategy", str, "tensor"), weights.get("group_size", int)
    inputs, outputs = _block(strategy, size, weights)
    activations = group_fields.get("input_activations", dict) or {}
    weights.get("scale_dtype", str)
    beside = [PerBlock(inputs, outputs, 8 if layout in (NVFP4, MXFP4) else FP16)]
    if not weights.get("symmetric", bool, True):  # zero points
        beside.append(PerBlock(inputs, outputs, bits if layout == PACKED else 8))
    if layout == PACKED:
        beside.append(PerBlock(None, None, SHAPE))
    if weights.get("actorder", (str, bool)) == "group":  # the index of each input's group
        beside.append(PerBlock(1, None, 32))
    if layout == NVFP4:  # a scale of the whole matrix, and one of the activations
        beside.append(PerBlock(None, None, FP32 * (2 if activations else 1)))
    elif activations and activations.get("dynamic") is False:
        beside.append(PerBlock(None, None, FP16))
    if layout in (NVFP4, MXFP4):
        name, compute_dtype = ("nvfp4" if layout == NVFP4 else "mxfp4"), "fp4"
    else:
        name, compute_dtype = f"{'fp' if kind == 'float' else 'int'}{bits}", ""
    if name == "fp8" or (name == "int8" and activations.get("num_bits") == 8):
        compute_dtype = name
    unread = weights.unread(HARMLESS.split())
    if layout not in FORMATS or bits not in (2, 3, 4, 8) or (kind != "int" and name not in ("nvfp4", "mxfp4", "fp8")):
        return None, unread
    return MatrixFormat(name, bits, tuple(beside), compute_dtype), unread


def _block(strategy: str, size: int | None, weights: Fields) -> tuple[int | None, int | None]:
    """Inputs and outputs that share a scale."""
    shape = weights.get("block_structure", (list, str))
    if strategy == "block":
        sides = [int(side) for side in (shape.split("x") if isinstance(shape, str) else shape or [])]
        if len(sides) != 2 or min(sides) < 1:
            raise DataError(f"{weights.place}block_structure is {shape!r:.40}: it should be two sizes", "such as [128, 128]")
        return sides[1], sides[0]
    grouped = (group(size or -1), 1)
    blocks = {"tensor": (None, None), "channel": (None, 1), "group": grouped, "tensor_group": grouped}
    if strategy not in blocks:
        raise DataError(f"{weights.place}strategy: no rule for {strategy!r:.40}", f"there are rules for {', '.join(blocks)}, block")
    return blocks[strategy]


FAMILIES = {"compressed-tensors": Family(read, HARMLESS)}
