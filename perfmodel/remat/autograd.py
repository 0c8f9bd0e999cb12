"""Tensors that autograd keeps of a chain of linear layers, with or without ReLUs: for which gradient, and until when.

A layer z_i = x_i W_i keeps x_i, for dW_i = x_i^T dz_i; W_i, which dx_i = dz_i W_i^T needs, is in memory anyway. x_(i+1) = ReLU(z_i) keeps
its result, as backward needs its sign; the next layer keeps the same tensor. A tensor that nothing keeps is freed as soon as it is used.

A simple framework may allocate the gradient of a value with the value (eager), so that both are held to the end of the forward pass.
PyTorch allocates it when backward needs it (lazy), and frees value and gradient once used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

from perfmodel.core.arith import Number
from perfmodel.core.frozen import dataclass
from perfmodel.remat.chain import Chain


@dataclass(frozen=True, slots=True)
class TapeRecord:
    """One operation on the tape: the tensor that it ``keeps``, the gradient that needs it, and the backward step that frees it."""

    operation: str
    keeps: str
    size: Number
    purpose: str
    freed_by: str


def _operations(chain: Chain, relu: bool) -> Iterator[tuple[str, int, str]]:
    """The operations in order, each with the number of the value that it keeps, and the gradient that needs it."""
    for i in range(len(chain)):
        activated = relu and i < len(chain) - 1
        result = f"z{i}" if activated else f"x{i + 1}"
        yield f"{result} = x{i} W{i}", i, f"dW{i}"
        if activated:
            yield f"x{i + 1} = ReLU(z{i})", i + 1, f"dz{i}: its sign"


def records(chain: Chain, relu: bool = False) -> list[TapeRecord]:
    """Operations with the tensor that each keeps, in the order of the forward pass; a tensor that is kept already takes no more bytes.

    ``relu``: each layer but the last ends in one.
    """
    freed_by, tape = dict[int, str](), []
    for operation, value, purpose in _operations(chain, relu):
        size = 0 if value in freed_by else chain.sizes[value]
        freed_by.setdefault(value, operation)  # the first operation that keeps a value is the last that backward reaches
        tape.append(TapeRecord(operation, f"x{value}", size, purpose, freed_by[value]))
    return tape


def eager_bytes(chain: Chain, layers: Number) -> Number:
    """Bytes of values and gradients after ``layers`` layers of the forward pass, the gradient of a value allocated with it.

    >>> from perfmodel.remat.chain import uniform
    >>> [eager_bytes(uniform(3, output=32), layers) for layers in (1, 2, 3)]
    [64, 128, 192]
    """
    return 2 * lazy_bytes(chain, layers)


def lazy_bytes(chain: Chain, layers: Number) -> Number:
    """Bytes of values after ``layers`` layers of the forward pass, without the chain's input; no gradient is allocated before backward.

    >>> from perfmodel.remat.chain import uniform
    >>> [lazy_bytes(uniform(3, output=32), layers) for layers in (1, 2, 3)]
    [32, 64, 96]
    """
    if chain.uniform:
        return layers * chain.layers[0].output
    return sum(chain.sizes[1 : layers + 1])


@dataclass(frozen=True, slots=True)
class Picture:
    """Two timelines of a chain, each a pair for every step: its end, and the bytes that it takes.

    ``eager``: with gradients allocated beside values; ``lazy``: with gradients as they are needed.
    """

    chain: Chain
    records: Sequence[TapeRecord]
    eager: Sequence[tuple[Number, Number]]
    lazy: Sequence[tuple[Number, Number]]

    @property
    def eager_peak(self) -> Number:
        """Bytes that forward ends with, and backward keeps."""
        return max(size for _, size in self.eager)

    @property
    def lazy_peak(self) -> Number:
        """Most bytes at any step."""
        return max(size for _, size in self.lazy)


def picture(chain: Chain, relu: bool = False) -> Picture:
    """Both ways to allocate gradients, side by side; weights and their gradients among the bytes. A ReLU takes no time."""
    costs = [layer.forward for layer in chain.layers] + [layer.backward for layer in reversed(chain.layers)]
    constant = chain.input + 2 * chain.weights
    forward_bytes = [constant + eager_bytes(chain, layer + 1) for layer in range(len(chain))]
    backward_bytes = [forward_bytes[-1]] * (len(chain) - 1) + [forward_bytes[-1] + chain.input]  # the gradient of the input comes last
    eager = list(zip(accumulate(costs), forward_bytes + backward_bytes, strict=True))
    return Picture(chain, records(chain, relu), eager, list(_lazy(chain, relu)))


def _lazy(chain: Chain, relu: bool) -> Iterator[tuple[Number, Number]]:
    """End and bytes of every step; a gradient is allocated when backward needs it, and freed with its value once both are used."""
    last, now = len(chain) - 1, 0
    held = chain.input + chain.weights
    for i, layer in enumerate(chain.layers):
        now += layer.forward
        held += layer.output
        yield now, held
        if relu and i < last:
            yield now, held + layer.output  # z_i beside x_(i+1), its ReLU; then z_i is freed
    yield now, held + chain.sizes[-1]  # the last output beside its gradient; then the output is freed
    for i, layer in reversed([*enumerate(chain.layers)]):
        if relu and i < last:
            yield now, held + layer.output  # dz_i beside x_(i+1) and its gradient; then these two are freed
            held -= layer.output
        now += layer.backward
        held += layer.weights + chain.sizes[i]  # the gradients of W_i and of x_i
        yield now, held
        held -= layer.output  # the gradient of the layer's result
        if i > 0 and not relu:  # with ReLUs, the one before this layer still needs x_i
            held -= chain.sizes[i]
