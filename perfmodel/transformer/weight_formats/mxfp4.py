"""MXFP4: 4-bit floats, an 8-bit exponent for every 32 inputs; of gpt-oss the matrices of the experts alone.

Source: OCP Microscaling Formats 1.0; huggingface/transformers, Mxfp4Config, which converts the experts and nothing else.
"""

from perfmodel.transformer.weight_formats._base import Fields, MatrixFormat, Quantized, Rule

METHODS = ("mxfp4",)
HARMLESS = ("dequantize",)
MXFP4 = MatrixFormat("mxfp4", 4, ((32, 1, 8),), "fp4")


def read(fields: Fields) -> Quantized:
    """``modules_to_not_convert`` lists what stays as it is besides."""
    return Quantized("mxfp4", (Rule(MXFP4, ("experts",)),), fields.patterns("modules_to_not_convert"))
