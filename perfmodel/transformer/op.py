"""One row of a transformer: a kernel, how often it runs, and the request for its predicted time.

Every kernel stands alone: its operands come from DRAM and its result goes there, as when no cache keeps them. The bound of a whole pass
counts weights and KV cache only.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import replace
from functools import cache
from types import NoneType
from typing import Any, NamedTuple

from perfmodel.core.arith import Number, ceil_div, minimum
from perfmodel.core.cost import READ, WRITE, Access, Kernel, Tile, Work, in_bits, once, stored
from perfmodel.core.dtypes import DTYPES, Dtype, dtype_of_products
from perfmodel.core.frozen import dataclass
from perfmodel.core.kept import cached_by
from perfmodel.core.trace import plain
from perfmodel.core.workload import FORWARD, Attention, Stream
from perfmodel.kernels.attention.algorithms.flash2 import forward
from perfmodel.kernels.collectives import Collective
from perfmodel.kernels.experts import Experts
from perfmodel.kernels.latent_decode import LatentDecode, NarrowCacheAttention
from perfmodel.kernels.matmul import Matmul
from perfmodel.kernels.tile import product_tile, tile_rows
from perfmodel.transformer.operation import Matrix
from perfmodel.transformer.spec import DenseMlp, ModelSpec, MoeMlp
from perfmodel.transformer.step import DECODE, ModelPass
from perfmodel.transformer.weight_formats._base import MatrixFormat

WEIGHTS, CACHE = "weights", "KV cache"
"""Tensors that live longer than a step; every other one is an activation."""
FRESH = "K and V"
"""K and V that the step itself has made, so that an L2 may hold them."""
BY_SEQUENCE = ("KV up projection", "Q times W_UK", "W_UV of the result")
"""Products of latent attention whose rows are a prompt's cached tokens, or the tokens of decoding sequences only."""
MATMUL, ATTENTION, ELEMENTWISE, COLLECTIVE = "matmul", "attention", "elementwise", "collective"

PLAIN = {int, NoneType}
"""Types of sizes that are plain numbers, without a formula: rows built from them are cached."""
KEY_TILE = 64
"""Columns of the roof's attention tile: FlashAttention-2's for head dims from 128 on."""


class Timed(NamedTuple):
    """Request of a prediction: ``workload`` under the name of its calibrations.

    ``implementations``: the first calibrated one is taken; None: the fastest calibrated fused one, of those in ``candidates`` if the device
    has one. ``obstacle``: why no calibration covers it. ``strided``: it reads or writes a slice of a wider matrix. ``preferred``: a more
    specific workload, asked for first. ``direction``: pass of the kernel. ``fallback``: request on devices without a peak for the
    workload's format. ``calibrated``: the format of the calibrations, if it differs. ``similar``: phrase on the kernels that they time, if
    this is a different one, so that the interval is wider; ``slower``: factor by which it takes longer than those, apart from its start.
    """

    kind: str
    workload: Any
    implementations: tuple[str, ...] | None
    obstacle: str = ""
    strided: bool = False
    preferred: Timed | None = None
    direction: str = FORWARD
    fallback: Timed | None = None
    calibrated: str = ""
    similar: str = ""
    slower: float = 1.0
    candidates: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Op:
    """``count`` runs of one kernel in a step. ``group``: matmul, attention, elementwise or collective.

    ``compute_dtype``: a narrower format that it may multiply in, as stored operands allow, if the device does.
    """

    name: str
    group: str
    count: Number
    kernel: Kernel
    timed: Timed | None = None
    compute_dtype: Dtype | None = None

    def __hash__(self) -> int:
        """Hash of the fields that distinguish most ops, as rows are looked up by the thousand."""
        kernel = self.kernel
        return hash((self.name, self.count, kernel.flops, kernel.work.vector, kernel.accesses[0].elements if kernel.accesses else 0))

    @property
    def by_sequence(self) -> bool:
        """Whether its time depends on the length of each sequence, not only on the number of tokens."""
        return self.group == ATTENTION or self.name in BY_SEQUENCE

    @property
    def exchange(self) -> Collective | None:
        """The collective that GPUs run, if the op is one."""
        return self.timed.workload if self.timed is not None and isinstance(self.timed.workload, Collective) else None

    def bytes_of(self, *tensors: str, kind: str = "") -> Number:
        """Least bytes of these tensors in one run: reads and writes, or one ``kind`` of access."""
        moved = (access for access in self.kernel.accesses if access.tensor in tensors and kind in ("", access.kind))
        return sum(access.compulsory * access.element_size for access in moved)

    @property
    def activation_bytes(self) -> Number:
        """Bytes of its inputs and outputs besides weights and KV cache."""
        long_lived = (WEIGHTS, CACHE)
        return sum(a.compulsory * a.element_size for a in self.kernel.accesses if a.tensor not in long_lived)

    def times(self, factor: Number) -> Op:
        """This op, run ``factor`` times as often."""
        return replace(self, count=self.count * factor)


