"""Claims about what autograd keeps, and what building it again costs."""

from __future__ import annotations

from perfmodel.arith import Number
from perfmodel.claims.base import Claim, Figure
from perfmodel.remat.autograd import eager_bytes, lazy_bytes
from perfmodel.remat.chain import Chain, uniform
from perfmodel.remat.lecture import input_only_steps, late_bound_steps, plain_steps, printed_steps
from perfmodel.remat.nearest import rebuilt_steps
from perfmodel.remat.segments import segmented
from perfmodel.remat.simulate import simulate

NOTES = "lecture notes on the memory of autograd"
_TRACE = {"rows": 4000, "columns": 1000, "size": 8, "layers": 3}
_CHAIN = {"layers": 10, "checkpoint": 5}


def _linear(rows: Number, columns: Number, size: Number, layers: Number) -> Chain:
    """Equal linear layers: bytes of every value."""
    return uniform(int(layers), output=rows * columns * size)


def gradients_with_values(rows: Number, columns: Number, size: Number, layers: Number) -> Number:
    """Bytes after that many layers of a forward pass that allocates the gradient of a value with it."""
    return eager_bytes(_linear(rows, columns, size, layers), layers)


def gradients_in_backward(rows: Number, columns: Number, size: Number, layers: Number) -> Number:
    """Bytes after that many layers of a forward pass that allocates values alone."""
    return lazy_bytes(_linear(rows, columns, size, layers), layers)


def nearest_steps(layers: Number, checkpoint: Number) -> Number:
    """Steps with every value but x_n rebuilt from the nearest one kept: x_0, and the output of layer ``checkpoint``."""
    return plain_steps(layers) + rebuilt_steps(layers, [0, checkpoint + 1])


def nearest_and_output_steps(layers: Number, checkpoint: Number) -> Number:
    """The same, with x_n rebuilt as well."""
    return nearest_steps(layers, checkpoint) + (layers - checkpoint - 1)


def segment_steps(layers: int, checkpoint: int) -> int:
    """Steps with each of the two segments rebuilt once, counted by running the schedule."""
    chain = uniform(layers)
    return int(simulate(chain, segmented(chain, [0, checkpoint + 1], keep_last=False)).cost)


CLAIMS = (
    Claim(
        "S044",
        NOTES,
        "The forward pass grows by 64 MB per layer.",
        why="The gradient of each value, 32 MB, is allocated with it: float64.",
        inputs=_TRACE,
        figures=tuple(
            Figure(f"after layer {layer}", gradients_with_values, f"{64 * (layer + 1)} MB", "B", at={"layers": layer + 1})
            for layer in range(3)
        ),
        uses=(eager_bytes,),
    ),
    Claim(
        "S046",
        NOTES,
        "The fix halves the memory of the forward pass.",
        why="Gradients are allocated when backward needs them: 32 in place of 64 MB per layer of equal shape. The two printed runs differ "
        "in shape (S045), which makes it 1.95.",
        inputs=_TRACE,
        figures=(
            Figure(
                "gradients with values over gradients in backward",
                lambda rows, columns, size, layers: (
                    gradients_with_values(rows, columns, size, layers) / gradients_in_backward(rows, columns, size, layers)
                ),
                "2 x",
                "x",
            ),
            Figure("without the gradients", gradients_in_backward, unit="B"),
        ),
        uses=(eager_bytes, lazy_bytes),
    ),
    Claim(
        "S047",
        NOTES,
        "Ten layers take 75 matmuls with rematerialization, checkpoints=[5], and 30 without.",
        why="30 is right: 10 forward, 20 backward. 75 = 30 + 45 is the count with nothing checkpointed, 1 + 2 + ... + 9, or that of the "
        "printed code: its closures bind the loop's variable late and all nine rebuild the last output, so the gradients are wrong. With "
        "the output of layer 5 kept it is 55; 51 if the last output, which no backward step needs, is not rebuilt; 38 segment by segment.",
        inputs=_CHAIN,
        figures=(
            Figure("without", plain_steps, "30"),
            Figure("with the checkpoint", nearest_and_output_steps, "75"),
            Figure("last output not rebuilt", nearest_steps),
            Figure("segment by segment", segment_steps, formula="the schedule, run"),
            Figure("nothing checkpointed", input_only_steps),
            Figure("late-bound closures", late_bound_steps),
        ),
        uses=(plain_steps, rebuilt_steps, segmented, input_only_steps, late_bound_steps),
    ),
    Claim(
        "S048",
        NOTES,
        "The layers to recompute are those from the checkpoint on, weights[checkpoint : i + 1].",
        why="weights[checkpoint + 1 : i + 1]: layer 5 has run already where its output is kept. Its second run takes a matmul per value "
        "rebuilt, 59 in place of 55 (54 of 51), and gives wrong values and gradients.",
        inputs=_CHAIN,
        figures=(
            Figure("matmuls", nearest_and_output_steps, lambda layers, checkpoint: printed_steps(layers, checkpoint, last=True)),
            Figure("last output not rebuilt", nearest_steps, lambda layers, checkpoint: printed_steps(layers, checkpoint, last=False)),
        ),
        uses=(rebuilt_steps, printed_steps),
    ),
)
