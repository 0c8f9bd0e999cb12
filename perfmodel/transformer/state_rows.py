"""Kernels of layers that keep a state per sequence: short convolution, gated delta rule, state-space scan, gated norm.

Decode reads and writes each state once. It is timed as a copy of the same bytes, because arithmetic hides behind them.

Prefill takes a sequence in chunks of tokens, whose products are matrix multiplications (arXiv 2412.06464, section 3.3; arXiv 2405.21060,
section 6). Its several kernels are one row, whose bytes are inputs, result and state: those of one kernel that keeps the rest on chip. The
row is timed as products of a chunk with a state, as many as make the same FLOP, with operands in DRAM, since the real kernels leave their
intermediate results there (fla-org/flash-linear-attention, chunk_gated_delta_rule, chunks of 64; state-spaces/mamba,
mamba_chunk_scan_combined).
"""

from __future__ import annotations

from perfmodel.core.arith import Number, ceil_div, maximum
from perfmodel.core.cost import READ, WRITE, Access, Kernel, Work, matmul_work, once, stored
from perfmodel.core.workload import Stream
from perfmodel.kernels.matmul import Matmul
from perfmodel.transformer.linear_attention import CONV_SIZE, GatedDeltaNet, Mamba2
from perfmodel.transformer.op import ATTENTION, CACHE, ELEMENTWISE, VECTOR_WORK, WEIGHTS, Op, Timed, activation, stream
from perfmodel.transformer.operation import Operation
from perfmodel.transformer.spec import AttentionLayer
from perfmodel.transformer.step import DECODE, ModelPass

DELTA_CHUNK = 64
"""Tokens of a chunk. Source: fla-org/flash-linear-attention, chunk_gated_delta_rule, and vLLM's copy of it."""


def chunk_flops(a: GatedDeltaNet | Mamba2) -> tuple[Number, Number]:
    """FLOP of one chunk as run, masked scores included, and its tokens.

    Delta rule: K K^T, the inverse of its triangle, that times V and K, Q K^T times V, and three products with the state. Scan: C B^T of
    each group, that times x, and two products with the state.

    >>> chunk_flops(Mamba2(heads=2, head_dim=4, groups=1, state_size=8, chunk=16))
    (12288, 16)
    """
    if isinstance(a, GatedDeltaNet):
        c, k, v = DELTA_CHUNK, a.key_head_dim, a.value_head_dim
        inverse = (c * c * c - c) // 3
        return a.value_heads * (2 * c * c * (3 * k + 2 * v) + inverse + 6 * c * k * v), c
    c = a.chunk
    return 2 * c * c * (a.groups * a.state_size + a.inner) + 4 * c * a.state, c


