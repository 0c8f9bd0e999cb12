"""Weights in a GGUF file of llama.cpp, by the name of its mixture: the type of each matrix.

A type packs blocks of inputs with their scales. A mixture stores most matrices in one type, and the most sensitive ones in a wider type:
the head, and in some layers V and the MLP's last matrix. Norms and routers stay in 32 bits, which are counted as 16. Source:
ggml-org/llama.cpp @007dbbf, src/llama-quant.cpp (llama_tensor_get_type_impl, tensor_type_fallback); ggml/src/ggml-common.h @d99724f.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from perfmodel.core.arith import Number
from perfmodel.transformer.layer import operations
from perfmodel.transformer.spec import GroupedAttention, Layer, LayerFormats, ModelSpec, MoeMlp
from perfmodel.transformer.weight_formats._base import MatrixFormat, PerBlock, Quantized, Rule

BLOCKS = {
    **{"Q4_0": (32, 18), "Q4_1": (32, 20), "Q5_0": (32, 22), "Q5_1": (32, 24), "Q8_0": (32, 34), "MXFP4": (32, 17), "IQ4_NL": (32, 18)},
    **{"Q2_K": (256, 84), "Q3_K": (256, 110), "Q4_K": (256, 144), "Q5_K": (256, 176), "Q6_K": (256, 210), "IQ4_XS": (256, 136)},
}
"""Inputs of a block and its bytes, by type."""


def _format(name: str) -> MatrixFormat:
    """The format of a type, whose name has the bits of an element without scales: those of ``Q4_K`` are 4."""
    inputs, size = BLOCKS[name]
    bits = int(next(filter(str.isdigit, name)))
    return MatrixFormat(name.lower(), bits, (PerBlock(inputs, 1, 8 * size - bits * inputs),), "int8")


TYPES = {name: _format(name) for name in BLOCKS}
"""Formats by type. Products with few rows dequantise them, others multiply in 8-bit integers. Source: ggml/src/ggml-cuda/mmq.cuh."""
FALLBACKS = {"Q2_K": "Q4_0", "Q3_K": "Q4_0", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0", "IQ4_XS": "IQ4_NL"}
"""Types of matrices whose inputs are no whole blocks, by the usual type."""
FUSED_QKV = ("gpt2", "phi3")
"""Architectures whose Q, K and V are one matrix."""


class Place(NamedTuple):
    """Place of a matrix: its ``name`` in a checkpoint, ``layer`` of ``layers``, in ``model``."""

    name: str
    layer: int
    layers: int
    model: ModelSpec

    @property
    def is_v(self) -> bool:
        """Whether it is V or contains V."""
        in_fused = self.model.architecture in FUSED_QKV and self.name.endswith(("q_proj", "k_proj"))
        return in_fused or self.name.endswith(("v_proj", "kv_b_proj"))

    @property
    def is_down(self) -> bool:
        """Whether it is the last matrix of an MLP or of an expert."""
        return self.name.endswith("down_proj")

    @property
    def is_output(self) -> bool:
        """Whether it is the last matrix of attention."""
        return self.name.endswith("o_proj")

    @property
    def has_more_bits(self) -> bool:
        """Whether the layer is in the first or last eighth, or every third between."""
        eighth = self.layers // 8
        return self.layer < eighth or self.layer >= 7 * self.layers // 8 or (self.layer - eighth) % 3 == 2

    @property
    def experts(self) -> int:
        """Experts of the model's layers; 0 without."""
        return max((int(layer.mlp.experts) for layer in self.model.layers if isinstance(layer.mlp, MoeMlp)), default=0)

    @property
    def shared_heads(self) -> int:
        """Query heads that share a KV head."""
        attention = self.model.layers[self.layer].attention
        return int(attention.heads // attention.kv_heads) if isinstance(attention, GroupedAttention) else 1


def _some_wider(usual: str) -> Callable[[Place], str]:
    return lambda place: "Q6_K" if (place.is_v or place.is_down) and place.has_more_bits else usual


def _q4_k_s(place: Place) -> str:
    early = (place.is_v and place.layer < 4) or (place.is_down and place.layer < place.layers // 8)
    return "Q5_K" if early else "Q4_K"


def _q3_k_m(place: Place) -> str:
    if place.is_v or place.is_down:
        wider_layers = 2 if place.is_v else place.layers // 16
        return "Q5_K" if place.layer < wider_layers else "Q4_K"
    return "Q4_K" if place.is_output and place.experts != 8 else "Q3_K"


def _q2_k(place: Place) -> str:
    if place.is_v:
        return "Q4_K" if place.shared_heads >= 4 else "Q3_K"
    return "Q3_K" if place.is_down or (place.is_output and place.experts != 8) else "Q2_K"


def _always(name: str) -> Callable[[Place], str]:
    return lambda place: name


MIXTURES: dict[str, Callable[[Place], str]] = {
    **{"q4_k_m": _some_wider("Q4_K"), "q5_k_m": _some_wider("Q5_K"), "q4_k_s": _q4_k_s, "q3_k_m": _q3_k_m, "q2_k": _q2_k},
    "mxfp4_moe": lambda place: "MXFP4" if ".experts." in place.name else "Q8_0",
    **{name: _always(name.upper()) for name in ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q6_k", "iq4_xs")},
    **{"q5_k_s": _always("Q5_K"), "q3_k_s": _always("Q3_K")},
}
"""Type of a matrix by the name of the mixture, in lower case."""
SMALL = ("q2_k", "q3_k_s", "q3_k_m", "q4_k_s", "q4_k_m", "iq4_xs")
"""Mixtures that store the last matrix of attention wider in models with eight experts."""


def type_of(mixture: str, place: Place) -> str:
    """The type of the matrix at ``place``, whatever its number of inputs."""
    kind = MIXTURES[mixture](place)
    if mixture == "mxfp4_moe":
        return kind
    if place.experts == 8 and (place.is_v or place.name.endswith("k_proj")):
        return "Q8_0"
    if place.experts == 8 and place.is_output and mixture in SMALL:
        return "Q5_K"
    is_70b = place.model.architecture == "llama" and place.layers == 80
    return "Q5_K" if is_70b and place.is_v and kind in ("Q3_K", "Q4_K") else kind


def fitting(name: str, inputs: Number) -> MatrixFormat:
    """The type ``name``, or the one that replaces it in a matrix whose inputs are no whole blocks."""
    return TYPES[name if inputs % BLOCKS[name][0] == 0 else FALLBACKS.get(name, "Q8_0")]


def in_gguf(model: ModelSpec, mixture: str) -> ModelSpec:
    """``model`` with each matrix as in a GGUF file of ``mixture``; a tied embedding is stored as the head."""
    count = len(model.layers)
    layers, stored_layers = [], dict[tuple[int, LayerFormats], Layer]()  # equal layers are one object
    for index, layer in enumerate(model.layers):
        matrices = {matrix.stored: matrix for op in operations(model, layer) for matrix in op.matrices if matrix.stored}
        types = {name: type_of(mixture, Place(name, index, count, model)) for name in matrices}
        formats = tuple((name, fitting(types[name], matrix.inputs)) for name, matrix in matrices.items())
        layers.append(stored_layers.setdefault((id(layer), formats), replace(layer, formats=formats)))
    main = MIXTURES[mixture](Place("", count // 8, count, model))
    last = fitting("Q8_0" if main == "Q8_0" or mixture == "mxfp4_moe" else "Q6_K", model.hidden)
    quantized = Quantized(mixture, (Rule(TYPES[main]),))
    table = last if model.tied_embeddings else fitting(main, model.hidden)
    return replace(model, layers=tuple(layers), draft=(), head_format=last, table_format=table, quantized=quantized)
