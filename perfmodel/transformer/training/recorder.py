"""Tensors that autograd saves of a layer, one tape entry per kernel, for a training loop with fused kernels.

Saved for backward: by norms, their input and statistics; by matmuls and activation functions, their input; by attention, Q, K, V, its
output and the logsumexp (without FlashAttention, the scores); by dropout, a mask of a byte per element; by the loss, the softmax of the
logits in fp32. Sizes are bytes on one GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from perfmodel.core.arith import Number, ceil_div
from perfmodel.core.dtypes import DROPOUT_MASK_SIZE, STATISTIC_SIZE
from perfmodel.transformer.layer import local_layer, operations_at
from perfmodel.transformer.operation import CHOSEN, EXPERTS, Matrix, Operation
from perfmodel.transformer.spec import GroupedAttention, LatentAttention, Layer, MoeMlp
from perfmodel.transformer.step import share
from perfmodel.transformer.training.matrices import Shape, is_targeted
from perfmodel.transformer.training.question import Recomputation
from perfmodel.transformer.training.tape import Tape, TapeNode

CHOSEN_INDICES = "indices of the chosen"
TOKEN_SIZE, INDEX_SIZE = 8, 4
"""Bytes of a token id in PyTorch, and of an index of an expert or a row."""


class Recorder:
    """Builds a tape: one method per kind of operation; a kind without a method records nothing.

    ``layer``: one GPU's part of a layer; None for embedding and head. ``table_sums``: number of temporary tensors as large as the embedding
    table while the two gradients of a tied table are added; 1 if the sum is in place. ``workspaces``: bytes held during the whole step.
    """

    name = "fused"
    title = "one kernel each for norm, RoPE, activation function, attention's steps, softmax and loss"
    core = frozenset({"attention", "Q K^T", "softmax", "attention's dropout", "P V"})
    """Operations that selective recomputation runs again."""
    table_sums, workspaces = 1, 0

    def __init__(self, shape: Shape, layer: Layer | None = None) -> None:
        self.shape, self.part = shape, ""
        if layer is not None:
            self.attended, self.mlp = layer.attention, layer.mlp

    @classmethod
    def tape_of(cls, where: Layer | str, shape: Shape, *, selective: bool = False) -> Tape:
        """The tape of a layer, the embedding or the head. ``selective``: with recomputation of the attention core."""
        p = shape.parallel
        layer = local_layer(where, p.tp) if isinstance(where, Layer) else None
        tape = cls(shape, layer).record(operations_at(where, shape.model, p.tp, p.ep, dropout=shape.dropout))
        if selective:
            tape.rerun = cls.core & {node.name for node in tape.nodes}
        return tape

    def record(self, operations: Sequence[Operation]) -> Tape:
        """The tape of ``operations``, in order. The stream is what the first of them reads, or writes if it reads nothing."""
        s, first = self.shape, operations[0]
        stream = first.reads[0] if first.reads else first.writes
        self.tape = Tape(stream, {stream: s.local_tokens * s.hidden * s.size}, parts={stream: "residual"})
        for op in operations:
            self.part = op.part
            if hasattr(self, op.kind):
                getattr(self, op.kind)(op)
        return self.tape

    @staticmethod
    def bytes_until_backward(shape: Shape, recompute: Recomputation) -> Number:
        """Bytes that a micro-batch holds between forward and backward pass, beside tensors on the tapes."""
        return 0

    # Parts of operations

    def tensor(self, name: str, size: Number) -> str:
        """Adds a tensor of ``size`` bytes; returns its name."""
        self.tape.sizes[name] = size
        self.tape.parts[name] = self.part
        return name

    def size(self, tokens: Number, features: Number) -> Number:
        """Bytes of activations [tokens, features]."""
        return tokens * features * self.shape.size

    def node(
        self,
        name: str,
        reads: Iterable[str],
        writes: dict[str, Number],
        saves: Iterable[str] = (),
        *,
        weights: Number = 0,
        shards: int | None = None,
        adapter: bool = False,
        scratch: Number = 0,
        backward: Number = 0,
    ) -> str:
        """Adds an entry; returns the name of the first tensor that it writes. ``writes``: bytes by tensor.

        ``weights``: trained elements (frozen if there are adapters); ``shards``: GPUs that divide their gradients. ``scratch``,
        ``backward``: bytes held only while it runs, forward and backward, without gradients of weights.
        """
        kept_gradients, temporary_gradients = self.gradients(weights, shards, adapter=adapter)
        written = tuple(self.tensor(tensor, size) for tensor, size in writes.items())
        node = TapeNode(name, tuple(reads), written, tuple(saves), kept_gradients, scratch, backward + temporary_gradients)
        self.tape.nodes.append(node)
        return written[0]

    def sum(self, name: str, reads: tuple[str, ...], writes: str, size: Number) -> None:
        """Adds a sum: it saves nothing, and each of ``reads`` gets its gradient."""
        self.tape.nodes.append(TapeNode(name, reads, (self.tensor(writes, size),), adds=True))

    def tokens(self, op: Operation) -> Number:
        """Number of tokens in the output of ``op`` on one GPU."""
        return self.shape.local_tokens if op.own else self.shape.tokens

    @property
    def gathered(self) -> Number:
        """Bytes of hidden state that sequence parallelism gathers from other GPUs, or of partial sums that it scatters to them."""
        s = self.shape
        return (s.tokens - s.local_tokens) * s.hidden * s.size

    def gradients(self, elements: Number, shards: int | None = None, *, adapter: bool = False) -> tuple[Number, Number]:
        """Bytes of the gradients of ``elements`` weights that stay, and temporary bytes while they are computed."""
        s = self.shape
        if s.rank is not None and not adapter:
            return 0, 0
        shards = s.parallel.dp if shards is None else shards
        kept = s.kept_gradient * ceil_div(elements, shards)
        kept_as_computed = s.kept_gradient == s.size and shards == 1
        return kept, 0 if kept_as_computed else elements * s.size

    # Matrices

    def linear(self, op: Operation) -> None:
        """A matmul, and the adapters beside it if there are any."""
        s, gathered = self.shape, self.gathered if op.gathers else 0
        adapted = [] if s.rank is None else [matrix for matrix in op.matrices if is_targeted(matrix, s.targets)]
        result = f"{op.writes}, frozen part" if adapted else op.writes
        writes = {result: self.size(self.tokens(op), op.features)}
        saves = op.reads if s.rank is None else ()
        self.node(op.name, op.reads, writes, saves, weights=learned(op), scratch=gathered, backward=gathered)
        if adapted:
            self._adapters(op, result, adapted)

    def _adapters(self, op: Operation, frozen: str, adapted: list[Matrix]) -> None:
        """Low-rank adapters beside frozen matrices: they save their input and the product with A."""
        rank, tokens = self.shape.rank or 0, self.tokens(op)
        inputs, outputs = sum(matrix.inputs for matrix in adapted), sum(matrix.outputs for matrix in adapted)
        written = {f"{op.writes}, low rank": self.size(tokens, rank * len(adapted))}
        between = self.node(f"{op.name}, A", op.reads, written, op.reads, weights=rank * inputs, adapter=True)
        written = {f"{op.writes}, adapter's part": self.size(tokens, outputs)}
        result = self.node(f"{op.name}, B", [between], written, [between], weights=rank * outputs, adapter=True)
        self.sum(f"{op.name}, sum", (frozen, result), op.writes, self.tape.sizes[frozen])

    # Operations without matrices

    def norm(self, op: Operation) -> None:
        """A norm over the hidden state, or over a latent vector, which is always an RMS norm."""
        kind = self.shape.model.norm if op.own else "rms"
        self._norm(op.name, op.reads[0], op.writes, self.tokens(op), op.features, 1, op.vectors, statistics=2 if kind == "layer" else 1)

    def _norm(
        self, name: str, reads: str, writes: str, tokens: Number, features: Number, heads: Number, weights: Number, statistics: int = 1
    ) -> None:
        """Adds a norm: it saves its input and one or two statistics per vector, of which a token has ``heads``."""
        kept = f"statistics of {name}"
        written = {writes: self.size(tokens, features), kept: statistics * STATISTIC_SIZE * tokens * heads}
        self.node(name, [reads], written, [reads, kept], weights=weights)

    def qk_norm(self, op: Operation) -> None:
        """Norms of Q and K, one vector per head, or one of all heads."""
        a = self.attended
        assert isinstance(a, GroupedAttention)
        for name, heads in zip(op.reads, (a.heads, a.kv_heads), strict=True):
            width, vectors = heads * a.head_dim, 1 if a.whole_norm else heads
            weights = width // vectors
            self._norm(f"norm of {name}", name, f"{name}, normed", self.shape.tokens, width, vectors, weights)

    def dropout(self, op: Operation) -> None:
        """Dropout on the hidden state."""
        self.dropped(op.name, op.reads[0], op.writes, self.shape.local_tokens * self.shape.hidden)

    def dropped(self, name: str, inputs: str, outputs: str, elements: Number) -> str:
        """Adds dropout, which saves a mask of a byte per element; without dropout it returns ``inputs``."""
        if not self.shape.dropout:
            return inputs
        mask = f"mask of {name}"
        return self.node(name, [inputs], {outputs: self.tape.sizes[inputs], mask: elements * DROPOUT_MASK_SIZE}, [mask])

    def add(self, op: Operation) -> None:
        """The sum of the residual stream and a branch."""
        self.sum(op.name, op.reads, op.writes, self.tape.sizes[op.reads[0]])

    join = add

    def activation(self, op: Operation) -> None:
        """The activation function and its gate in one kernel."""
        tokens = self.pairs if op.part == EXPERTS else self.tokens(op)
        self.node(op.name, op.reads, {op.writes: self.size(tokens, op.features)}, op.reads)

    # Attention

    def split(self, op: Operation) -> None:
        """Q, K and V out of the results of the projections."""
        a, tokens = self.attended, self.shape.tokens
        if isinstance(a, GroupedAttention):
            keys = a.kv_heads * a.head_dim
            sizes = {"Q": a.heads * a.head_dim, "K": keys, "V": keys}
        else:
            assert isinstance(a, LatentAttention)
            sizes = {"K": a.heads * a.qk_head_dim, "V": a.heads * a.v_head_dim}
        self.node(op.name, op.reads, {name: self.size(tokens, features) for name, features in sizes.items()})

    def attention(self, op: Operation) -> None:
        """Attention as one kernel (FlashAttention), or Q K^T, softmax, dropout and P V as separate kernels with the scores in memory."""
        s, heads = self.shape, self.attended.heads
        written = {op.writes: self.size(s.tokens, op.features)}
        scores = s.tokens * s.keys * heads
        if s.flash:
            # dQ is added up in fp32, beside the row sums of dO O (FlashAttention-2, Dao 2023, section 3.1)
            scratch = STATISTIC_SIZE * (self.tape.sizes[op.reads[0]] // s.size + s.tokens * heads)
            written["logsumexp"] = STATISTIC_SIZE * s.tokens * heads
            self.node("attention", op.reads, written, [*op.reads, *written], weights=op.vectors, backward=scratch)
            return
        q, k, v = op.reads
        self.node("Q K^T", (q, k), {"scores": scores * s.size}, (q, k))
        self.node("softmax", ["scores"], {"softmax": scores * s.size}, ["softmax"], weights=op.vectors)
        weights = self.dropped("attention's dropout", "softmax", "softmax after dropout", scores)
        self.node("P V", (weights, v), written, (weights, v))

    # Experts: tokens spread evenly over them

    @property
    def pairs(self) -> Number:
        """(token, expert) pairs: tokens times experts per token."""
        assert isinstance(self.mlp, MoeMlp)
        return self.shape.tokens * self.mlp.experts_per_token

    def router(self, op: Operation) -> None:
        """The router in fp32, the choice of experts, and the dispatch of tokens to them."""
        s, mlp = self.shape, self.mlp
        assert isinstance(mlp, MoeMlp)
        weights = learned(op) + s.hidden * int(mlp.shared_gate)
        saved = (*op.reads, op.writes) if s.rank is None else (op.writes,)
        written = {op.writes: 4 * s.tokens * op.features}
        self.node("router", op.reads, written, saved, weights=weights, scratch=self.gathered, backward=self.gathered)
        chosen = {CHOSEN: 4 * self.pairs, CHOSEN_INDICES: INDEX_SIZE * self.pairs}
        self.node("choice of experts", [op.writes], chosen, chosen)
        self.part = EXPERTS
        self.node("dispatch", op.reads, {"tokens sent to experts": self.size(self.pairs, s.hidden)}, [CHOSEN_INDICES])

    def experts(self, op: Operation) -> None:
        """A matmul for each expert on this GPU. Only GPUs with the same experts (dp / ep of them) divide the gradients."""
        s, writes = self.shape, {op.writes: self.size(self.pairs, op.features)}
        saves = op.reads if s.rank is None else ()
        self.node(op.name, op.reads, writes, saves, weights=learned(op), shards=max(s.parallel.dp // s.parallel.ep, 1))

    def combine(self, op: Operation) -> None:
        """The weighted sum of the outputs of a token's experts."""
        writes = {op.writes: self.size(self.shape.local_tokens, op.features)}
        saves = (op.reads[0], CHOSEN, CHOSEN_INDICES)
        self.node(op.name, op.reads, writes, saves, scratch=self.gathered, backward=self.gathered)

    # The ends of the model

    def embedding(self, op: Operation) -> None:
        """Lookup and, if learned, positions. The gradient of a tied table is added to the head's."""
        s, [table, *positions] = self.shape, op.matrices
        tied = s.model.tied_embeddings and s.parallel.pp == 1
        weights = sum(matrix.elements for matrix in positions) + (0 if tied else table.elements)
        table_sum = self.table_sums * table.elements * s.size if tied and s.rank is None else 0
        _, temporary_gradients = self.gradients(weights)
        backward = max(table_sum - temporary_gradients, 0)
        self.tape.stream = self.tensor("tokens", 0)  # tokens take no bytes of the pass: they are there before and after the step
        writes = {op.writes: self.size(s.local_tokens, s.hidden)}
        self.node("embedding", (), writes, weights=weights, scratch=self.gathered, backward=backward)

    def loss(self, op: Operation) -> None:
        """Softmax and loss in one kernel; in backward, its gradient overwrites the softmax."""
        s, columns = self.shape, share(self.shape.model.vocab, self.shape.parallel.tp)
        kept = {"softmax of the logits": 4 * s.tokens * columns, "labels": TOKEN_SIZE * s.tokens}
        self.node("loss", op.reads, {"loss": 4, **kept}, kept)


def learned(op: Operation) -> Number:
    """Number of weights of ``op``, in matrices and vectors."""
    return sum(matrix.elements for matrix in op.matrices) + op.vectors
