"""What autograd keeps of a chain of linear layers, with or without a ReLU after each: for which gradient, and until when.

z_i = x_i W_i keeps x_i, for dW_i = x_i^T dz_i; W_i, which dx_i = dz_i W_i^T needs, is there anyway. x_(i+1) = ReLU(z_i) keeps its result,
whose sign its backward needs and which the next layer keeps for itself. A tensor that nothing keeps goes as soon as it is used.

Gradients: a framework of one's own may allocate the gradient of a value with the value, so that forward holds both to the end; or
when backward gets there, and let value and gradient go once used, as PyTorch does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from perfmodel.core.arith import Number
from perfmodel.remat.chain import Chain, ChainLayer
from perfmodel.transformer.training.tape import Tape, TapeNode


@dataclass(frozen=True, slots=True)
class TapeRecord:
    """One operation on the tape, the tensor that it ``keeps``, for which gradient, and whose backward step lets it go."""

    operation: str
    keeps: str
    size: Number
    purpose: str
    freed_by: str


def _operations(chain: Chain, relu: bool) -> Iterator[tuple[TapeNode, str]]:
    """The operations in order, each with the gradient that it keeps its tensor for."""
    last = len(chain) - 1
    for layer, record in enumerate(chain.layers):
        source, result = f"x{layer}", f"x{layer + 1}"
        activated = relu and layer < last
        made = f"z{layer}" if activated else result
        name = f"{made} = {source} W{layer}"
        yield TapeNode(name=name, reads=(source,), writes=(made,), saves=(source,), gradients=record.weights), f"dW{layer}"
        if activated:
            yield TapeNode(name=f"{result} = ReLU({made})", reads=(made,), writes=(result,), saves=(result,)), f"d{made}: its sign"


def tape(chain: Chain, relu: bool = False) -> Tape:
    """The tape of ``chain``; ``relu``: each layer but the last ends in one."""
    nodes = [node for node, _ in _operations(chain, relu)]
    sizes = {f"x{i}": size for i, size in enumerate(chain.sizes)}
    inner = {name: sizes[f"x{int(name[1:]) + 1}"] for node in nodes for name in node.writes if name.startswith("z")}
    return Tape(stream="x0", sizes=sizes | inner, nodes=nodes)


def records(chain: Chain, relu: bool = False) -> list[TapeRecord]:
    """Every operation with what it keeps, in the order of the forward pass; what is kept already takes nothing more."""
    found = tape(chain, relu)
    freed, told, lines = found.saved(), set[str](), []
    for node, purpose in _operations(chain, relu):
        [kept] = node.saves
        lines.append(TapeRecord(node.name, kept, 0 if kept in told else found.sizes[kept], purpose, freed[kept]))
        told.add(kept)
    return lines


def eager_bytes(chain: Chain, layers: Number) -> Number:
    """Values and gradients after ``layers`` layers of the forward pass, the gradient of a value allocated with it.

    >>> from perfmodel.remat.chain import uniform
    >>> [eager_bytes(uniform(3, output=32), layers) for layers in (1, 2, 3)]
    [64, 128, 192]
    """
    return 2 * lazy_bytes(chain, layers)


def lazy_bytes(chain: Chain, layers: Number) -> Number:
    """Values alone: the chain's input is not among them, and no gradient is allocated before backward.

    >>> from perfmodel.remat.chain import uniform
    >>> [lazy_bytes(uniform(3, output=32), layers) for layers in (1, 2, 3)]
    [32, 64, 96]
    """
    if chain.uniform:
        return layers * chain.layers[0].output
    return sum(chain.sizes[1 : layers + 1])


@dataclass(frozen=True, slots=True)
class Picture:
    """(end, bytes) of every step: ``eager`` with gradients from the start, ``lazy`` with gradients as they are needed."""

    chain: Chain
    records: Sequence[TapeRecord]
    eager: Sequence[tuple[Number, Number]]
    lazy: Sequence[tuple[Number, Number]]

    @property
    def eager_peak(self) -> Number:
        """Bytes that forward ends with, and backward keeps."""
        return max(taken for _, taken in self.eager)

    @property
    def lazy_peak(self) -> Number:
        """The most at any step."""
        return max(taken for _, taken in self.lazy)


def picture(chain: Chain, relu: bool = False) -> Picture:
    """Both ways to allocate gradients, side by side; weights and their gradients among the bytes. A ReLU takes no time."""
    ends = list(accumulate([layer.forward for layer in chain.layers] + [layer.backward for layer in reversed(chain.layers)]))
    beside = chain.input + 2 * chain.weights
    grown = [beside + eager_bytes(chain, layer + 1) for layer in range(len(chain))]
    whole = grown[-1] + chain.input  # the gradient of the input comes last
    eager = list(zip(ends, [*grown, *[grown[-1]] * (len(chain) - 1), whole], strict=True))
    return Picture(chain, records(chain, relu), eager, _walk(chain, tape(chain, relu)))


def _walk(chain: Chain, made: Tape) -> list[tuple[Number, Number]]:
    """Forward, loss and backward over ``made``, with what each step takes while it runs."""
    sizes, kept, costs = made.sizes, made.saved(), _costs(chain, made)
    last = {name: index for index, node in enumerate(made.nodes) for name in node.reads}
    live, steps, now, weights = {made.stream}, list[tuple[Number, Number]](), 0, chain.weights
    held: Number = sizes[made.stream]
    for index, node in enumerate(made.nodes):
        live.update(node.writes)
        held += sum(sizes[name] for name in node.writes)
        now += costs[node.name].forward
        steps.append((now, held + weights))
        gone = {n for n in (*node.reads, *node.writes) if n in live and n not in kept and n != made.out and last.get(n, -1) <= index}
        live -= gone
        held -= sum(sizes[name] for name in gone)
    steps.append((now, held + sizes[made.out] + weights))
    held -= sizes[made.out]
    gradients = sizes[made.out]
    for node in reversed(made.nodes):
        weights += node.gradients
        gradients += sum(sizes[name] for name in node.reads)
        now += costs[node.name].backward
        steps.append((now, held + gradients + weights))
        gradients -= sum(sizes[name] for name in node.writes)
        held -= sum(sizes[name] for name in node.saves if kept[name] == node.name)
    return steps


def _costs(chain: Chain, made: Tape) -> dict[str, ChainLayer]:
    """The layer of each matmul by its name; a ReLU costs nothing."""
    matmuls = [node.name for node in made.nodes if node.reads[0] in node.saves]
    return {node.name: ChainLayer(0, 0) for node in made.nodes} | dict(zip(matmuls, chain.layers, strict=True))
