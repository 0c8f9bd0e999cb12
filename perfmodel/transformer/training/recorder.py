"""The operations of a layer on autograd's tape, as fused kernels keep them: one entry per kernel of a well-written training loop.

Norms keep their input and statistics, matrices their input, the activation function its input, attention Q, K, V, its output and
the logsumexp (or, without FlashAttention, the scores), dropout a byte per element, the loss the softmax of the logits in fp32.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from perfmodel.core.arith import Number, ceil_div
from perfmodel.core.dtypes import DROPOUT_MASK_SIZE, STATISTIC_SIZE
from perfmodel.transformer.layer import (
    CHOSEN,
    EXPERTS,
    HEAD,
    Matrix,
    Operation,
    first_operations,
    last_operations,
    local_layer,
    operations,
    summed,
)
from perfmodel.transformer.spec import GroupedAttention, Layer, MoeMlp
from perfmodel.transformer.step import share
from perfmodel.transformer.training.matrices import is_targeted
from perfmodel.transformer.training.question import Recomputation, Shape
from perfmodel.transformer.training.tape import Tape, TapeNode

TOKEN_SIZE, INDEX_SIZE = 8, 4
"""Bytes of a token's number in PyTorch, and of a number that says which expert, or which row."""


class Recorder:
    """A tape under construction: a method per kind of operation; kinds without one record nothing.

    ``layer``: as one GPU sees it; None for an end of the model. ``table_sums``: tensors as large as a tied table that the sum of its
    two gradients takes for a while, 1 if it is made in place.
    """

    name = "fused"
    title = "one kernel each for norm, RoPE, activation function, attention's steps, softmax and loss"
    core = frozenset({"attention", "Q K^T", "softmax", "attention's dropout", "P V"})
    """Operations of a layer that selective recomputation runs again."""
    table_sums = 1

    def __init__(self, shape: Shape, layer: Layer | None = None) -> None:
        self.shape, self.part = shape, ""
        if layer is not None:
            self.attended, self.mlp = layer.attention, layer.mlp

    @classmethod
    def tape_of(cls, where: Layer | str, shape: Shape, *, selective: bool = False) -> Tape:
        """The tape of a layer, of the embedding or of the head. ``selective``: the attention core runs again."""
        model, p = shape.model, shape.parallel
        if where == HEAD:
            return cls(shape).record(last_operations(model, p.tp))
        if isinstance(where, str):
            return cls(shape).record(first_operations(model, p.tp, dropout=shape.dropout))
        tape = cls(shape, local_layer(where, p.tp)).record(operations(model, where, p.tp, p.ep, dropout=shape.dropout))
        if selective:
            tape.again = cls.core & {node.name for node in tape.nodes}
        return tape

    def record(self, found: Sequence[Operation]) -> Tape:
        """The tape of operations."""
        s, stream = self.shape, (*found[0].reads, found[0].writes)[0]
        self.tape = Tape(stream, {stream: s.own_tokens * s.hidden * s.size}, parts={stream: "residual"})
        for op in found:
            self.part = op.part
            if hasattr(self, op.kind):
                getattr(self, op.kind)(op)
        return self.tape

    @staticmethod
    def constant() -> Number:
        """Bytes that are held all the time."""
        return 0

    @staticmethod
    def waiting(shape: Shape, recompute: Recomputation) -> Number:
        """Bytes of a micro-batch from its forward to its backward pass, besides what the tapes say."""
        return 0

    # Parts of operations

    def tensor(self, name: str, size: Number) -> str:
        """A tensor of ``size`` bytes."""
        self.tape.sizes[name] = size
        self.tape.parts[name] = self.part
        return name

    def made(self, name: str, tokens: Number, features: Number) -> str:
        """A tensor of tokens x features in the format of activations."""
        return self.tensor(name, tokens * features * self.shape.size)

    def node(self, name: str, reads: Iterable[str], writes: str, size: Number, saves: Iterable[str] = (), scratch: Number = 0) -> str:
        """An operation that makes one tensor of ``size`` bytes. ``scratch``: of its backward pass."""
        self.add_node(name, reads, [self.tensor(writes, size)], saves, 0, 0, scratch)
        return writes

    def add_node(self, name: str, reads: Iterable[str], writes: Iterable[str], saves: Iterable[str] = (), *more: Number) -> None:
        """One more entry; ``more``: bytes of gradients that stay, of scratch and of scratch in the backward pass."""
        self.tape.nodes.append(TapeNode(name, tuple(reads), tuple(writes), tuple(saves), *more))

    def sum(self, name: str, reads: tuple[str, ...], writes: str, size: Number) -> None:
        """A sum: keeps nothing, and hands its gradient to each of ``reads``."""
        self.tape.nodes.append(TapeNode(name, reads, (self.tensor(writes, size),), adds=True))

    def tokens(self, op: Operation) -> Number:
        """Tokens of what ``op`` writes."""
        return self.shape.own_tokens if op.own else self.shape.tokens

    @property
    def gathered(self) -> Number:
        """Bytes of the hidden state of the tokens that other sequence-parallel GPUs hold, or of their partial sums."""
        s = self.shape
        return (s.tokens - s.own_tokens) * s.hidden * s.size

    def gradients(self, elements: Number, shards: int | None = None) -> tuple[Number, Number]:
        """Bytes that stay of the gradients of ``elements`` weights, and bytes that are there only while they are made."""
        s = self.shape
        shards = s.gradient_shards if shards is None else shards
        stays = s.kept_gradient * ceil_div(elements, shards)
        alone = s.kept_gradient == s.gradient_size and shards == 1
        return stays, 0 if alone else elements * s.gradient_size

    def trained(self, elements: Number, shards: int | None = None) -> tuple[Number, Number]:
        """The same of weights that adapters leave as they are."""
        return self.gradients(elements if self.shape.rank is None else 0, shards)

    # Matrices

    def linear(self, op: Operation) -> None:
        """A matmul, and the adapters beside it if there are any."""
        s, [inputs] = self.shape, op.reads
        adapted = [] if s.rank is None else [matrix for matrix in op.matrices if is_targeted(matrix, s.targets)]
        stays, passing = self.trained(sum(matrix.elements for matrix in op.matrices) + op.vectors)
        gathered = self.gathered if op.gathers else 0
        made = self.made(f"{op.writes}, frozen part" if adapted else op.writes, self.tokens(op), op.features)
        self.add_node(op.name, op.reads, [made], op.reads if s.rank is None else (), stays, gathered, gathered + passing)
        if adapted:
            self._adapters(op, inputs, made, adapted)

    def _adapters(self, op: Operation, inputs: str, frozen: str, adapted: list[Matrix]) -> None:
        """Low-rank paths beside frozen matrices: they keep their input and what lies between A and B."""
        rank, tokens, outputs = self.shape.rank or 0, self.tokens(op), op.writes
        between = self.made(f"{outputs}, low rank", tokens, rank * len(adapted))
        stays, passing = self.gradients(rank * sum(matrix.inputs for matrix in adapted))
        self.add_node(f"{op.name}, A", [inputs], [between], [inputs], stays, 0, passing)
        stays, passing = self.gradients(rank * sum(matrix.outputs for matrix in adapted))
        result = self.made(f"{outputs}, adapter's part", tokens, sum(matrix.outputs for matrix in adapted))
        self.add_node(f"{op.name}, B", [between], [result], [between], stays, 0, passing)
        self.sum(f"{op.name}, sum", (frozen, result), outputs, self.tape.sizes[frozen])

    # Operations without matrices

    def norm(self, op: Operation) -> None:
        """A norm over the hidden state or a latent; the latter's is an RMS norm whatever the model's norms are."""
        kind = self.shape.model.norm if op.own else "rms"
        self._norm(op.name, op.reads[0], op.writes, self.tokens(op), op.features, 1, op.vectors, statistics=2 if kind == "layer" else 1)

    def _norm(
        self, name: str, reads: str, writes: str, tokens: Number, features: Number, heads: Number, learned: Number, statistics: int = 1
    ) -> None:
        """Keeps its input and a statistic or two per vector."""
        self.made(writes, tokens, features)
        kept = self.tensor(f"statistics of {name}", statistics * STATISTIC_SIZE * tokens * heads)
        stays, passing = self.trained(learned)
        self.add_node(name, [reads], [writes, kept], [reads, kept], stays, 0, passing)

    def qk_norm(self, op: Operation) -> None:
        """Of Q and K, head by head."""
        a = self.attended
        assert isinstance(a, GroupedAttention)
        for name, heads in zip(op.reads, (a.heads, a.kv_heads), strict=True):
            self._norm(f"norm of {name}", name, f"{name}, normed", self.shape.tokens, heads * a.head_dim, heads, a.head_dim)

    def dropout(self, op: Operation) -> None:
        """Of a hidden state."""
        self.dropped(op.name, op.reads[0], op.writes, self.shape.own_tokens * self.shape.hidden)

    def dropped(self, name: str, inputs: str, outputs: str, elements: Number) -> str:
        """Keeps which elements stay, a byte each; nothing if there is no dropout."""
        if not self.shape.dropout:
            return inputs
        self.tensor(outputs, self.tape.sizes[inputs])
        mask = self.tensor(f"mask of {name}", elements * DROPOUT_MASK_SIZE)
        self.add_node(name, [inputs], [outputs, mask], [mask])
        return outputs

    def add(self, op: Operation) -> None:
        """The sum of the residual stream and a branch."""
        self.sum(op.name, op.reads, op.writes, self.tape.sizes[op.reads[0]])

    join = add

    def activation(self, op: Operation) -> None:
        """The activation function and its gate in one kernel."""
        tokens = self.shape.tokens * self.mlp.experts_per_token if isinstance(self.mlp, MoeMlp) and op.part == EXPERTS else self.tokens(op)
        self.node(op.name, op.reads, op.writes, tokens * op.features * self.shape.size, op.reads)

    # Attention

    def split(self, op: Operation) -> None:
        """Q, K and V from what the projections made."""
        a, tokens = self.attended, self.shape.tokens
        if isinstance(a, GroupedAttention):
            keys = a.kv_heads * a.head_dim
            sizes = {"Q": a.heads * a.head_dim, "K": keys, "V": keys}
        else:
            sizes = {"K": a.heads * a.qk_head_dim, "V": a.heads * a.v_head_dim}
        self.add_node(op.name, op.reads, [self.made(name, tokens, size) for name, size in sizes.items()])

    def attention(self, op: Operation) -> None:
        """Scores, softmax, dropout and the weighted sum of V: in one kernel, or each on its own with the scores in memory."""
        s, heads = self.shape, self.attended.heads
        stays, passing = self.trained(op.vectors)
        if s.flash:
            self.made(op.writes, s.tokens, op.features)
            lse = self.tensor("logsumexp", STATISTIC_SIZE * s.tokens * heads)
            # dQ is added up in fp32, beside the row sums of dO O (FlashAttention-2, Dao 2023, section 3.1)
            scratch = STATISTIC_SIZE * (self.tape.sizes[op.reads[0]] // s.size + s.tokens * heads)
            self.add_node("attention", op.reads, [op.writes, lse], [*op.reads, op.writes, lse], stays, 0, scratch + passing)
            return
        (q, k, v), scores = op.reads, s.tokens * s.keys * heads
        self.node("Q K^T", (q, k), "scores", scores * s.size, (q, k))
        self.tensor("softmax", scores * s.size)
        self.add_node("softmax", ["scores"], ["softmax"], ["softmax"], stays, 0, passing)
        weights = self.dropped("attention's dropout", "softmax", "softmax after dropout", scores)
        self.node("P V", (weights, v), op.writes, s.tokens * op.features * s.size, (weights, v))

    # Experts: every one gets as many tokens

    def router(self, op: Operation) -> None:
        """Router in fp32, and tokens sent to their experts."""
        s, mlp, [inputs] = self.shape, self.mlp, op.reads
        assert isinstance(mlp, MoeMlp)
        pairs = s.tokens * mlp.experts_per_token
        stays, passing = self.trained(sum(matrix.elements for matrix in op.matrices) + op.vectors + s.hidden * int(mlp.shared_gate))
        self.tensor(op.writes, 4 * s.tokens * op.features)
        saved = [*([inputs] if s.rank is None else []), op.writes]
        self.add_node("router", [inputs], [op.writes], saved, stays, self.gathered, self.gathered + passing)
        chosen = [self.tensor(CHOSEN, 4 * pairs), self.tensor("indices of the chosen", INDEX_SIZE * pairs)]
        self.add_node("choice of experts", [op.writes], chosen, chosen)
        self.part = EXPERTS
        sent = self.made("tokens sent to experts", pairs, s.hidden)
        self.add_node("dispatch", [inputs], [sent], chosen[1:])

    def experts(self, op: Operation) -> None:
        """A matmul for each expert on this GPU. Their gradients are shared with those of other expert-parallel groups only."""
        s, mlp = self.shape, self.mlp
        assert isinstance(mlp, MoeMlp)
        shards = max(s.gradient_shards // s.parallel.ep, 1)
        stays, passing = self.trained(sum(matrix.elements for matrix in op.matrices) + op.vectors, shards)
        self.made(op.writes, s.tokens * mlp.experts_per_token, op.features)
        self.add_node(op.name, op.reads, [op.writes], op.reads if s.rank is None else (), stays, 0, passing)

    def combine(self, op: Operation) -> None:
        """The weighted sum of what a token's experts made."""
        self.made(op.writes, self.shape.own_tokens, op.features)
        saved = [op.reads[0], CHOSEN, "indices of the chosen"]
        self.add_node(op.name, op.reads, [op.writes], saved, 0, self.gathered, self.gathered)

    # The ends of the model

    def embedding(self, op: Operation) -> None:
        """Lookup and, if learned, positions. The gradient of a table that is the head's as well is added to that one."""
        s, [table, *positions] = self.shape, op.matrices
        tied = self.shape.model.tied_embeddings and s.parallel.pp == 1
        elements, more = (summed(each.elements for each in group) if s.rank is None else 0 for group in ([table], positions))
        stays, passing = self.gradients(more if tied else elements + more)
        scratch = self.table_sums * elements * s.gradient_size if tied else passing
        self.made(op.writes, s.own_tokens, s.hidden)
        self.tape.stream = self.tensor("tokens", 0)  # those are there before and after the step
        self.add_node("embedding", (), [op.writes], (), stays, self.gathered, max(scratch, passing))

    def loss(self, op: Operation) -> None:
        """Softmax and loss are one kernel, whose gradient overwrites the softmax."""
        s, columns = self.shape, share(self.shape.model.vocab, self.shape.parallel.tp)
        kept = [self.tensor("softmax of the logits", 4 * s.tokens * columns)]
        kept.append(self.tensor("labels", TOKEN_SIZE * s.tokens))
        self.tensor("loss", 4)
        self.add_node("loss", op.reads, ["loss", *kept], kept)
