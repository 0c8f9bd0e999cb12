"""The MLP of a layer on tape: dense, or routed experts beside a shared one. The activation function and its gate are one kernel."""

from __future__ import annotations

from perfmodel.core.arith import Number
from perfmodel.transformer.spec import DenseMlp, MoeMlp
from perfmodel.transformer.training.matrices import EXPERTS, MLP, ROUTER, Matrix
from perfmodel.transformer.training.recorder import Recorder
from perfmodel.transformer.training.tape import Node

INDEX_SIZE = 4
"""Bytes of a number that says which expert, or which row."""


def mlp(tape: Recorder, w: DenseMlp | MoeMlp, matrices: list[Matrix], inputs: str) -> str:
    """From the normed hidden state to what is added to the residual stream. ``w``: as one GPU sees it."""
    tape.part = "MLP"
    s = tape.shape
    by_group = {group: {m.name: m for m in matrices if m.group == group} for group in (MLP, EXPERTS, ROUTER)}
    if isinstance(w, DenseMlp):
        return dense(tape, "", by_group[MLP], s.tokens, inputs, gated=w.gated, bias=w.bias)
    routed = _routed(tape, w, by_group, inputs)
    if not w.shared_width:
        return routed
    tape.part = "MLP"
    shared = dense(tape, "shared expert, ", by_group[MLP], s.tokens, inputs, gated=w.gated, bias=w.bias)
    return tape.residual("sum of experts", routed, shared, "MLP result")


def dense(tape: Recorder, prefix: str, matrices: dict[str, Matrix], tokens: Number, inputs: str, *, gated: bool, bias: bool) -> str:
    """Up (and gate), the activation function, down."""
    s = tape.shape
    width, gathered = matrices["up"].outputs, (s.tokens - s.own_tokens) * s.hidden * s.size
    first = [matrices[name] for name in ("gate", "up") if name in matrices]
    made = "gate and up" if gated else "up"
    tape.linear(
        f"{prefix}{made} projection", inputs, prefix + made, tokens, first, biases=width * len(first) if bias else 0, gathered=gathered
    )
    product = tape.activation(f"{prefix}activation", tokens, width)
    tape.add(Node(f"{prefix}activation function", (prefix + made,), (product,), (prefix + made,)))
    name = f"{prefix}down projection"
    out = f"{prefix}MLP result"
    return tape.linear(name, product, out, s.own_tokens, [matrices["down"]], biases=s.hidden if bias else 0, gathered=gathered)


def _routed(tape: Recorder, w: MoeMlp, by_group: dict[str, dict[str, Matrix]], inputs: str) -> str:
    """Router in fp32, tokens sent to their experts and back, weighted sum. Every expert gets as many tokens."""
    s, hidden = tape.shape, tape.shape.hidden
    tape.part = "router"
    tokens, pairs = s.tokens, s.tokens * w.experts_per_token
    all_experts = by_group[ROUTER]["router"].outputs
    learned = by_group[ROUTER]["router"].elements + w.router_extra + hidden * int(w.shared_gate)
    stays, passing = tape.weight_gradients(learned if s.rank is None else 0)
    tape.tensor("router's probabilities", 4 * tokens * all_experts)
    saved = (inputs,) if s.rank is None else ()
    scratch = (s.tokens - s.own_tokens) * hidden * s.size
    tape.add(Node("router", (inputs,), ("router's probabilities",), (*saved, "router's probabilities"), stays, scratch, scratch + passing))
    tape.tensor("weights of the chosen", 4 * pairs)
    tape.tensor("indices of the chosen", INDEX_SIZE * pairs)
    chosen = ("weights of the chosen", "indices of the chosen")
    tape.add(Node("choice of experts", ("router's probabilities",), chosen, chosen))
    tape.part = "experts"
    sent = tape.activation("tokens sent to experts", pairs, hidden)
    tape.add(Node("dispatch", (inputs,), (sent,), ("indices of the chosen",)))
    experts, width = by_group[EXPERTS], w.width
    first = [experts[name] for name in ("gate", "up") if name in experts]
    made = tape.activation("gate and up of experts" if w.gated else "up of experts", pairs, width * len(first))
    _experts(tape, "experts, first matrices", sent, made, first, w.experts * width * len(first) if w.bias else 0)
    product = tape.activation("activation of experts", pairs, width)
    tape.add(Node("experts, activation function", (made,), (product,), (made,)))
    result = tape.activation("results of experts", pairs, hidden)
    _experts(tape, "experts, down projection", product, result, [experts["down"]], w.experts * hidden if w.bias else 0)
    out = tape.activation("MLP result" if not w.shared_width else "routed result", s.own_tokens, hidden)
    reads = (result, "weights of the chosen")
    tape.add(Node("weighted sum of experts", reads, (out,), (result, *chosen), 0, scratch, scratch))
    return out


def _experts(tape: Recorder, name: str, inputs: str, outputs: str, matrices: list[Matrix], biases: Number) -> None:
    """A matmul for each expert on this GPU. Their gradients are shared with those of other expert-parallel groups only."""
    s = tape.shape
    elements = sum(matrix.elements for matrix in matrices) + biases if s.rank is None else 0
    stays, passing = tape.weight_gradients(elements, max(s.gradient_shards // s.parallel.ep, 1))
    tape.add(Node(name, (inputs,), (outputs,), (inputs,) if s.rank is None else (), stays, 0, passing))
