"""Eager steps of Hugging Face's transformers: prefill, decode and training captured without a GPU, as passes that ``model`` reports.

The model is built without weights from the fields of its config.json. A decode step adds a token to a DynamicCache. Times are those of
steps at sizes that have run before: cuDNN plans attention of new ones, which is said apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field, replace
from functools import cached_property
from importlib import import_module
from logging import getLogger
from typing import Any

from perfmodel.core.arith import Number
from perfmodel.core.errors import PerfmodelError, UsageError
from perfmodel.core.frozen import dataclass
from perfmodel.core.hardware import Device
from perfmodel.core.lower_bound import Needs
from perfmodel.core.question import EAGER_ENGINE
from perfmodel.core.roofline import Estimate, total
from perfmodel.kernels.matmul import Matmul
from perfmodel.program.calls import PLANNED, Call, UnknownError
from perfmodel.program.capture import PLAN_S, Captured, Ends, capture, plans_attention, timelines
from perfmodel.program.operators import counted
from perfmodel.program.price import operator_prediction
from perfmodel.program.profile import ProgramProfile
from perfmodel.timing.predict import Prediction
from perfmodel.timing.reference_devices import FallbackDevices, listed_once
from perfmodel.transformer.answer import EagerRun, ModelAnswer, clocked
from perfmodel.transformer.estimate import PassEstimate, PassRow, interval, row_of, run_pass
from perfmodel.transformer.host import Interval
from perfmodel.transformer.op import MATMUL, Op
from perfmodel.transformer.op_time import launch_correction
from perfmodel.transformer.parallel import MemoryFit, step_memory
from perfmodel.transformer.question import ModelQuestion
from perfmodel.transformer.spec import ModelSpec
from perfmodel.transformer.step import DECODE, GENERATE, PREFILL, ModelPass, Request
from perfmodel.transformer.training.question import BF16, FULL, MIXED, NONE, TrainingConfig, optimizer_named, timed
from perfmodel.transformer.training.state import State
from perfmodel.transformer.training.step.estimate import BACKWARD, FORWARD, UPDATE, TrainingEstimate, TrainingKernel, estimate
from perfmodel.transformer.training.step.step_time import BUBBLE, HOST
from perfmodel.transformer.weight_formats._base import FIELD

FORMATS = ("fp32", "bf16", "fp16")
"""Formats of weights."""
COMMON = ("name", "phase", "batch", "n", "dtype", "hardware", "engine", "power_limit")
APPLY = {
    False: (*COMMON, "kv_len", "graph", "host_us", "clock", "measured"),
    True: (*COMMON, "precision", "optimizer", "recompute", "dropout"),
}
"""Options that apply, to inference and to training."""
DROPS = ("dropout", "pdrop")
"""Endings of the fields of a config that are rates of dropout."""


@dataclass(frozen=True)
class CapturedPass(PassEstimate):
    """A step as ``program`` lists it: the operator ``calls[i]`` launches what ``rows[i]`` sums up. ``needs``: of any program for the step.

    ``unknown``: operators whose work is not known; they are launched, and take no time.
    """

    program: Captured = field(kw_only=True)
    calls: Sequence[Call] = field(kw_only=True)
    needs: Needs = field(kw_only=True)
    unknown: Sequence[str] = field(kw_only=True)

    @property
    def launches(self) -> Number:
        """Kernels that the host launches one by one."""
        return self.program.launches

    @property
    def host_s(self) -> Interval:
        """Seconds that the host takes to launch them, with their interval."""
        low, usual, high = (self.program.launches * launch_s for launch_s in self.program.launch_s)
        return usual, low, high

    @cached_property
    def cost(self) -> Estimate:
        """The sum of all rows, with the bound of the whole pass."""
        return replace(total(row.cost for row in self.rows), needs=self.needs)

    @cached_property
    def profiles(self) -> list[ProgramProfile]:
        """The step as a profile would show it: at the low end of its interval, as usual, and at the high end."""
        return timelines(self.program, _seconds(self.calls, self.rows, Counter(self.program.calls)))

    @property
    def prediction(self) -> Interval | None:
        """Seconds with the ends of the interval, the host's included; None if a row has none."""
        low, usual, high = (profile.span_s for profile in self.profiles)
        return None if self.on_device is None else (usual, low, high)

    @property
    def on_device(self) -> Interval | None:
        """Seconds of the kernels with the ends of the interval; None if a row has none."""
        return interval((row.interval, 1) for row in self.rows)

    @property
    def seconds(self) -> float:
        """Seconds of the step; a row without a prediction takes its roof."""
        return self.profiles[1].span_s

    @property
    def busy_s(self) -> float:
        """Seconds in which a kernel runs."""
        return self.profiles[1].busy_s

    @property
    def waits_s(self) -> float:
        """Seconds in which the device waits for the host."""
        return self.profiles[1].waits["host"]


