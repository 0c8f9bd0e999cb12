"""FLOP of a training step, by common conventions and as its kernels run it; and shares of the peak: MFU and HFU.

MFU counts the FLOP that the model needs, HFU those that the hardware executes, recomputation among them. PaLM counts by parameters, 6 N +
12 L H Q T per token; Megatron-LM by matrices, 72 B L s h^2 (1 + s / 6h + V / 12Lh) for a GPT. Both count attention over all pairs of
tokens, with a causal mask too, or over all tokens of a window. Only PaLM's count includes vectors (norms, biases). Adapters are too small
to count. Sources: Chowdhery et al. 2022, arXiv 2204.02311, appendix B; Narayanan et al. 2021, arXiv 2104.04473, section 5.1; Korthikanti
et al. 2022, arXiv 2205.05198, section 6.3. For selective recomputation that section prints s / 3h, three times the FLOP of running Q K^T
and P V once more; here these are counted.

The report's own MFU counts visible FLOP: matmuls, and attention on unmasked scores. Its HFU counts executed FLOP: also masked parts of
tiles, padding, and all recomputation. A kernel executes no less than is visible and takes no less time than its unit at the datasheet's
peak: MFU <= HFU <= 1. Conventions that count the masked half of a causal square can pass 1.
"""

from __future__ import annotations

from perfmodel.core.arith import Number
from perfmodel.core.frozen import dataclass
from perfmodel.core.roofline import rates_of
from perfmodel.transformer.estimate import CONVENTION
from perfmodel.transformer.parameters import active, head_matrix, layer_matrices
from perfmodel.transformer.spec import ModelSpec, score_flops, visible
from perfmodel.transformer.training.question import SELECTIVE, TrainingConfig
from perfmodel.transformer.training.step.job import TrainingJob

PALM, MEGATRON = "palm", "megatron"
MEANING = f"MFU: {CONVENTION}; HFU: those that kernels execute"


@dataclass(frozen=True, slots=True)
class Counted:
    """FLOP of a whole step over all GPUs: of the model, and with recomputation."""

    model: Number
    hardware: Number

    def shares(self, job: TrainingJob, seconds: float) -> tuple[float, float]:
        """MFU and HFU of the step of ``job`` in ``seconds``, at the datasheet's peak."""
        rate = float(rates_of(job.machine.device, job.micro_batch.forward.dtype).matmul)
        available = seconds * job.training.parallel.gpus * rate
        return float(self.model / available), float(self.hardware / available)


def attention_flops(model: ModelSpec, n: Number) -> Number:
    """Forward FLOP per token of scores and weighted sums over all ``n`` tokens, or over a layer's window: 4 L H Q T."""
    return sum(count * visible(layer.attention, n) * score_flops(layer.attention, cached=False) for layer, count in model.layer_kinds)


def palm(training: TrainingConfig) -> Counted:
    """6 N + 12 L H Q T per token, N the parameters that a token uses; full recomputation 8 N + 16 L H Q T."""
    weights = 2 * active(training.model)
    return _counted(training, weights, weights)


def megatron(training: TrainingConfig) -> Counted:
    """Three times the forward FLOP of matrices, attention and logits; recomputation does not run the logits again."""
    matrices = 2 * sum(count * layer_matrices(training.model, layer) for layer, count in training.model.layer_kinds)
    return _counted(training, matrices + 2 * head_matrix(training.model), matrices)


def passes(training: TrainingConfig) -> int:
    """Number of matmuls of a matrix in a step: forward, gradients of inputs, and gradients of weights unless these are frozen."""
    return 3 if training.lora is None else 2


def _counted(training: TrainingConfig, forward: Number, recomputed: Number) -> Counted:
    """FLOP of the step from FLOP per token without attention: of the forward pass, and of what full recomputation runs again."""
    tokens = training.batch * training.n
    attention = attention_flops(training.model, training.n)
    repeated: Number = 0
    if training.recompute.kind == SELECTIVE:
        repeated = attention
    elif training.recompute.of_layers:
        repeated = recomputed + attention
    model = tokens * (passes(training) * forward + 3 * attention)
    return Counted(model, model + tokens * repeated)


CONVENTIONS = {PALM: palm, MEGATRON: megatron}


def run(job: TrainingJob) -> Counted:
    """Visible and executed FLOP of the kernels of the step of ``job``, over all GPUs and stages."""
    training, parallel = job.training, job.training.parallel
    times = job.times()
    needed = [op.times(count) for place, count in times for op in (*place.ops.forward, *place.ops.backward)]
    # Micro-batches times the GPUs that divide each; a fraction if the last micro-batch has fewer sequences
    shares = training.batch * parallel.tp * parallel.cp / training.sequences
    visible_flops = sum(op.count * op.kernel.flops for op in needed)
    executed_flops = sum(op.count * op.kernel.executed_flops for op in (*needed, *job.repeated_ops(times)))
    return Counted(shares * visible_flops, shares * executed_flops)
