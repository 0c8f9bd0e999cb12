"""Norms as the modules of huggingface/transformers write them."""

from __future__ import annotations

from perfmodel.core.arith import Number
from perfmodel.transformer.training.recorder import Recorder
from perfmodel.transformer.training.tape import Node


def norm(tape: Recorder, name: str, inputs: str, outputs: str) -> str:
    """Layer norm is one kernel; RMS norm is written out in fp32, and its result rounded before it meets its weights."""
    s = tape.shape
    if s.norm == "layer":
        return tape.norm(name, inputs, outputs, s.tokens, s.hidden)
    return rms_norm(tape, name, inputs, outputs, s.tokens, s.hidden, 1)


def rms_norm(tape: Recorder, name: str, inputs: str, outputs: str, tokens: Number, features: Number, rows: Number) -> str:
    """x in fp32, its mean square, the product with the inverse root, that in the format of activations, times the weights."""
    s, exact = tape.shape, 4 * tokens * features
    wide = inputs
    if s.size != 4:
        wide = tape.tensor(f"{name}: input in fp32", exact)
        tape.add(Node(f"{name}, to fp32", (inputs,), (wide,)))
    square = tape.tensor(f"{name}: squares", exact)
    tape.add(Node(f"{name}, square", (wide,), (square,), (wide,), backward_scratch=2 * exact))  # x and 2 x
    root = tape.tensor(f"{name}: inverse root", 4 * tokens * rows)
    tape.add(Node(f"{name}, mean and root", (square,), (root,), (root,)))
    scaled = tape.tensor(f"{name}: scaled, fp32", exact)
    tape.add(Node(f"{name}, scale", (wide, root), (scaled,), (wide, root), backward_scratch=exact))
    narrow = scaled
    if s.size != 4:
        narrow = tape.activation(f"{name}: scaled", tokens, features)
        tape.add(Node(f"{name}, from fp32", (scaled,), (narrow,)))
    tape.activation(outputs, tokens, features)
    stays, passing = tape.weight_gradients(features // rows)
    tape.add(Node(f"{name}, weights", (narrow,), (outputs,), (narrow,), stays, 0, tokens * features * s.size + passing))
    return outputs