class StateRows:
    """Kernels of linear attention: methods by kind of operation, for ``ops.Rows``."""

    step: ModelPass
    tokens: Number
    attended: AttentionLayer

    @property
    def _state(self) -> GatedDeltaNet | Mamba2:
        assert isinstance(self.attended, GatedDeltaNet | Mamba2)
        return self.attended

    def _rows_beside(self, op: Operation) -> list[Op]:
        """Rows of ``op`` for the sequences of the pass ``beside`` this one, which run in separate kernels."""
        raise NotImplementedError

    @property
    def _new_tokens(self) -> Number:
        """New tokens of this pass, without those of the pass ``beside`` it."""
        return self.step.sequences * self.step.n

    @property
    def _decodes(self) -> bool:
        """Whether each sequence takes one step, of one token or a few drafted ones."""
        return bool(self.step.n == 1 or (self.step.phase == DECODE and self.step.cached))

    @property
    def _continued(self) -> bool:
        """Whether earlier tokens have left a state."""
        return bool(self.step.cached and self.step.kv_len > self.step.n)

    def _state_accesses(self, elements: Number, bits: int) -> tuple[Access, ...]:
        """Accesses to the state of each sequence: read if there is one, written if it is kept."""
        size = self.step.sequences * elements * (bits // 8)
        read = (once(CACHE, READ, size, 1),) if self._continued else ()
        return (*read, once(CACHE, WRITE, size, 1)) if self.step.cached else read

    def _accesses(self, op: Operation, inputs: Number, outputs: Number, state: tuple[Access, ...] = ()) -> tuple[Access, ...]:
        """Accesses of a kernel of ``op`` to its ``inputs`` and ``outputs`` (numbers of activations), its weights and the ``state``."""
        learned = stored(WEIGHTS, READ, op.vectors, self.step.weight_bits)
        return (activation(READ, inputs, self.step), learned, *state, activation(WRITE, outputs, self.step))

    def _copied(self, name: str, group: str, accesses: tuple[Access, ...], work: Work, flops: Number = 0) -> Op:
        """A kernel that is timed as a copy of the same bytes."""
        step = self.step
        rows = maximum(step.tokens, 1)
        cols = ceil_div(sum(access.bytes for access in accesses), 2 * step.dtype.size * rows)
        workload = Stream("scale", rows, cols, 1, 1, 0, step.dtype)
        kernel = Kernel(name, step.dtype, accesses, flops=flops, executed_flops=flops, work=work)
        return Op(name, group, 1, kernel, Timed("scale", workload, ("torch-scale",)))

    def convolution(self, op: Operation) -> list[Op]:
        """Kernels of the convolution, each channel over its last tokens, and SiLU; the tokens that the next pass needs are kept."""
        a = self._state
        elements = self._new_tokens * a.channels
        kept = self._state_accesses((a.conv_kernel - 1) * a.channels, 8 * CONV_SIZE)
        work = Work(0, (2 * a.conv_kernel + 4) * elements, elements)
        accesses = self._accesses(op, elements, elements, kept)
        return [self._copied(op.kernel, ELEMENTWISE, accesses, work), *self._rows_beside(op)]

    def recurrence(self, op: Operation) -> list[Op]:
        """Kernels of the gated delta rule over Q, K, V, decay and rate of each token, or of the scan over x, B, C and dt."""
        return [self._recurrence(op), *self._rows_beside(op)]

    def _recurrence(self, op: Operation) -> Op:
        a, step, tokens = self._state, self.step, self._new_tokens
        if isinstance(a, GatedDeltaNet):
            gates, inner, outer = 2 * a.value_heads, a.key_head_dim, a.value_head_dim
        else:
            gates, inner, outer = a.heads, a.state_size, a.head_dim
        state = self._state_accesses(a.state, a.state_bits)
        accesses = self._accesses(op, tokens * (a.channels + gates), tokens * a.inner, state)
        flops = tokens * a.token_flops
        if self._decodes:  # element by element; each element of the state also decays
            return self._copied(op.kernel, ATTENTION, accesses, Work(0, flops + tokens * a.state), flops)
        flops_of_chunk, chunk = chunk_flops(a)
        executed = step.sequences * ceil_div(step.n, chunk) * flops_of_chunk
        name, needed = f"{op.kernel}, chunks of {int(chunk)}", matmul_work(step.dtype, flops)
        kernel = Kernel(name, step.dtype, accesses, flops, executed, matmul_work(step.dtype, executed), needed)
        products = ceil_div(executed, 2 * chunk * inner * outer)
        workload = Matmul(chunk, outer, inner, products, dtype=step.dtype)
        return Op(name, ATTENTION, 1, kernel, Timed("matmul", workload, step.kernels.products))

    def gated_norm(self, op: Operation) -> list[Op]:
        """Kernel of a norm of the result, times the activated gate."""
        inner = self._state.inner
        written = self.tokens * inner
        work = Work(0, (VECTOR_WORK["norm"] + VECTOR_WORK["silu-mul"]) * written, written)
        return [self._copied(op.kernel, ELEMENTWISE, self._accesses(op, self.tokens * (2 * inner), written), work)]

    def output_gate(self, op: Operation) -> list[Op]:
        """Kernel of the sigmoid of the gate times the output."""
        elements, like = self.tokens * op.features, ("scale", "torch-silu-mul", self.tokens, op.features)
        return [stream(op.kernel, self.step, "silu-mul", (2 * elements, elements), like, strided=True)]
