"""Formats of the weights that a checkpoint's ``quantization_config`` names: a file has its ``FAMILIES`` by quant_method.

To add a family is to add a file. A format that no file reads is refused, unless the user states the width of the weights.
"""

from collections.abc import Mapping
from dataclasses import replace

from perfmodel.core.errors import DataError
from perfmodel.core.plugins import plugins
from perfmodel.transformer.weight_formats._base import FIELD, Fields, Quantized


def quantized(raw: object) -> Quantized | None:
    """Formats of the weights by the quantization_config ``raw``; None if it names none. DataError names a field without a meaning.

    >>> quantized({"quant_method": "mxfp4"}).main.bytes(2880, 2880)
    4406400
    """
    if raw is None or raw == {}:
        return None
    if not isinstance(raw, Mapping):
        raise DataError(f'{FIELD} is "{raw!s:.40}": it should be an object', "write it as config.json of a transformers model does")
    fields = Fields(raw)
    default = "modelopt" if "quantization" in raw else ""
    if any(raw.get(name) is True for name in ("load_in_4bit", "load_in_8bit")):
        default = "bitsandbytes"
    method = fields.get("quant_method", str, default)
    family = dict(plugins([__name__], "FAMILY", "FAMILIES")).get(method)
    if family is None:
        return Quantized(f"{method:.40}" or "an unnamed method")
    formats: Quantized = family.read(fields)
    return replace(formats, unread=(*formats.unread, *fields.unread(family.harmless.split())))