def stored_as(step: ModelPass, name: str) -> MatrixFormat:
    """The format of the matrix ``name``: the checkpoint's own, else that of all weights."""
    for matrix, form in step.formats:
        if matrix == name:
            return form
    return _format_of_all_weights(step.weight_bits, step.integer_weights)


@cache
def _format_of_all_weights(bits: int, integer: bool) -> MatrixFormat:
    kind = "int" if integer else "fp"
    return MatrixFormat(f"{kind}{bits}", bits, compute_dtype="fp8" if (kind, bits) == ("fp", 8) else "")


def widest(step: ModelPass, matrices: tuple[Matrix, ...]) -> MatrixFormat:
    """The widest format of the matrices that one kernel multiplies; without any, that of all weights."""
    names = [matrix.stored for matrix in matrices] or [""]
    return max((stored_as(step, name) for name in names), key=lambda form: form.bits)


def matrix_bytes(step: ModelPass, matrices: tuple[Matrix, ...]) -> Number:
    """Bytes of ``matrices``, scales included."""
    return sum(stored_as(step, matrix.stored).bytes(matrix.inputs, matrix.outputs) for matrix in matrices)


def _read(access: Access, step: ModelPass, matrices: tuple[Matrix, ...]) -> Access:
    """``access`` to the elements of ``matrices``, in the bytes of their stored formats."""
    if not step.formats or not matrices:
        return in_bits(access, WEIGHTS, step.weight_bits)
    size, elements = matrix_bytes(step, matrices), sum(matrix.inputs * matrix.outputs for matrix in matrices)
    sizes = {name: ceil_div(getattr(access, name) * size, elements) for name in ("elements", "footprint", "compulsory")}
    return access._replace(tensor=WEIGHTS, element_size=1, **sizes)


def _linear_key(name: str, step: ModelPass, *sizes: Number, matrices: tuple[Matrix, ...] = (), **more: Number | None) -> Hashable:
    """Cache key of ``linear``; None if a size is no plain int, but has a formula or is an array."""
    if not {*map(type, (*sizes, *more.values()))} <= PLAIN:
        return None
    formats = tuple(stored_as(step, matrix.stored) for matrix in matrices)
    weights = bool(step.formats), step.weight_bits, step.integer_weights
    kernels = step.kernels.products, step.kernels.narrow_products
    return name, sizes, *more.items(), matrices, formats, weights, step.dtype, step.tile, kernels


@cached_by(_linear_key)
def linear(
    name: str,
    step: ModelPass,
    rows: Number,
    inputs: Number,
    outputs: Number,
    *,
    matrices: tuple[Matrix, ...] = (),
    bias: Number = 0,
    batch: Number = 1,
    stores: Number | None = None,
) -> Op:
    """Kernel of x [rows, inputs] W [inputs, outputs], ``batch`` times. ``bias``: learned numbers added to the result.

    ``matrices``: the parts of W; none if W is never stored narrower than the rest of the weights. ``stores``: columns that are written, if
    an element-wise operation inside the kernel leaves fewer than ``outputs``.
    """
    w = Matmul(rows, outputs, inputs, batch, dtype=step.dtype)
    [product] = w.kernels(product_tile((rows, outputs), step.tile))
    a, b, c = product.accesses
    if stores is not None:
        c = once(c.tensor, WRITE, batch * rows * stores, step.dtype.size)
    extra = (stored(WEIGHTS, READ, bias, step.weight_bits),) if bias else ()
    kernel = product._replace(name=name, accesses=(a, _read(b, step, matrices), c, *extra))
    timed, compute_dtype = product_timed(w, step, widest(step, matrices))
    return Op(name, MATMUL, 1, kernel, timed, compute_dtype)


