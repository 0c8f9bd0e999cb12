"""Embedding, layer and head of a model on tape, as fused kernels keep them: one entry per kernel of a well-written training loop.

Norms keep their input and statistics, matrices their input, the activation function its input, attention Q, K, V, its output and
the logsumexp (or, without FlashAttention, the scores), dropout a byte per element, the loss the softmax of the logits in fp32.
"""

from __future__ import annotations

from perfmodel.transformer.spec import Layer, ModelSpec
from perfmodel.transformer.step import share
from perfmodel.transformer.training.attention_tape import attention
from perfmodel.transformer.training.matrices import TABLE, Matrix, layer_matrices, local_layer
from perfmodel.transformer.training.mlp_tape import mlp
from perfmodel.transformer.training.recorder import Recorder
from perfmodel.transformer.training.shape import Shape
from perfmodel.transformer.training.tape import Node, Tape

INDEX_SIZE = 8
"""Bytes of a token's number in PyTorch."""


def layer_tape(model: ModelSpec, layer: Layer, shape: Shape) -> Tape:
    """One layer: norm, attention, sum, norm, MLP, sum; with more than two norms, one after attention and one after the MLP."""
    tape = Recorder(shape, "layer input")
    here, matrices = local_layer(layer, shape.parallel), layer_matrices(model, layer, shape.parallel)
    tokens, hidden = shape.own_tokens, shape.hidden
    tape.part = "norms"
    inputs = tape.norm("norm before attention", "layer input", "attention input", tokens, hidden)
    branch = attention(tape, here.attention, matrices, inputs)
    if layer.norms > 2:
        tape.part = "norms"
        branch = tape.norm("norm after attention", branch, "attention result, normed", tokens, hidden)
    tape.part = "attention"
    branch = tape.dropout("dropout after attention", branch, "attention result after dropout", tokens * hidden)
    middle = tape.residual("sum with attention", "layer input", branch, "input of the MLP's norm")
    tape.part = "norms"
    inputs = tape.norm("norm before the MLP", middle, "MLP input", tokens, hidden)
    branch = mlp(tape, here.mlp, matrices, inputs)
    for index in range(3, int(layer.norms)):
        tape.part = "norms"
        suffix = "" if index == 3 else f" ({index - 2})"
        branch = tape.norm(f"norm after the MLP{suffix}", branch, f"MLP result, normed{suffix}", tokens, hidden)
    tape.part = "MLP"
    branch = tape.dropout("dropout after the MLP", branch, "MLP result after dropout", tokens * hidden)
    tape.residual("sum with the MLP", middle, branch, "layer output")
    return tape.tape


def head_tape(model: ModelSpec, shape: Shape) -> Tape:
    """Last norm, logits, loss. Softmax and loss are one kernel, whose gradient overwrites the softmax."""
    tape = Recorder(shape, "last layer output")
    tokens, hidden, columns = shape.own_tokens, shape.hidden, share(model.vocab, shape.parallel.tp)
    tape.part = "norms"
    inputs = tape.norm("last norm", "last layer output", "head input", tokens, hidden)
    tape.part = "head"
    gathered = (shape.tokens - shape.own_tokens) * hidden * shape.size
    tape.linear("head", inputs, "logits", shape.tokens, [Matrix("head", TABLE, hidden, columns)], gathered=gathered)
    tape.tensor("softmax of the logits", 4 * shape.tokens * columns)
    tape.tensor("labels", INDEX_SIZE * shape.tokens)
    tape.tensor("loss", 4)
    tape.add(Node("loss", ("logits",), ("loss", "softmax of the logits", "labels"), ("softmax of the logits", "labels")))
    return tape.tape


def embedding_tape(model: ModelSpec, shape: Shape, sums: int = 1) -> Tape:
    """Lookup and, if learned, positions. The gradient of a table that is the head's as well is added to that one.

    ``sums``: tensors of its size that this takes for a while, 1 if it is added in place.
    """
    tape = Recorder(shape, "hidden state")
    tape.part = "embedding"
    tied = model.tied_embeddings and shape.parallel.pp == 1
    elements = share(model.vocab, shape.parallel.tp) * shape.hidden if shape.rank is None else 0
    positions = model.max_positions * shape.hidden if model.learned_positions and model.max_positions and shape.rank is None else 0
    stays, passing = tape.weight_gradients(positions if tied else elements + positions)
    scratch = sums * elements * shape.gradient_size if tied else passing
    tape.activation("hidden state", shape.own_tokens, shape.hidden)
    tape.tape.stream = tape.tensor("tokens", 0)  # those are there before and after the step
    gathered = (shape.tokens - shape.own_tokens) * shape.hidden * shape.size
    tape.add(Node("embedding", (), ("hidden state",), (), stays, gathered, max(scratch, passing)))
    tape.dropout("dropout after the embedding", "hidden state", "hidden state after dropout", shape.own_tokens * shape.hidden)
    return tape.tape