def check(options: ModelQuestion) -> ModelQuestion:
    """``options`` with launches one by one; UsageError for an option that does not apply."""
    strange = next((name for name in options.given() if name not in APPLY[options.trains]), None)
    if strange is None and options.graph:
        strange = "cuda_graph"
    if strange is not None:
        raise UsageError(
            f"--{strange.replace('_', '-')} does not go with --engine {EAGER_ENGINE}: it runs models eagerly, on one GPU", "leave it out"
        )
    return replace(options, graph=False)


def answer(options: ModelQuestion, model: ModelSpec, config: Mapping[str, Any], device: Device, fallbacks: FallbackDevices) -> ModelAnswer:
    """Answer for a phase of ``model``, whose config.json has the fields ``config``."""
    options = check(options)
    published = options.request_for(replace(model, quantized=None), device)
    r = replace(published, weight_bits=8 * published.dtype.size)
    if r.dtype.name not in FORMATS:
        raise UsageError(f"--dtype {r.dtype.name} with --engine {EAGER_ENGINE}", f"give {', '.join(FORMATS)}")
    fallbacks = listed_once(fallbacks)
    wanted = [(r.step(DECODE if r.phase == DECODE else PREFILL), 1)]
    if r.phase == GENERATE:  # nearly linear in the length: all steps are taken as long as the one in the middle
        steps = r.kv_len - r.n - 1
        wanted += [(r.step(DECODE, r.n + 1 + steps // 2), steps)] if steps else []
    with _eager(config, r.dtype.name) as libraries:
        programs = [_inference(libraries, step, r.host_us) for step, _ in wanted]
    plain = [
        (captured_pass(r.model, step, program, device, fallbacks), times) for (step, times), program in zip(wanted, programs, strict=True)
    ]
    at_clock = clocked(plain, r)
    return ModelAnswer(r, at_clock, _memory(r, plain), eager=_run(at_clock))


def captured_pass(model: ModelSpec, step: ModelPass, program: Captured, device: Device, fallbacks: FallbackDevices) -> CapturedPass:
    """The pass that ``program`` is, ``step`` of ``model``, where attention has run at its sizes before."""
    calls, rows, unknown = _rows(program.calls, device, fallbacks)
    needs = run_pass(model, step, device, fallbacks).cost.needs
    correction = launch_correction(device, fallbacks)
    program = replace(program, planned=[])
    return CapturedPass(model, step, device, False, rows, correction, program=program, calls=calls, needs=needs, unknown=unknown)


def _rows(calls: Iterable[Call], device: Device, fallbacks: FallbackDevices) -> tuple[list[Call], list[PassRow], list[str]]:
    """Rows of equal ``calls``, each with its call, and why others are not counted."""

    def priced(op: Op, cost: Estimate) -> Prediction:
        known = operator_prediction(op, cost, device, fallbacks)
        seconds, low, high = (max(end, float(cost.lower_s)) for end in (known.seconds, known.low, known.high))
        return known._replace(seconds=seconds, low=low, high=high)

    within, found, unknown = launch_correction(device, fallbacks), list[tuple[Call, PassRow]](), list[str]()
    for call, count in Counter(calls).items():
        try:
            ops = [replace(op.times(count), name=_name(op)) for op in counted(call)]
            found += [(call, row_of(op, device, fallbacks, False, within, priced)) for op in ops]
        except UnknownError as error:
            unknown.append(str(error))
    return [call for call, _ in found], [row for _, row in found], unknown


def _seconds(calls: Sequence[Call], rows: Sequence[PassRow], counts: Mapping[Call, int]) -> dict[Call, Ends]:
    """Seconds of one of each of ``calls``, low, usual and high; ``rows`` without a prediction take their roof."""
    seconds: dict[Call, Ends] = {}
    for call, row in zip(calls, rows, strict=True):
        usual, low, high = row.interval or (row.seconds,) * 3
        before = seconds.get(call, (0.0, 0.0, 0.0))
        seconds[call] = before[0] + low / counts[call], before[1] + usual / counts[call], before[2] + high / counts[call]
    return seconds


def _run(steps: Sequence[tuple[CapturedPass, int]]) -> EagerRun:
    """How ``steps`` run, each so many times."""
    waits_s = sum(each.waits_s * times for each, times in steps)
    busy_s = sum(each.busy_s * times for each, times in steps)
    plans_s = PLAN_S[1] * sum(_plans(each.program, each.device) * times for each, times in steps)
    operators = steps[0][0].profiles[1].operators if len(steps) == 1 else []
    kernels = [(operator.call.name, kernel.start_s, kernel.seconds) for operator in operators for kernel in operator.kernels]
    notes = _notes(steps[0][0].program, steps[0][0].device, [why for each, _ in steps for why in each.unknown])
    missing = dict.fromkeys(f"{row.op.name} ({row.missing})" for each, _ in steps for row in each.rows if row.prediction is None)
    notes += [f"Not predicted, so that the roof stands for it: {why}." for why in list(missing)[:3]]
    return EagerRun(busy_s, waits_s, plans_s, kernels, notes)


def _plans(program: Captured, device: Device) -> int:
    """Number of sizes of attention that are planned when they come up first."""
    return len({call for call in program.calls if PLANNED in call.name}) if plans_attention(device) else 0


def _notes(program: Captured, device: Device, unknown: Iterable[str]) -> list[str]:
    """Sentences on what the times of a captured program rest on."""
    fastest, _, slowest = (f"{1e6 * launch_s:.3g}" for launch_s in program.launch_s)
    host = f"{fastest} us" if fastest == slowest else f"{fastest} to {slowest} us"
    notes = [f"Kernels as {EAGER_ENGINE} launches them in PyTorch, one by one: {host} of the host each."]
    if _plans(program, device):
        least, _, most = (f"{1e3 * plan_s:.3g}" for plan_s in PLAN_S)
        notes.append(f"Attention has run at these lengths before: cuDNN plans it the first time, {least} to {most} ms of the host.")
    return [*notes, *(f"Not counted: {why}." for why in list(dict.fromkeys(unknown))[:3])]


def _name(op: Op) -> str:
    """The operator's name, with the matrix of a product, such as ``mm 4096x14336``."""
    name, w = op.name.removeprefix("aten::"), op.timed.workload if op.timed is not None else None
    return f"{name} {w.k}x{w.n}" if op.group == MATMUL and isinstance(w, Matmul) else name


def _memory(r: Request, steps: Sequence[tuple[CapturedPass, int]]) -> MemoryFit:
    """Memory as described, with all beside weights and cache as captured."""
    described = [step_memory(r.model, each.step, r.device) for each, _ in steps]
    beside = [each.program.peak_bytes - parts.weights - parts.kv_cache for (each, _), parts in zip(steps, described, strict=True)]
    activations = max(0, *beside)
    at_the_end = step_memory(r.model, replace(steps[0][0].step, kv_len=r.kv_len), r.device)
    return replace(at_the_end, activations=activations, growing=lambda batch: activations * batch // r.batch)


# A training step


@dataclass(frozen=True, slots=True)
class CapturedTraining(TrainingEstimate):
    """A training step as a capture lists it. ``ends``: its seconds with their interval; ``needs``: of any program for the step."""

    ends: Interval = field(kw_only=True)
    needs: Needs = field(kw_only=True)

    @property
    def cost(self) -> Estimate:
        """The sum of all lines, with the bound of the whole step."""
        return replace(total(line.cost for line in self.lines), needs=self.needs)

    @property
    def prediction(self) -> Interval | None:
        """Seconds with the ends of the interval; None if a kernel has no prediction."""
        return None if any(line.prediction is None for line in self.lines) else self.ends


@dataclass(frozen=True, slots=True)
class CapturedPeak:
    """Bytes at the peak of a captured training step, and in ``state``; what of the rest are gradients is not known."""

    bytes: int
    state: State
    gradients: None = None
    activations: None = None


OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "adam": ("Adam", {"fused": True}),
    "adamw": ("AdamW", {"fused": True}),
    "sgd": ("SGD", {}),
    "momentum": ("SGD", {"momentum": 0.9}),
}
"""PyTorch's optimizers and their options."""


def training(
    options: ModelQuestion, model: ModelSpec, config: Mapping[str, Any], device: Device, fallbacks: FallbackDevices
) -> TrainingEstimate:
    """A training step of ``model``, whose config.json has the fields ``config``; mixed precision is autocast over weights in fp32."""
    options = check(options)
    half, precision = options.training_formats(device)
    t, fallbacks = timed(options.training(model, precision)), listed_once(fallbacks)
    if t.optimizer not in OPTIMIZERS:
        raise UsageError(f"--optimizer {t.optimizer} with --engine {EAGER_ENGINE}", f"give {', '.join(OPTIMIZERS)}")
    if t.recompute.kind not in (NONE, FULL):
        raise UsageError(f"--recompute {options.recompute} with --engine {EAGER_ENGINE}", f"give {NONE} or {FULL}")
    described = estimate(t, device, fallbacks, half=half)
    with _eager(config, half if t.precision == BF16 else "fp32", t.dropout) as libraries:
        program, weights = _trained(libraries, t, half)
    lines, unknown, seconds, parts = list[TrainingKernel](), list[str](), dict[Call, Ends](), dict[str, float]()
    begin, end = program.backward_places
    for part, calls in ((FORWARD, program.calls[:begin]), (BACKWARD, program.calls[begin:end]), (UPDATE, program.calls[end:])):
        called, rows, lacking = _rows(calls, device, fallbacks)
        seconds |= _seconds(called, rows, Counter(calls))
        lines += [TrainingKernel(row.op, row.each, row.prediction, row.missing, part) for row in rows]
        parts[part], unknown = sum(row.seconds for row in rows), [*unknown, *lacking]
    low, usual, high = timelines(replace(program, planned=[]), seconds)
    parts |= {BUBBLE: 0.0, "between kernels": usual.waits["launch"]}
    parts[HOST] = max(usual.span_s - sum(parts.values()), 0.0)
    state = replace(described.job.state(0), weights=weights, optimizer=optimizer_named(t.optimizer).moments * weights)
    return CapturedTraining(
        described.job,
        EAGER_ENGINE,
        replace(described.time, parts=parts, exchanged_s=0.0),
        lines,
        CapturedPeak(program.peak_bytes, state),  # type: ignore[arg-type]
        notes=_notes(program, device, unknown),
        ends=(usual.span_s, low.span_s, high.span_s),
        needs=described.cost.needs,
    )


# Steps of transformers


OTHERWISE = f"give another --dtype or --precision, or leave out --engine {EAGER_ENGINE}"
"""What to do about a model that cannot be captured."""


@contextmanager
def _eager(config: Mapping[str, Any], dtype: str, dropout: bool = False) -> Iterator[tuple[Any, Any, Any]]:
    """PyTorch, transformers and the module of a model without weights in ``dtype``; UsageError if one of them is lacking.

    ``dropout``: with the rates of ``config``, else with none.
    """
    try:
        torch, transformers = import_module("torch"), import_module("transformers")
        quiet = import_module("transformers.utils.logging")
    except ImportError as error:
        raise UsageError(
            f"--engine {EAGER_ENGINE} needs PyTorch and transformers ({error})",
            "pip install 'perfmodel[torch]' transformers; a build of PyTorch without CUDA is enough",
        ) from None
    said, errors = quiet.get_verbosity(), getLogger("torch._subclasses.fake_tensor")
    quiet.set_verbosity_error()
    errors.disabled = True  # what fails is one message
    try:
        yield torch, transformers, _module(torch, transformers, config, _dtype(dtype), dropout)
    finally:
        quiet.set_verbosity(said)
        errors.disabled = False


def _dtype(name: str) -> Any:
    """PyTorch's format called ``name``."""
    from perfmodel.program.recorder import DTYPES

    return next(dtype for dtype, known in DTYPES.items() if known == name)


def _module(torch: Any, transformers: Any, config: Mapping[str, Any], dtype: Any, dropout: bool) -> Any:
    """The module of a causal language model without weights; UsageError if transformers has none."""
    kind, before = config["model_type"], torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        known = {name: value for name, value in config.items() if name not in ("model_type", FIELD)}
        built = transformers.AutoConfig.for_model(kind, **known)
        for name, value in vars(built).items():
            if name.endswith(DROPS) and isinstance(value, float) and not dropout:
                setattr(built, name, 0.0)
        with torch.device("meta"):
            return transformers.AutoModelForCausalLM.from_config(built, dtype=dtype)
    except Exception as error:
        why = f"transformers {transformers.__version__} builds no causal language model of {kind} from this config.json"
        raise UsageError(f"{why}: {_first_sentence(error)}", f"leave out --engine {EAGER_ENGINE}") from None
    finally:
        torch.set_default_dtype(before)


def _first_sentence(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__).partition(". ")[0][:160]


def _inference(libraries: tuple[Any, Any, Any], step: ModelPass, launch_us: float | None) -> Captured:
    """A prefill as ``generate`` runs it, or a decode step after a prefill and another decode step."""
    torch, transformers, module = libraries
    module.eval()
    batch, length = int(step.batch), int(step.kv_len)
    sizes = [length, length] if step.phase == PREFILL else [*([length - 2] if length > 2 else []), *([1] * min(length, 2))]
    inputs, caches = [torch.zeros(batch, size, dtype=torch.long, device="meta") for size in sizes], list[Any]()

    def run() -> None:
        if step.phase == PREFILL or not caches:
            caches[:] = [transformers.DynamicCache(config=module.config)]
        with torch.no_grad():
            module(input_ids=inputs.pop(0), past_key_values=caches[0], use_cache=True, logits_to_keep=1)

    return _captured(run, module, launch_us, len(sizes) - 1)


def _trained(libraries: tuple[Any, Any, Any], t: TrainingConfig, half: str) -> tuple[Captured, int]:
    """A training step after one, and the bytes of its weights."""
    torch, _, module = libraries
    module.train()
    if t.recompute.kind == FULL:
        module.gradient_checkpointing_enable()
    name, options = OPTIMIZERS[t.optimizer]
    optimizer = getattr(torch.optim, name)(module.parameters(), **options)
    tokens = torch.zeros(int(t.batch), int(t.n), dtype=torch.long, device="meta")

    def run() -> None:
        with torch.autocast("cuda", _dtype(half), enabled=t.precision == MIXED):
            loss = module(input_ids=tokens, labels=tokens, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return _captured(run, module, None, 1), sum(weight.numel() * weight.element_size() for weight in module.parameters())


def _captured(step: Callable[[], Any], module: Any, launch_us: float | None, warm_up: int) -> Captured:
    """What ``step`` launches; UsageError if it cannot be captured."""
    try:
        return capture(step, warm_up=warm_up, launch_us=launch_us)
    except PerfmodelError as error:
        raise UsageError(f"{type(module).__name__}: {error.message}", OTHERWISE) from None
    except Exception as error:
        raise UsageError(f"{type(module).__name__} cannot be captured: {_first_sentence(error)}", OTHERWISE) from None