def product_timed(w: Matmul, step: ModelPass, form: MatrixFormat) -> tuple[Timed, Dtype | None]:
    """The prediction to request for a product with weights in ``form``, and its ``Op.compute_dtype``.

    fp8 and fp4 weights are multiplied in their format if the device does so, and x is rounded before. Other weights are dequantised inside
    a product in the format of the activations: they stream at their width and are multiplied in 16 bits.
    """
    compute_dtype = multiplied_in(step, form)
    name = step.dtype.name
    usual = Timed("matmul", w, step.kernels.narrow_products if name == "fp8" else step.kernels.products)
    if form.bits == 8 * step.dtype.size and not form.is_integer:
        return usual, compute_dtype
    if step.dtype.size != 2:
        weights = f"{form.bits}-bit {'integer ' if form.is_integer else ''}weights"
        return usual._replace(obstacle=f"no kernel with {weights} and {name} activations is calibrated"), compute_dtype
    element_bytes = form.element_bytes(w.k, w.n)
    streamed = usual._replace(workload=replace(w, stored=element_bytes), similar=f"{name} products, with weights of {form.bits} bits")
    if compute_dtype is None:
        return streamed, None
    narrow = Timed("matmul", replace(w, dtype=compute_dtype), step.kernels.narrow_products, fallback=streamed)
    if compute_dtype.name != "fp8":
        words = "fp8 products, at the rates and bytes of fp4"
        narrow = narrow._replace(workload=replace(narrow.workload, stored=element_bytes), calibrated="fp8", similar=words)
    return narrow, compute_dtype


def experts_timed(w: Experts, step: ModelPass, form: MatrixFormat) -> Timed:
    """The prediction to request for a part of a layer's experts with weights in ``form``: kernels made for it, else similar ones.

    MXFP4 weights meet activations in 16 bits. Source: vllm-project/vllm, Mxfp4MoEMethod; NVFP4 and fp8 ones round them.
    """
    kernels, compute_dtype = step.kernels, multiplied_in(step, form)
    if form.bits == 8 * step.dtype.size and not form.is_integer:
        return Timed("moe", w, kernels.experts)
    narrow = replace(w, stored=form.element_bytes(w.hidden, w.width))
    words = f"{w.dtype.name} experts, with weights of {form.bits} bits"
    made_for_format = Timed("moe", narrow, kernels.mxfp4_experts if form.name == "mxfp4" else kernels.widened_experts)
    streamed = Timed("moe", narrow, kernels.experts, similar=words, preferred=made_for_format)
    if compute_dtype is None or form.name == "mxfp4":
        return streamed
    if compute_dtype.name == "fp8":
        return Timed("moe", replace(w, dtype=compute_dtype), kernels.experts, fallback=streamed)
    rounded, words = replace(narrow, dtype=compute_dtype), "fp8 experts, at the rates and bytes of fp4"
    made_for_fp4 = Timed("moe", rounded, kernels.nvfp4_experts, fallback=streamed)
    return Timed("moe", rounded, kernels.experts, fallback=streamed, calibrated="fp8", similar=words, preferred=made_for_fp4)


def rounding(step: ModelPass, rows: Number, matrices: tuple[Matrix, ...]) -> list[Op]:
    """The kernel that rounds x to the format of a product, if no earlier kernel does.

    Source: vllm-project/vllm, scaled_fp8_quant and per_token_group_quant_fp8; sgl-project/sglang, fp8_kernel.py.
    """
    form = widest(step, matrices)
    if not (step.kernels.rounds_apart and multiplied_in(step, form) is not None):
        return []
    inputs = matrices[0].inputs
    moved = activation(READ, rows * inputs, step), stored("activations", WRITE, rows * inputs, form.bits)
    return [stream("rounding of x", step, "copy", (None, None), ("scale", "torch-scale", rows, inputs), more=moved)]


def multiplied_in(step: ModelPass, form: MatrixFormat) -> Dtype | None:
    """The narrower format in which products of 16-bit activations with weights in ``form`` may run."""
    return dtype_of_products(form.compute_dtype) if form.compute_dtype and step.dtype.size == 2 else None


VECTOR_WORK = {"add": 1, "norm": 4, "layer norm": 6, "rotate": 3, "copy": 0, "silu-mul": 4, "gelu": 8}
"""Vector operations per element written. Norms: square, add, scale, weight; with a mean, two more. Rotation: two products, one sum."""
EXPONENTIALS = {"silu-mul": 1, "gelu": 1}


Moved = tuple[Number | None, Number | None]
"""Activations that a kernel reads and writes; None for no access."""
Like = tuple[str, str, Number, Number]
"""Workload name, implementation, rows and columns of a calibrated kernel."""


