"""What a report of training memory says in words: the verdict and the notes."""

from __future__ import annotations

from collections.abc import Iterable

from perfmodel.core.arith import Number
from perfmodel.core.units import format_count, format_si
from perfmodel.report.model_words import unread_notes
from perfmodel.transformer.training.huggingface import WORKSPACES
from perfmodel.transformer.training.implementations import HUGGINGFACE
from perfmodel.transformer.training.memory import MemoryResult, StepMoment
from perfmodel.transformer.training.question import ALL, MIXED, NONE, Parallel, TrainingConfig


def size(number: Number) -> str:
    """Bytes with a prefix."""
    return format_si(float(number), "B")


def verdict(result: MemoryResult) -> list[str]:
    """The peak, what it is made of, and whether it fits: first, if it does not."""
    found, state = result.peak, result.peak.state
    gpu = "the GPU" if result.training.parallel.gpus == 1 else "the fullest GPU"
    parts = [
        ("weights", state.weights),
        ("gradients", found.gradients),
        ("optimizer state", state.optimizer),
        ("activations", found.activations),
    ]
    listed = ", ".join(f"{size(value)} of {name}" for name, value in parts if value)
    first = f"At most {size(found.bytes)} on {gpu}, in the {_phase(found.moment)}: {listed}."
    fitting = _fitting(result)
    return [*fitting, first] if result.fits is False else [first, *fitting]


def _phase(moment: StepMoment) -> str:
    step = {"forward": "forward pass", "backward": "backward pass", "optimizer": "optimizer's step"}[moment.phase]
    return f"{step} ({moment.at})" if moment.at else step


def _fitting(result: MemoryResult) -> list[str]:
    if result.capacity is None or result.largest is None:
        return [f"The profile of {result.device.id} has no capacity."]
    room = f"{result.device.name} with {format_si(result.capacity, 'B')}"
    if result.largest == 0:
        return [f"It does not fit {room}, and not even one sequence of {result.training.n:,} tokens at a time does."]
    many = f"{result.largest:,} sequence{'s' if result.largest > 1 else ''} at a time"
    return [f"It fits {room}, which takes up to {many}." if result.fits else f"It does not fit {room}, which takes {many}."]


def notes(result: MemoryResult) -> list[str]:
    """What the numbers rest on."""
    training, p = result.training, result.training.parallel
    found = [
        f"Activations are those of {result.implementation.name}: {result.implementation.title}.",
        "The peak is all that is allocated at the worst moment, as an allocator's maximum reports it; neither the context of the driver "
        "nor what an allocator holds in reserve.",
        f"Configuration: {training.model.source}.",
    ]
    if result.implementation.name == HUGGINGFACE:
        workspaces = format_si(WORKSPACES, "B")
        found.append(f"With {workspaces} of cuBLAS's workspaces on Hopper; no KV cache; the logits go with the model's output.")
        if training.precision == MIXED:
            found.append(
                "Its modules hold 16-bit weights, the optimizer master weights: torch.autocast over fp32 weights keeps other tensors."
            )
    longest = training.model.max_positions
    if longest is not None and training.n > longest:
        found.append(f"{training.n:,} tokens are more than the {longest:,} that {training.model.name} was made for.")
    if training.batch % p.dp:
        found.append(uneven(training))
    if training.model.is_moe:
        found.append("Every expert is taken to get as many tokens as any other.")
    if training.lora is not None:
        found.append(f"Adapters on {_targets(training)}; a frozen matrix keeps no input, and frozen weights have no gradient and no state.")
    if training.flash and training.recompute.kind == "selective":
        found.append("With FlashAttention selective recomputation frees the logsumexp only: scores are never stored.")
    return [*found, *_parallel_notes(training, p), *unread_notes(training.model)]


def _targets(training: TrainingConfig) -> str:
    if training.lora_targets == ALL and training.model.is_moe:
        return "all matrices of attention and MLP, experts without adapters"
    return {"all": "all matrices of attention and MLP", "attention": "all matrices of attention", "qv": "Q and V"}[training.lora_targets]


def uneven(t: TrainingConfig) -> str:
    """A sentence on GPUs with fewer sequences than others."""
    most = t.sequences * t.micro_batches
    idle = f"; {t.parallel.dp - t.batch:,} of them have none" if t.batch < t.parallel.dp else ""
    return f"--dp {t.parallel.dp} does not divide the batch of {t.batch:,}: the fullest GPUs have {most:,}, and the others wait{idle}."


def _parallel_notes(training: TrainingConfig, p: Parallel) -> Iterable[str]:
    if p.zero and p.dp * p.cp == 1:
        yield f"--zero {p.zero} divides nothing among one GPU: give --dp."
    if p.zero == 3:
        yield "With ZeRO's third stage the weights of one layer at a time are put together for a while; they count where they are used."
    if p.cp > 1:
        yield (
            "Context-parallel GPUs keep their part of each sequence; ZeRO divides state among them too, as Megatron-LM does. Blocks of K "
            "and V on their way around the ring are not counted."
        )
    if p.pp > 1:
        yield "1F1B: the first stage holds as many micro-batches as there are stages, and more with interleaving. What is sent on is freed."
    if training.micro_batches > 1:
        yield f"{format_count(int(training.micro_batches))} micro-batches per GPU: later ones meet the gradients of earlier ones."
    if training.recompute.kind != NONE and not training.flash:
        yield "What is recomputed stands in memory once more while its backward pass runs."
