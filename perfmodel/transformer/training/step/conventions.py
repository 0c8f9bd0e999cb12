"""Model FLOP of a training step by the conventions in use, and the shares of the peak that follow: MFU and HFU.

MFU counts the FLOP that the model needs, HFU those that the hardware executes, recomputation among them. PaLM counts by parameters,
6 N + 12 L H Q T per token; Megatron-LM by matrices, 72 B L s h^2 (1 + s / 6h + V / 12Lh) for a GPT. Both take attention over all
pairs of tokens, causal mask or not, of a window all that it spans; they differ by vectors, which are parameters but no matrices.
Sources: Chowdhery et al. 2022, arXiv 2204.02311, appendix B; Narayanan et al. 2021, arXiv 2104.04473, section 5.1; Korthikanti et al.
2022, arXiv 2205.05198, section 6.3, but for selective recomputation: it prints s / 3h, which is three times what running Q K^T and
P V once more takes; here the latter counts. Adapters are too small to count.
"""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.core.arith import Number
from perfmodel.transformer.parameters import active, head_matrix, layer_matrices
from perfmodel.transformer.spec import GroupedAttention, LatentAttention, ModelSpec, visible
from perfmodel.transformer.training.question import EVERY, FULL, SELECTIVE, Training

PALM, MEGATRON = "palm", "megatron"


@dataclass(frozen=True, slots=True)
class Counted:
    """FLOP of a whole step, over all GPUs: those of the model, and with those of them that run again."""

    model: Number
    hardware: Number

    def shares(self, seconds: float, gpus: int, peak: float) -> tuple[float, float]:
        """MFU and HFU."""
        available = seconds * gpus * peak
        return float(self.model / available), float(self.hardware / available)


def attention_flops(model: ModelSpec, n: Number) -> Number:
    """Forward FLOP per token of scores and weighted sums, over all ``n`` tokens, or the window of a layer: 4 L H Q T."""
    return sum(
        count * 2 * visible(layer.attention, n) * layer.attention.heads * _features(layer.attention) for layer, count in model.layer_kinds
    )


def _features(a: GroupedAttention | LatentAttention) -> Number:
    return 2 * a.head_dim if isinstance(a, GroupedAttention) else a.qk_head_dim + a.v_head_dim


def layers_flops(model: ModelSpec) -> Number:
    """Forward FLOP per token of the matrices of all layers."""
    return 2 * sum(count * layer_matrices(model, layer) for layer, count in model.layer_kinds)


def palm(training: Training) -> Counted:
    """6 N + 12 L H Q T per token, N the parameters that a token uses; full recomputation 8 N + 16 L H Q T."""
    weights = 2 * active(training.model)
    return _counted(training, weights, weights)


def megatron(training: Training) -> Counted:
    """Three times the forward FLOP of matrices, attention and logits; recomputation does not run the logits again."""
    matrices = layers_flops(training.model)
    return _counted(training, matrices + 2 * head_matrix(training.model), matrices)


def passes(training: Training) -> int:
    """Forward, gradients of inputs, gradients of weights: frozen ones have none."""
    return 3 if training.lora is None else 2


def _counted(training: Training, forward: Number, again: Number) -> Counted:
    """``forward``: FLOP per token apart from attention; ``again``: those of them that full recomputation runs once more."""
    tokens, kind = training.batch * training.n, training.recompute.kind
    attention = attention_flops(training.model, training.n)
    repeated = attention if kind == SELECTIVE else again + attention if kind in (FULL, EVERY) else 0
    model = tokens * (passes(training) * forward + 3 * attention)
    return Counted(model, model + tokens * repeated)


CONVENTIONS = {PALM: palm, MEGATRON: megatron}