def _stream_key(name: str, step: ModelPass, op: str, moved: Moved, like: Like, **more: Any) -> Hashable:
    """Cache key of ``stream``; None as in ``_linear_key``."""
    _, _, rows, cols = like
    sizes = *moved, rows, cols, more.get("weights", 0), *(access.elements for access in more.get("more", ()))
    if not {*map(type, sizes)} <= PLAIN:
        return None
    return name, op, moved, like, *more.items(), step.dtype, step.weight_bits


@cached_by(_stream_key)
def stream(
    name: str,
    step: ModelPass,
    op: str,
    moved: Moved,
    like: Like,
    *,
    weights: Number = 0,
    more: tuple[Access, ...] = (),
    strided: bool = False,
) -> Op:
    """An element-wise kernel that does the operation ``op`` of ``VECTOR_WORK``. ``weights``: learned numbers that it reads.

    ``more``: accesses besides ``moved``; ``like``: the calibrated kernel with the same bytes.
    """
    read, written = moved
    accesses: list[Access] = []
    if read is not None:
        accesses.append(activation(READ, read, step))
    if written is not None:
        accesses.append(activation(WRITE, written, step))
    if weights:
        accesses.append(stored(WEIGHTS, READ, weights, step.weight_bits))
    accesses += more
    outputs = sum(access.elements for access in accesses if access.kind == WRITE)
    work = Work(0, VECTOR_WORK[op] * outputs, EXPONENTIALS.get(op, 0) * outputs)
    kernel = Kernel(name, step.dtype, tuple(accesses), work=work)
    kind, implementation, rows, cols = like
    inputs = 2 if implementation in ("torch-add", "torch-silu-mul") else 1
    timed_op, shared = implementation.removeprefix("torch-"), 0
    if kind == "norm":
        timed_op, shared = kind, sum(access.elements for access in accesses if access.tensor == WEIGHTS)
    elif implementation == "torch-rope":
        timed_op = op
    workload = Stream(timed_op, rows, cols, inputs, 1, shared, step.dtype)
    return Op(name, ELEMENTWISE, 1, kernel, Timed(kind, workload, (implementation,), strided=strided))


def activation(kind: str, elements: Number, step: ModelPass, tensor: str = "activations") -> Access:
    """``elements`` activations read or written once."""
    return once(tensor, kind, elements, step.dtype.size)


def total_bytes(ops: Iterable[Op], *tensors: str) -> Number:
    """Bytes of ``tensors`` over all runs of all ``ops``."""
    return sum(op.count * op.bytes_of(*tensors) for op in ops)


def collective(op: str, world: int, elements: Number, step: ModelPass) -> Op:
    """A row for ``op`` on ``elements`` activations."""
    w = Collective(op, world, elements * step.dtype.size, step.dtype)
    kernel = Kernel(w.title, step.dtype, (once("buffer", READ, elements, step.dtype.size),))
    return Op(w.title, COLLECTIVE, 1, kernel, Timed("collective", w, step.kernels.of_collective(op)))


def norm(name: str, model: ModelSpec, step: ModelPass, rows: Number, cols: Number, *, kind: str | None = None) -> Op:
    """A norm of ``rows`` vectors with learned weights."""
    elements = rows * cols
    if (kind or model.norm) == "layer":
        return stream(name, step, "layer norm", (elements, elements), ("norm", "torch-layer-norm", rows, cols), weights=cols * 2)
    return stream(name, step, "norm", (elements, elements), ("norm", "torch-rms-norm", rows, cols), weights=cols)


def activation_function(mlp: DenseMlp | MoeMlp, step: ModelPass, rows: Number, width: Number) -> Op:
    """SiLU x gate, or the activation function alone, as a separate kernel."""
    name = mlp.activation
    if name in ("silu", "swish"):
        name = "SiLU"
    elif "gelu" in name:
        name = "GELU"
    if not mlp.gated:
        return stream(name, step, "gelu", (rows * width, rows * width), ("scale", "torch-scale", rows, width))
    like = ("scale", "torch-silu-mul", rows, width)
    return stream(f"{name} x gate", step, "silu-mul", (2 * rows * width, rows * width), like, strided=True)


