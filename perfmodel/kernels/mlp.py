"""Two linear layers with a ReLU between them, forward and backward: x [B, d_in] W1, ReLU, W2 -> y [B, d_out].

Each operation is a separate kernel and moves each operand once, as in standard attention; ``perfmodel matmul`` prices the tiles of one
layer. Biases are left out. The first layer needs no gradient of its input unless one is asked for.
"""

from __future__ import annotations

from perfmodel.core.arith import Number, ceil_div
from perfmodel.core.checks import positive_int
from perfmodel.core.cost import READ, WRITE, Access, Kernel, Work, matmul_work, memory_bytes, once
from perfmodel.core.dtypes import DTYPES, Dtype
from perfmodel.core.explain import explain_kernels, sourced, with_symbols
from perfmodel.core.frozen import dataclass
from perfmodel.core.hardware import Device
from perfmodel.core.roofline import Estimate, estimate, total
from perfmodel.core.trace import FormulaStep, Trace
from perfmodel.core.workload import BACKWARD, FORWARD

SOURCE = "chain rule of a linear layer: y = x W, dW = x^T dy, dx = dy W^T; each operand moved once per kernel"


@dataclass(frozen=True, slots=True)
class Mlp:
    """x [batch, d_in] -> a1 = ReLU(x W1) [batch, d_hidden] -> y = a1 W2 [batch, d_out]; ``input_gradient``: backward gives dx too."""

    batch: Number
    d_in: Number
    d_hidden: Number
    d_out: Number
    input_gradient: bool = False
    dtype: Dtype = DTYPES["fp16"]

    def check(self) -> Mlp:
        """This workload, if every value has a meaning; else UsageError names the option and the fix."""
        for option in ("batch", "d_in", "d_hidden", "d_out"):
            positive_int(option.replace("_", "-"), getattr(self, option))
        return self

    def sizes(self) -> dict[str, Number]:
        """Elements of each tensor; a gradient has the size of its tensor."""
        x, hidden, y = self.batch * self.d_in, self.batch * self.d_hidden, self.batch * self.d_out
        weights = {"W1": self.d_in * self.d_hidden, "W2": self.d_hidden * self.d_out}
        tensors = {"x": x, "z1": hidden, "a1": hidden, "y": y, **weights}
        return {**tensors, **{f"d{name}": size for name, size in tensors.items()}}


def layer_flops(rows: Number, inputs: Number, outputs: Number) -> Number:
    """FLOP of one matmul of a linear layer: forward one of them, backward one per gradient.

    >>> layer_flops(32, 1024, 4096)
    268435456
    """
    return 2 * rows * inputs * outputs


def forward_flops(w: Mlp) -> Number:
    """FLOP of the forward pass: 2 B (d_in d_hidden + d_hidden d_out).

    >>> forward_flops(Mlp(32, 1024, 4096, 1024))
    536870912
    """
    return layer_flops(w.batch, w.d_in, w.d_hidden) + layer_flops(w.batch, w.d_hidden, w.d_out)


def backward_flops(w: Mlp) -> Number:
    """Twice the forward FLOP, less the gradient of the input if it is not needed.

    >>> backward_flops(Mlp(32, 1024, 4096, 1024)), backward_flops(Mlp(32, 1024, 4096, 1024, input_gradient=True))
    (805306368, 1073741824)
    """
    first = (2 if w.input_gradient else 1) * layer_flops(w.batch, w.d_in, w.d_hidden)
    return first + 2 * layer_flops(w.batch, w.d_hidden, w.d_out)


def _accesses(w: Mlp, reads: tuple[str, ...], write: str, handed: tuple[str, ...]) -> tuple[Access, ...]:
    sizes = w.sizes()
    fusible = ("z1", "da1")  # a matmul can apply the ReLU before it stores: the bound must hold for it too
    moved = [(name, READ) for name in reads] + [(write, WRITE)]
    return tuple(
        once(name, kind, sizes[name], w.dtype.size, compulsory=0 if name in fusible else None, handoff=name in handed)
        for name, kind in moved
    )


def _product(w: Mlp, formula: str, *handed: str) -> Kernel:
    """The matmul of ``formula``, such as dW1 = x^T dz1. ``handed``: tensors that one kernel hands to the next."""
    write, reads = formula.replace("^T", "").split(" = ")
    flop = layer_flops(w.batch, *((w.d_in, w.d_hidden) if "W1" in formula else (w.d_hidden, w.d_out)))
    work = matmul_work(w.dtype, flop)
    return Kernel(formula, w.dtype, _accesses(w, tuple(reads.split()), write, handed), flop, flop, work, work)


