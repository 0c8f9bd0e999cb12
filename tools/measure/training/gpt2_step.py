"""A training step of Hugging Face's GPT-2: all tensors bf16, AdamW in one kernel, random tokens that are their own labels."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from perfmodel.core.arith import quantile
from perfmodel.core.errors import DataError
from perfmodel.validation.cases import KernelCase
from perfmodel.validation.libraries import Torch
from tools.measure.training.meter import DEVICE, Bytes, Clock, Mark, nbytes, release, silent, sm_mhz
from tools.measure.training.result import Measured

SIZES = {"gpt2": (768, 12, 12), "gpt2-medium": (1024, 24, 16), "gpt2-large": (1280, 36, 20), "gpt2-xl": (1600, 48, 25)}
"""Hidden size, layers, heads: config.json of openai-community/NAME on Hugging Face."""

LEARNING_RATE = 1e-5
TIMED_S, LEAST_RUNS, MOST_RUNS = 0.6, 4, 8


@dataclass(slots=True)
class Job:
    """A model and its optimizer on the GPU. ``outside_bytes``: allocated before it was built."""

    name: str
    model: Any
    optimizer: Any
    outside_bytes: int

    def step(self, ids: Any, mark: Mark) -> None:
        """One training step on ``ids`` [batch, n]. The logits are dropped with the model's output: only the loss is kept."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.model(input_ids=ids, labels=ids).loss
        mark("forward")
        loss.backward()
        mark("backward")
        self.optimizer.step()
        mark("optimizer")


def build(name: str, torch: Torch) -> Job:
    """Random weights, made on the GPU."""
    if name not in SIZES:
        raise DataError(f"no GPT-2 is called {name!r}", f"known: {', '.join(SIZES)}")
    transformers = import_module("transformers")
    hidden, layers, heads = SIZES[name]
    outside = int(torch.cuda.memory_allocated())
    config = transformers.GPT2Config(
        n_embd=hidden, n_layer=layers, n_head=heads, embd_pdrop=0.0, attn_pdrop=0.0, resid_pdrop=0.0, use_cache=False
    )
    with torch.device(DEVICE):
        model = transformers.GPT2LMHeadModel(config).to(torch.bfloat16).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True)
    return Job(name, model, optimizer, outside)


def configure(job: Job, attention: str, checkpointing: bool, dropout: float, torch: Torch) -> None:
    """Set what differs between variants of one model."""
    job.model.set_attn_implementation(attention)
    if checkpointing:
        job.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    else:
        job.model.gradient_checkpointing_disable()
    for module in job.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = dropout


class Gpt2Steps:
    """Measures cases; the model of the last one is kept, as the next often needs it again."""

    def __init__(self) -> None:
        self.job: Job | None = None

    def __call__(self, case: KernelCase, torch: Torch) -> Measured:
        """Time and memory of one case, after two steps: the first makes the optimizer's state, the second is metered."""
        job, ids = self.prepared(case, torch)
        job.step(ids, silent)
        torch.cuda.synchronize()
        memory, second_s = metered(job, ids, torch)
        clock = Clock(torch)
        runs = max(LEAST_RUNS, min(MOST_RUNS, int(TIMED_S / second_s)))
        clock.measure(lambda mark: job.step(ids, mark), runs)
        return Measured(
            clock.step_s(), memory, environment(clock, case, torch), f"transformers {import_module('transformers').__version__}"
        )

    def prepared(self, case: KernelCase, torch: Torch) -> tuple[Job, Any]:
        """The model as the case wants it, and tokens [batch, n]."""
        job, shape = self.job_of(str(case.shape["model"]), torch), case.shape
        configure(job, str(shape["attention"]), bool(shape["checkpointing"]), float(shape.get("dropout", 0.0)), torch)
        return job, torch.randint(job.model.config.vocab_size, (shape["batch"], shape["n"]), device=DEVICE)

    def job_of(self, name: str, torch: Torch) -> Job:
        """The model of that name, built if it is not the last one."""
        if self.job is None or self.job.name != name:
            self.drop(torch)
            self.job = build(name, torch)
        return self.job

    def drop(self, torch: Torch) -> None:
        """Free the model."""
        self.job = None
        release(torch)


def metered(job: Job, ids: Any, torch: Torch) -> tuple[dict[str, float], float]:
    """Bytes of one step, and about how long it took. ``before_bytes``: allocated when the step begins, gradients freed."""
    marked, clock = Bytes(torch), Clock(torch)

    def step(mark: Mark) -> None:
        def both(part: str) -> None:
            marked(part)
            mark(part)

        job.step(ids, both)

    job.optimizer.zero_grad(set_to_none=True)
    marked.start()
    clock.measure(step, 1)
    weights = list(job.model.parameters())
    state = [each for states in job.optimizer.state.values() for each in states.values() if torch.is_tensor(each)]
    held = {
        "outside_bytes": job.outside_bytes,
        "before_bytes": marked.before,
        "weights_bytes": nbytes(weights),
        "gradients_bytes": nbytes(each.grad for each in weights if each.grad is not None),
        "optimizer_bytes": nbytes(state),
        "buffers_bytes": nbytes(job.model.buffers()),
        "inputs_bytes": nbytes([ids]),
    }
    return {**marked.above(), **held}, max(clock.step_s()[0], 1e-4)


def environment(clock: Clock, case: KernelCase, torch: Torch) -> dict[str, Any]:
    """Median seconds of each part, what the host took to enqueue a step, and the fused attention that torch chose."""
    found: dict[str, Any] = {
        "parts_s": {part: float(f"{quantile(times, 0.5):.4g}") for part, times in clock.parts_s().items()},
        "host_s": float(f"{quantile(clock.host_s, 0.5):.4g}"),
        **sm_mhz(torch),
    }
    if case.shape["attention"] == "sdpa":
        with suppress(Exception):  # a private name of torch; nothing here is worth losing the case
            found["sdpa_backend"] = chosen_backend(case, torch)
    return found


def chosen_backend(case: KernelCase, torch: Torch) -> str:
    """The backend that scaled_dot_product_attention takes on Q, K and V as this model lays them out."""
    hidden, _, heads = SIZES[str(case.shape["model"])]
    batch, n = case.shape["batch"], case.shape["n"]
    joint = torch.empty((batch, n, 3 * hidden), dtype=torch.bfloat16, device=DEVICE, requires_grad=True)
    q, k, v = (each.view(batch, n, heads, hidden // heads).transpose(1, 2) for each in joint.split(hidden, dim=2))
    number = torch._fused_sdp_choice(q, k, v, None, float(case.shape.get("dropout", 0.0)), True)
    return str(import_module("torch.nn.attention").SDPBackend(number).name)