def rotate_and_keep(step: ModelPass, rotated: Number, kept: Number, queries: Number) -> list[Op]:
    """RoPE over ``rotated`` elements per token, and ``kept`` elements per token written to the cache; one kernel if fused."""
    tokens = step.tokens
    written = stored(CACHE, WRITE, tokens * kept, step.kv_bits)
    if step.fused and step.cached and rotated:
        moved = queries + kept
        elements, like = (tokens * moved, tokens * queries), ("scale", "torch-scale", tokens, moved)
        return [stream("RoPE and KV write", step, "rotate", elements, like, more=(written,))]
    ops = []
    if rotated:
        ops.append(stream("RoPE", step, "rotate", (tokens * rotated,) * 2, ("scale", "torch-rope", tokens, rotated)))
    if step.cached:
        like = ("scale", "torch-scale", tokens, kept)
        ops.append(stream("KV write", step, "copy", (tokens * kept, None), like, more=(written,), strided=True))
    return ops


def attend(w: Attention, step: ModelPass, *, sinks: Number = 0, latent: bool = False) -> Op:
    """Attention over the cache. ``latent``: V is the first part of K. ``sinks``: learned scores that join the softmax.

    With a single query the kernel gets only the last ``window`` keys. The query heads of decoding sequences that share a KV head are
    packed, drafted tokens included.
    """
    window, decoding = w.window, w.n == 1 or step.phase == DECODE
    if w.n == 1:
        w = replace(w, causal=False, kv_len=w.kv_len if window is None else minimum(w.kv_len, window), window=None)
    w = replace(w, packed=decoding or w.packed)
    rows = w.row_group * w.n
    [kernel] = forward(w, Tile(tile_rows(rows), KEY_TILE))
    key_tensor = CACHE if step.kv_len > step.n else FRESH
    accesses = []
    for access in kernel.accesses:
        if access.tensor not in ("K", "V"):
            accesses.append(access)
        elif access.tensor == "K" or not latent:
            accesses.append(in_bits(access, key_tensor, step.kv_bits))
    if sinks:
        accesses.append(stored(WEIGHTS, READ, sinks, step.weight_bits))
    fp8 = decoding and step.kv_bits == 8 and step.dtype.size == 2 and not step.integer_kv
    name = "attention" if window is None else f"attention, window {plain(window)}"
    timed = _latent_timed(w, step) if latent else _timed(w, step, fp8)
    compute_dtype = DTYPES["fp8"] if fp8 else None
    return Op(name, ATTENTION, 1, kernel._replace(name=name, accesses=tuple(accesses)), timed, compute_dtype)


def _timed(w: Attention, step: ModelPass, fp8: bool) -> Timed:
    """The prediction to request for attention. ``fp8``: whether it may multiply in fp8, narrower than the activations.

    Prompts attend to K and V as just made, or dequantised; decoding sequences read an integer cache like one in fp8.
    """
    if step.kv_bits == 8 * step.dtype.size and not step.integer_kv:
        return Timed("attention", w, None, candidates=step.kernels.attention)
    if step.kv_bits != 8 or step.dtype.size != 2:
        return Timed("attention", w, None, _no_cache_kernel(step))
    if w.n > 1 and step.phase != DECODE:
        words = f"attention over {step.dtype.name}, with a cache of 8 bits"
        return Timed("attention", w, None, candidates=step.kernels.attention, similar=words)
    sizes = {name: getattr(w, name) for name in ("n", "kv_len", "d", "dv", "batch", "heads", "kv_heads", "dtype")}
    narrow = NarrowCacheAttention(**sizes, packed=True, kv_bits=step.kv_bits)
    similar = "" if fp8 else "attention over an fp8 cache, with another one of 8 bits"
    return Timed("attention", narrow, step.kernels.narrow_attention, similar=similar)


def _latent_timed(w: Attention, step: ModelPass) -> Timed:
    """The prediction to request for latent attention. A row of the cache is K, and its first ``dv`` elements are V."""
    sizes = {name: getattr(w, name) for name in ("batch", "heads", "kv_len", "n", "dtype")}
    obstacle = "" if step.kv_bits in (8, 16) else _no_cache_kernel(step)
    cache = LatentDecode(**sizes, kv_lora_rank=w.dv, rope=w.d - w.dv, kv_bits=step.kv_bits, appends=False)
    similar = "latent attention over an fp8 cache, with integers of 8 bits" if step.integer_kv else ""
    return Timed("latent-attention", cache, step.kernels.latent_attention, obstacle, similar=similar)


def _no_cache_kernel(step: ModelPass) -> str:
    return f"no kernel with a {step.kv_bits}-bit {'integer ' if step.integer_kv else ''}cache is calibrated"