def forward(w: Mlp) -> list[Kernel]:
    """Kernels of the forward pass: z1 = x W1, a1 = ReLU(z1), y = a1 W2.

    >>> [kernel.name for kernel in forward(Mlp(32, 1024, 4096, 1024))]
    ['z1 = x W1', 'a1 = ReLU(z1)', 'y = a1 W2']
    """
    handed = ("z1", "a1")
    relu = Kernel("a1 = ReLU(z1)", w.dtype, _accesses(w, ("z1",), "a1", handed), work=Work(0, w.batch * w.d_hidden))
    return [_product(w, "z1 = x W1", *handed), relu, _product(w, "y = a1 W2", *handed)]


def backward(w: Mlp) -> list[Kernel]:
    """Kernels of the gradients: dW2 = a1^T dy, da1 = dy W2^T, dz1 = da1 where a1 > 0, dW1 = x^T dz1, and dx = dz1 W1^T if asked for.

    >>> [kernel.flops for kernel in backward(Mlp(32, 1024, 4096, 1024))]
    [268435456, 268435456, 0, 268435456]
    """
    handed = ("da1", "dz1")
    relu = Kernel("dz1 = da1 (a1 > 0)", w.dtype, _accesses(w, ("da1", "a1"), "dz1", (*handed, "a1")), work=Work(0, w.batch * w.d_hidden))
    second = [_product(w, "dW2 = a1^T dy", *handed), _product(w, "da1 = dy W2^T", *handed, "dy")]
    input_gradient = [_product(w, "dx = dz1 W1^T", *handed)] if w.input_gradient else []
    return [*second, relu, _product(w, "dW1 = x^T dz1", *handed), *input_gradient]


@dataclass(frozen=True, slots=True)
class Cached:
    """Bytes kept from the forward to the backward pass: x for dW1, a1 for dW2.

    ReLU needs one bit per element, which a1 > 0 gives; ``sign_bits``: bytes of these bits if a1 is recomputed or dropped.
    """

    x: Number
    a1: Number
    sign_bits: Number

    @property
    def total(self) -> Number:
        """Bytes of x and a1."""
        return self.x + self.a1


def cached(w: Mlp) -> Cached:
    """Bytes that the backward pass needs from the forward pass.

    >>> cached(Mlp(32, 1024, 4096, 1024))
    Cached(x=65536, a1=262144, sign_bits=16384)
    """
    hidden = w.batch * w.d_hidden
    return Cached(w.batch * w.d_in * w.dtype.size, hidden * w.dtype.size, ceil_div(hidden, 8))


@dataclass(frozen=True, slots=True)
class MlpResult:
    """One pass on one device: kernels, their estimates, the total, and the bytes of all tensors at once."""

    direction: str
    kernels: list[tuple[Kernel, Estimate]]
    total: Estimate
    memory_bytes: int


KERNELS = {FORWARD: forward, BACKWARD: backward}


def evaluate(w: Mlp, device: Device, direction: str) -> MlpResult:
    """Result of one pass. UnavailableError if the device has no peak for the dtype."""
    kernels = [(kernel, estimate(kernel, device)) for kernel in KERNELS[direction](w)]
    memory = int(memory_bytes([kernel for kernel, _ in kernels]))
    return MlpResult(direction, kernels, total(cost for _, cost in kernels), memory)


_SYMBOLS = {
    "batch": ("B", "rows of x"),
    "d_in": ("d_in", "columns of x"),
    "d_hidden": ("d_hidden", "columns of a1"),
    "d_out": ("d_out", "columns of y"),
}


def explain(w: Mlp, device: Device, direction: str) -> list[FormulaStep]:
    """The formula of every number of one pass, as steps; a step uses the results of earlier ones."""
    trace = Trace()
    w = with_symbols(trace, w, _SYMBOLS)
    listed = explain_kernels(trace, KERNELS[direction](w), device, w.dtype)
    trace.define("memory", "bytes", memory_bytes(listed), "every tensor of the pass allocated at once")
    saved = cached(w)
    trace.define("cached x", "B, for dW1", saved.x)
    trace.define("cached a1", "B, for dW2 and the ReLU", saved.a1)
    trace.define("cached", "B, from forward to backward", saved.total)
    trace.define("sign bits", "B, one bit per element of a1", saved.sign_bits)
    return sourced(trace, SOURCE)
