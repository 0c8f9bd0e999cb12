"""What PyTorch's autograd saves for the modules of huggingface/transformers: one kernel per operation in their Python code.

Source: hooks on saved tensors and every storage traced over a step, transformers 5.17 in PyTorch 2.13; GPT-2, Llama and Qwen3; attention
eager and by scaled_dot_product_attention; no KV cache; the step drops the logits together with the model's output.
"""

from __future__ import annotations

from perfmodel.core.arith import Number
from perfmodel.core.dtypes import STATISTIC_SIZE
from perfmodel.core.errors import UnavailableError
from perfmodel.transformer.operation import Operation, linear
from perfmodel.transformer.spec import DenseMlp, GroupedAttention, Layer
from perfmodel.transformer.training.matrices import Shape
from perfmodel.transformer.training.question import Recomputation
from perfmodel.transformer.training.recorder import TOKEN_SIZE, Recorder

WORKSPACES = 2 * (32 + 1) * 2**20
"""Bytes. On Hopper, the forward and the backward thread each hold a workspace of 32 MiB for cuBLAS and 1 MiB for cuBLASLt.

Sources: PyTorch, aten/src/ATen/cuda/CublasHandlePool.cpp; memory allocated beside weights and state in steps on an H200.
"""


def check(layer: Layer, shape: Shape) -> None:
    """UnavailableError for layers that were not examined, and for parallel layouts and adapters."""
    a, p = layer.attention, shape.parallel
    plain_attention = isinstance(a, GroupedAttention) and not (a.shared_kv or a.sinks or a.whole_norm)
    if not plain_attention or not isinstance(layer.mlp, DenseMlp) or layer.norms != 2:
        words = f"{shape.model.name}: only layers like those of GPT-2, Llama and Qwen3 are known as huggingface's"
        raise UnavailableError(words, "take fused")
    divided = max(p.tp, p.pp, p.ep) > 1 or shape.length != shape.keys
    if divided or shape.rank is not None:
        fix = "leave out --tp, --pp, --cp, --ep and --lora, or take fused"
        raise UnavailableError("huggingface's modules are known for one GPU's whole model without adapters", fix)


