"""How a tape comes about: operations of a transformer, each with what it keeps."""

from __future__ import annotations

from perfmodel.core.arith import Number, ceil_div
from perfmodel.core.dtypes import DROPOUT_MASK_SIZE, STATISTIC_SIZE
from perfmodel.transformer.training.lora import is_targeted
from perfmodel.transformer.training.matrices import Matrix
from perfmodel.transformer.training.shape import Shape
from perfmodel.transformer.training.tape import Node, Tape


class Recorder:
    """A tape under construction. Every method adds an operation and returns the name of the tensor that it makes."""

    def __init__(self, shape: Shape, stream: str) -> None:
        self.shape = shape
        self.tape = Tape(stream, {stream: shape.own_tokens * shape.hidden * shape.size}, parts={stream: "residual"})
        self.part = ""

    def tensor(self, name: str, size: Number) -> str:
        """A tensor of ``size`` bytes."""
        self.tape.sizes[name] = size
        self.tape.parts[name] = self.part
        return name

    def activation(self, name: str, tokens: Number, features: Number) -> str:
        """A tensor of tokens x features in the format of activations."""
        return self.tensor(name, tokens * features * self.shape.size)

    def add(self, node: Node) -> None:
        """One more operation."""
        self.tape.nodes.append(node)

    # Weights

    def weight_gradients(self, elements: Number, shards: int | None = None) -> tuple[Number, Number]:
        """Bytes that stay of the gradients of ``elements`` weights, and bytes that are there only while they are made."""
        s = self.shape
        shards = s.gradient_shards if shards is None else shards
        stays = s.kept_gradient * ceil_div(elements, shards)
        alone = s.kept_gradient == s.gradient_size and shards == 1
        return stays, 0 if alone else elements * s.gradient_size

    def linear(
        self, name: str, inputs: str, outputs: str, tokens: Number, matrices: list[Matrix], *, biases: Number = 0, gathered: Number = 0
    ) -> str:
        """``inputs`` times ``matrices`` side by side, and the adapters beside them if there are any.

        ``gathered``: bytes of input or output that sequence-parallel GPUs put together while it runs.
        """
        adapted = [] if self.shape.rank is None else [matrix for matrix in matrices if is_targeted(matrix, self.shape.targets)]
        trained = sum(matrix.elements for matrix in matrices) + biases if self.shape.rank is None else 0
        stays, passing = self.weight_gradients(trained)
        made = self.activation(f"{outputs}, frozen part" if adapted else outputs, tokens, sum(matrix.outputs for matrix in matrices))
        saves = (inputs,) if self.shape.rank is None else ()
        self.add(Node(name, (inputs,), (made,), saves, stays, gathered, gathered + passing))
        return self._adapters(name, inputs, made, outputs, tokens, adapted) if adapted else outputs

    def _adapters(self, name: str, inputs: str, frozen: str, outputs: str, tokens: Number, adapted: list[Matrix]) -> str:
        """Low-rank paths beside frozen matrices: they keep their input and what lies between A and B."""
        rank = self.shape.rank or 0
        between = self.activation(f"{outputs}, low rank", tokens, rank * len(adapted))
        stays, passing = self.weight_gradients(rank * sum(matrix.inputs for matrix in adapted))
        self.add(Node(f"{name}, A", (inputs,), (between,), (inputs,), stays, 0, passing))
        stays, passing = self.weight_gradients(rank * sum(matrix.outputs for matrix in adapted))
        result = self.activation(f"{outputs}, adapter's part", tokens, sum(matrix.outputs for matrix in adapted))
        self.add(Node(f"{name}, B", (between,), (result,), (between,), stays, 0, passing))
        self.tensor(outputs, self.tape.sizes[frozen])
        self.add(Node(f"{name}, sum", (frozen, result), (outputs,), adds=True))
        return outputs

    # Operations without matrices

    def norm(
        self, name: str, inputs: str, outputs: str, tokens: Number, features: Number, *, rows: Number = 1, kind: str | None = None
    ) -> str:
        """A norm over ``features`` in ``rows`` pieces: keeps its input and a statistic or two per row."""
        layer = (kind or self.shape.norm) == "layer"
        self.activation(outputs, tokens, features)
        statistics = self.tensor(f"statistics of {name}", (2 if layer else 1) * STATISTIC_SIZE * tokens * rows)
        learned = features // rows * (2 if layer else 1) if self.shape.rank is None else 0
        stays, passing = self.weight_gradients(learned)
        self.add(Node(name, (inputs,), (outputs, statistics), (inputs, statistics), stays, 0, passing))
        return outputs

    def dropout(self, name: str, inputs: str, outputs: str, elements: Number) -> str:
        """Keeps which elements stay, a byte each; nothing if there is no dropout."""
        if not self.shape.dropout:
            return inputs
        self.tensor(outputs, self.tape.sizes[inputs])
        mask = self.tensor(f"mask of {name}", elements * DROPOUT_MASK_SIZE)
        self.add(Node(name, (inputs,), (outputs, mask), (mask,)))
        return outputs

    def residual(self, name: str, stream: str, branch: str, outputs: str) -> str:
        """The sum of the residual stream and a branch: keeps nothing, and hands its gradient to both."""
        self.tensor(outputs, self.tape.sizes[stream])
        self.tape.parts[outputs] = "residual"
        self.add(Node(name, (stream, branch), (outputs,), adds=True))
        return outputs