class HuggingFace(Recorder):
    """GPT-2: one joint matrix for Q, K and V, GELU as separate operations. Llama, Qwen3: one matmul per matrix, RoPE."""

    name = "huggingface"
    title = "the modules of huggingface/transformers in PyTorch, one kernel per written operation"
    core = Recorder.core | {"scale", "mask", "softmax, rounding"}
    workspaces = WORKSPACES
    table_sums = 2  # a tied table's gradients, of the head and of the lookup, are added into a third tensor

    def __init__(self, shape: Shape, layer: Layer | None = None) -> None:
        super().__init__(shape, layer)
        self.joint = shape.model.learned_positions
        if layer is not None:
            check(layer, shape)

    @staticmethod
    def bytes_until_backward(shape: Shape, recompute: Recomputation) -> Number:
        """Bytes of the attention mask: recomputed layers keep it as an argument. Otherwise it is freed before the head runs."""
        kept = not shape.flash and recompute.of_layers
        return shape.sequences * shape.length * shape.length * shape.size if kept else 0

    def linear(self, op: Operation) -> None:
        """Records a matmul. Several matrices of one operation are recorded later, by ``_projection``, where their results are read."""
        self.listed = op
        if len(op.matrices) == 1:
            super().linear(op)
        elif self.joint:
            super().linear(op._replace(writes="Q, K, V"))

    def _projection(self, name: str, writes: str) -> str:
        """Records the matmul of one of several matrices of the operation last listed; returns the name of its result."""
        op = self.listed
        [matrix] = [matrix for matrix in op.matrices if matrix.name == name]
        super().linear(linear(f"{name} projection", op.reads[0], writes, [matrix], bool(op.vectors)))
        return writes

    # Norms

    def norm(self, op: Operation) -> None:
        """Records a norm: a layer norm is one kernel, an RMS norm several operations."""
        if self.shape.model.norm == "layer":
            super().norm(op)
        else:
            self._rms_norm(op.name, op.reads[0], op.writes, op.features, 1)

    def _rms_norm(self, name: str, inputs: str, outputs: str, features: Number, heads: Number) -> str:
        """Records x to fp32, x^2, 1 / sqrt(mean), x times that, back to the activations' format, times the weights."""
        s, x = self.shape, inputs
        size, fp32_size = s.tokens * features * s.size, 4 * s.tokens * features
        if s.size != 4:
            x = self.node(f"{name}, to fp32", [inputs], {f"{name}: input in fp32": fp32_size})
        square = self.node(f"{name}, square", [x], {f"{name}: squares": fp32_size}, [x], backward=2 * fp32_size)  # x and 2 x
        kept = f"{name}: inverse root"
        root = self.node(f"{name}, mean and root", [square], {kept: 4 * s.tokens * heads}, [kept])
        scaled = self.node(f"{name}, scale", (x, root), {f"{name}: scaled, fp32": fp32_size}, (x, root), backward=fp32_size)
        if s.size != 4:
            scaled = self.node(f"{name}, from fp32", [scaled], {f"{name}: scaled": size})
        return self.node(f"{name}, weights", [scaled], {outputs: size}, [scaled], weights=features // heads, backward=size)

    # Attention

    def split(self, op: Operation) -> None:
        """Records Q, K and V: with GPT-2 views of the joint result, else one projection each, then RoPE on Q and K."""
        a, s = self.attended, self.shape
        assert isinstance(a, GroupedAttention)
        rows = {"Q": a.heads, "K": a.kv_heads, "V": a.kv_heads}
        self.heads: tuple[str, ...] = ("Q", "K", "V")
        if not self.joint:
            self.heads = tuple(self._rotated(a, name, heads) for name, heads in rows.items())
            return
        self.tape.views.update((name, self.size(s.tokens, heads * a.head_dim)) for name, heads in rows.items())
        self.node("split", ["Q, K, V"], dict.fromkeys(self.heads, 0))

    def _rotated(self, a: GroupedAttention, name: str, heads: Number) -> str:
        """Records the projection of Q, K or V, then the norm of Q and K if there is one, and RoPE; returns the name of the result."""
        result = self._projection(name, f"{name}, projected")
        if name == "V":
            return result
        if a.qk_norm:
            result = self._rms_norm(f"norm of {name}", result, f"{name}, normed", heads * a.head_dim, heads)
        size = self.size(self.shape.tokens, heads * a.head_dim)
        return self.node(f"RoPE of {name}", [result], {name: size}, scratch=2 * size, backward=2 * size)

    def qk_norm(self, op: Operation) -> None:
        """Records nothing: ``split`` records it with the projections."""

    def attention(self, op: Operation) -> None:
        """Records scaled_dot_product_attention (FlashAttention-2 or cuDNN), which saves its inputs, its output and the logsumexp."""
        s, a = self.shape, self.attended
        assert isinstance(a, GroupedAttention)
        if not s.flash:
            self._eager(op, a)
            return
        written = {op.writes: self.size(s.tokens, op.features), "logsumexp": STATISTIC_SIZE * s.tokens * a.heads}
        scratch = STATISTIC_SIZE * s.tokens * a.heads * (a.head_dim + 1)  # dQ in fp32, row sums of dO O
        inputs = ("Q, K, V",) if self.joint else self.heads
        self.node("attention", self.heads, written, (*inputs, *written), backward=scratch)

    def _eager(self, op: Operation, a: GroupedAttention) -> None:
        """Records Q K^T, scale, mask, softmax, dropout, P V; Llama's softmax runs in fp32, then rounds. Each matmul copies its operands."""
        s = self.shape
        rows, elements = self.size(s.tokens, op.features), s.tokens * s.keys * a.heads
        scores, wide = elements * s.size, elements * (s.size if self.joint else 4)
        q, k, v = (f"{name}, copied" for name in ("Q", "K", "V"))
        result = self.node("Q K^T", self.heads[:2], {"scores": scores, q: rows, k: rows}, [q, k])
        result = self.node("scale", [result], {"scores, scaled": scores})
        self.sum("mask", (result,), "scores, masked", scores)
        result = self.node("softmax", ["scores, masked"], {"softmax": wide}, ["softmax"], backward=wide)  # its product with the gradient
        if wide != scores:
            result = self.node("softmax, rounding", [result], {"softmax, rounded": scores})
        result = self.dropped("attention's dropout", result, "softmax after dropout", elements)
        mixed = self.node("P V", [result, self.heads[2]], {"attention output by heads": rows, v: rows}, [result, v])
        self.node("heads side by side", [mixed], {op.writes: rows})

    # MLP

    def activation(self, op: Operation) -> None:
        """Records SiLU times the up projection, or GPT-2's GELU."""
        assert isinstance(self.mlp, DenseMlp)
        size = self.size(self.shape.tokens, op.features)
        if not self.mlp.gated:
            self._new_gelu(op.reads[0], op.writes, size)
            return
        up, gate = self._projection("up", "up"), self._projection("gate", "gate")
        active = self.node("activation function", [gate], {"gate after its activation function": size}, [gate])
        self.node("product with the gate", (active, up), {op.writes: size}, (active, up))

    def _new_gelu(self, x: str, writes: str, size: Number) -> None:
        """Records 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), one kernel per operation; autograd saves five tensors."""
        half = self.node("GELU, half of x", [x], {"x / 2": size})
        cube = self.node("GELU, cube", [x], {"x^3": size}, [x], backward=2 * size)  # backward makes x^2 and 3 x^2
        cube = self.node("GELU, factor of the cube", [cube], {"0.0447 x^3": size})
        inner = self.node("GELU, sum", (x, cube), {"x + 0.0447 x^3": size})
        inner = self.node("GELU, factor of the sum", [inner], {"argument of tanh": size})
        tanh = self.node("GELU, tanh", [inner], {"tanh": size}, ["tanh"])
        one_more = self.node("GELU, 1 + tanh", [tanh], {"1 + tanh": size})
        self.node("GELU, product", (half, one_more), {writes: size}, (half, one_more))

    # The ends of the model

    def embedding(self, op: Operation) -> None:
        """Records the lookup and, for RoPE, the tables of cosine and sine that every layer reads."""
        super().embedding(op)
        s, a = self.shape, self.shape.model.layers[0].attention
        if not self.joint and isinstance(a, GroupedAttention):
            tables = "cosine and sine"
            self.node("RoPE's tables", (), {tables: 2 * s.length * a.head_dim * s.size}, [tables])
            self.tape.nodes.reverse()  # they come before the lookup

    def loss(self, op: Operation) -> None:
        """Records logits to fp32, log-softmax and loss. The 16-bit logits stay as long as the step holds the model's output."""
        s, [logits] = self.shape, op.reads
        fp32_size, held_copy = 4 * s.tokens * s.model.vocab, 0
        if s.size != 4:
            held_copy = self.tape.sizes[logits]  # functions that have not returned yet still name the 16-bit logits
            logits = self.node("logits to fp32", [logits], {"logits in fp32": fp32_size})
        probabilities, labels = "log-softmax", "labels, shifted"
        self.node("log-softmax", [logits], {probabilities: fp32_size}, [probabilities], scratch=held_copy)
        self.node("loss", [probabilities], {"loss": 4, labels: TOKEN_SIZE * s.tokens}, [probabilities, labels])
