"""What a time model is: named parameters, and seconds of one case on one device. Also how models and calibrations are found.

A model holds what is known of a family of kernels (tiles, grid, order of blocks). Its parameters hold what only a measurement can tell
(latencies, shares of a peak that are reached). They are per implementation and architecture, never per shape.

A constant in a model's file has a mark: ``# tuned`` was chosen on measurements that fits may see, beside the fitted parameters; ``# known``
is given by hardware, by the source of a kernel, or by definition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from perfmodel.core.architectures import Traits, traits_of
from perfmodel.core.errors import DataError, UnavailableError, UsageError, suggest
from perfmodel.core.files import read_json, read_yaml
from perfmodel.core.frozen import dataclass
from perfmodel.core.hardware import Calibration, Device
from perfmodel.core.kept import cached_by_identity
from perfmodel.core.plugins import folders_written, plugins
from perfmodel.core.workload import BACKWARD, FORWARD, Attention
from perfmodel.timing.implementations import calibrated_as

MODELS = ("perfmodel.timing.models", "perfmodel.transformer.time_models")
"""Folders of time models."""
WIDE = 3.0
"""Spread, in logarithms, of a parameter that little is known about before measurements."""

CLEAN, DIRTY, WARM = STATES = ("clean", "dirty", "warm")
"""What the L2 holds when a kernel starts: ``cache_state.py``."""


def state_named(name: str) -> str:
    """``name`` itself if it is a state of the L2; UsageError if it is not."""
    if name not in STATES:
        raise UsageError(f"--cache: there is no state {name!r}", suggest(name, list(STATES)))
    return name


def check_state_read(cache: str, predicted: bool) -> None:
    """UsageError if a state other than clean is asked for and nothing is ``predicted``: no count, bound or roof depends on it."""
    if cache != CLEAN and not predicted:
        fix = "leave it out, or take a device and a kernel that are calibrated"
        raise UsageError(f"--cache {cache} is of a kernel that is predicted, and none is", fix)


@dataclass(frozen=True, slots=True)
class Case:
    """A workload as one implementation runs it.

    ``cache``: ``CLEAN``, ``DIRTY`` or ``WARM``, or empty if a record does not say, which counts as warm. ``launch``: what is known of its
    launch (br, bc, threads, ...).
    """

    workload: Any
    implementation: str
    direction: str = FORWARD
    cache: str = CLEAN
    launch: Mapping[str, int] = field(default_factory=dict)

    @property
    def flushed(self) -> bool:
        """Whether the L2 holds nothing of its inputs."""
        return self.cache in (CLEAN, DIRTY)


@dataclass(frozen=True, slots=True)
class Prior:
    """Expectation of a parameter before a fit: the value ``start``, and in logarithms the ``spread`` around it.

    ``without``: the value that takes its term out of the model, if there is one. ``buys``: what the term is worth on records that no fit
    saw: how much the median and the 90 % quantile of the error would grow without it, over how many ``rows`` of which ``kernels``.
    """

    start: float
    spread: float = WIDE
    without: float | None = None
    buys: Mapping[str, Any] = field(default_factory=dict)


class Parameter(NamedTuple):
    """A fitted number above zero; the end of its name is its unit."""

    name: str
    meaning: str
    prior: Prior


PARAMETERS = Path(__file__).with_name("parameters")
"""Folder of the parameters of the shipped models. A file has, by model and parameter, the fields of ``Parameter`` and ``Prior``; models
that share code share a file. A meaning that several parameters share stands once, under ``terms``; ``like``: the model whose parameters
come first, without those given anew."""


@cache
def parameters_in(file: str) -> dict[str, tuple[Parameter, ...]]:
    """Parameters of each model of a file of ``PARAMETERS``; those that measurements determine best come first."""
    by_model = read_yaml(PARAMETERS / f"{file}.yaml")[0]
    terms = by_model.pop("terms", {})

    def parameter(name: str, fields: dict[str, Any]) -> Parameter:
        prior = {key: value for key, value in fields.items() if key != "meaning"}
        return Parameter(name, fields.get("meaning") or terms[name], Prior(**prior))

    def all_of(entries: dict[str, Any]) -> dict[str, Any]:
        if "like" not in entries:
            return entries
        return all_of(by_model[entries["like"]]) | {name: entries[name] for name in entries if name != "like"}

    return {model: tuple(parameter(name, fields) for name, fields in all_of(entries).items()) for model, entries in by_model.items()}


STATE_WORDS = {
    CLEAN: "inputs cold in DRAM, no line of the L2 to be written back",
    DIRTY: "inputs cold in DRAM, lines of the L2 that were written before written back meanwhile",
    WARM: "the L2 holds what the run before left of the same buffers",
}
ALONE = f"{STATE_WORDS[CLEAN]}, the launch hidden behind earlier work"
"""What a predicted time of one kernel assumes."""


class PartTime(NamedTuple):
    """A kernel of a sequence: its ``name``, and its ``seconds`` when run alone, by the calibration ``block``."""

    name: str
    seconds: float
    block: Calibration


def always(case: Case) -> bool:
    """True."""
    return True


def never(case: Case) -> bool:
    """False."""
    return False


class Model(NamedTuple):
    """A family of kernels and how to predict their time.

    - ``declared``: its parameters, or the file of ``PARAMETERS`` that has them.
    - ``covers(case)``: whether the model is meant for the case.
    - ``seconds(case, device, parameters)``: seconds of one call with all its kernels. UnavailableError if the profile or the calibrations
      of the device lack a number.
    - ``source``: where its structure comes from.
    - ``assumes``: what it assumes about operands, caches and launches unless the case says otherwise.
    - ``implementations``: names of the implementations that it describes, in records and calibrations.
    - ``composite``: it uses the calibrations of other implementations, and is fitted after them. ``parts(case, device)``: their kernels,
      for a sequence of kernels. ``part_workloads``: their workloads; these calibrations may come from other devices.
    - ``knows_warm(case)``: whether ``seconds`` holds for a warm case too; if not, the rule of ``cache_state.py`` derives it from a clean
      one. ``warm_kernels(case)``: number of kernels that read tensors from before the call, for that rule.
    - ``launch(case, device)``: what the library decides (tile, grid, order), if that is known.
    - ``family``: name shared by models that differ only in the number format, so that parameters of one serve another.
    - ``from_tables``: its kernels are known from published tables, a few rows each. ``few_sizes``: each device was timed with a handful of
      sizes, the same ones everywhere. In both cases no interval is narrower than the one over all kernels of the model.
    - ``runs_on(implementation, traits)``: whether that library runs this kernel on devices with these traits.
    - ``regime``: decode or prefill, if it covers only one of them.
    """

    name: str
    declared: tuple[Parameter, ...] | str
    covers: Callable[[Case], bool]
    seconds: Callable[[Case, Device, Mapping[str, float]], float]
    source: str
    assumes: str = ALONE
    implementations: tuple[str, ...] = ()
    composite: bool = False
    parts: Callable[[Case, Device], Iterable[PartTime]] | None = None
    knows_warm: Callable[[Case], bool] = always
    warm_kernels: Callable[[Case], int] = lambda case: 1
    launch: Callable[[Case, Device], Any] | None = None
    part_workloads: tuple[str, ...] = ()
    family: str = ""
    from_tables: bool = False
    few_sizes: bool = False
    runs_on: Callable[[str, Traits], bool] = lambda implementation, traits: True
    regime: str = ""

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The fitted numbers, in the order of a fit."""
        return parameters_in(self.declared)[self.name] if isinstance(self.declared, str) else self.declared

    def priors(self) -> dict[str, Prior]:
        """Priors by parameter, in their order."""
        return {parameter.name: parameter.prior for parameter in self.parameters}

    def starts(self) -> dict[str, float]:
        """Parameters before any fit."""
        return {name: prior.start for name, prior in self.priors().items()}


def model_names() -> list[str]:
    """Names of the time models, sorted; all their modules are loaded."""
    return sorted(name for name, _ in plugins(MODELS, "MODEL", "MODELS"))


@cache
def find_model(name: str) -> Model:
    """The model called ``name``; DataError if there is none. Few modules but its own are loaded."""
    for model_name, plugin in plugins(MODELS, "MODEL", "MODELS", name):
        if model_name == name:
            model: Model = plugin
            return model
    raise DataError(f"no time model is called {name!r}", suggest(name, model_names()))


def check_calibrations(device: Device) -> None:
    """DataError if a calibration of ``device`` names an unknown model, or not exactly the parameters of its model."""
    for index, block in enumerate(device.calibration):
        expected, given = {parameter.name for parameter in find_model(block.model).parameters}, set(block.parameters)
        for problem, names in (("lacks", expected - given), ("does not know", given - expected)):
            if names:
                raise DataError(f"calibration.{index}.parameters: {block.model} {problem} {', '.join(sorted(names))}", "calibrate again")


COLLECTIVE = "collective"
PASS, CONVOLUTION = "pass", "convolution"
"""Workloads of kernels of programs, whose source is the same for GPUs of all makers."""

SAME_TIME = {"fp16": "bf16", "bf16": "fp16"}
"""Formats that a unit multiplies at one rate: what was measured with one holds for the other."""
ONE_BYTE = {"fp8": "bf16"}
"""One-byte format, and the two-byte format whose parameters serve it if a kernel was not timed in one byte."""


def plain_attention(case: Case, *absent: str) -> bool:
    """Whether the case is one pass of attention without the options that are named ``absent``."""
    w = case.workload
    if not isinstance(w, Attention) or case.direction not in (FORWARD, BACKWARD):
        return False
    return not any(getattr(w, name) for name in absent)


@cached_by_identity
def calibrations_of(device: Device) -> dict[tuple[str, str], list[Calibration]]:
    """Calibrations of ``device`` by (workload, direction)."""
    by_kind: dict[tuple[str, str], list[Calibration]] = {}
    for block in device.calibration:
        by_kind.setdefault((block.workload, block.direction), []).append(block)
    return by_kind


def calibrations(device: Device, workload: str, dtype: str, case: Case) -> list[Calibration]:
    """Calibrations of ``device`` that serve the case, its own name first; those of collectives serve every format."""
    candidates = calibrations_of(device).get((workload, case.direction))
    if not candidates:
        return []
    dtypes, names = {dtype, SAME_TIME.get(dtype, dtype)}, calibrated_as(case.implementation, workload)

    def serves(block: Calibration) -> bool:
        if block.implementation not in names or (workload != COLLECTIVE and dtypes.isdisjoint(block.dtypes)):
            return False
        return find_model(block.model).covers(case)

    return sorted(filter(serves, candidates), key=lambda block: block.implementation != case.implementation)


@cached_by_identity
def _families(device: Device) -> set[str]:
    """Model families, which differ only in the number format, that ``device`` has calibrations of."""
    return {find_model(block.model).family for block in device.calibration} - {""}


def other_formats(device: Device, case: Case) -> list[Calibration]:
    """Calibrations of ``device`` in other number formats, by models of the family of the case's model, renamed to that model."""
    families = _families(device)
    if not families:
        return []
    case_model = next((model for model in models_of().get(case.implementation, []) if model.covers(case)), None)
    if case_model is None or case_model.family not in families:
        return []
    of_family = [block for block in device.calibration if find_model(block.model).family == case_model.family]
    return [replace(block, implementation=case.implementation, model=case_model.name) for block in of_family]


def calibrated_seconds(device: Device, workload: str, dtype: str, case: Case) -> float | None:
    """Seconds of ``case`` by the first calibration of ``device`` that is meant for it; None without any."""
    blocks = calibrations(device, workload, dtype, case)
    return find_model(blocks[0].model).seconds(case, device, blocks[0].parameters) if blocks else None


def dram_bandwidth(device: Device) -> float:
    """DRAM bandwidth of ``device`` in B/s; UnavailableError without one in the profile."""
    bandwidth = device.dram.bandwidth_bytes_per_s
    if bandwidth is None:
        raise UnavailableError(f"{device.id} has no DRAM bandwidth in its profile", "add the bandwidth of its dram level")
    return bandwidth


NUMBERS: dict[str, Callable[[Device], float | None]] = {
    "multiprocessors": lambda device: getattr(device.multiprocessors, "number", None),
    "highest clock": lambda device: getattr(device.clocks.max, "number", None),
    "tensor clock": lambda device: getattr(device.clocks.tensor or device.clocks.max, "number", None),
    "DRAM bandwidth": lambda device: getattr(device.dram.bandwidth, "number", None),
    "L2 capacity": lambda device: device.cache_bytes,
    "matrix edge": lambda device: getattr(device.matrix_edge, "number", None),
}
"""Numbers that time models read from a profile, by the name that errors use: counts, Hz, nominal B/s, bytes."""


def numbers_of(device: Device, *names: str) -> list[float]:
    """Values of ``device`` for these names of ``NUMBERS``, in their order; UnavailableError says which its profile lacks."""
    values = {name: NUMBERS[name](device) for name in names}
    missing = [name for name, value in values.items() if value is None]
    if missing:
        fix = "add what is missing, or take a device that has it"
        raise UnavailableError(f"{device.id} lacks {' and '.join(missing)} in its profile", fix)
    return [value for value in values.values() if value is not None]


def lost_share(ratio: float, survives: float, is_lost: float) -> float:
    """Share of repeatedly scanned tensors that the cache has lost by the next scan. ``ratio``: working set over cache size.

    Nothing is lost up to the ratio ``survives``, everything from ``is_lost`` on, and in between the share grows linearly.
    """
    return min(max((ratio - survives) / (is_lost - survives), 0.0), 1.0)


L2_STATE_FILE = Path(__file__).with_name("cache_state.json")
"""What a dirty L2 costs and a warm one saves, fitted by ``tools/refresh/cache_state.py``."""
L2_STATE = read_json(L2_STATE_FILE)
WARM_LATENCY_S: float = L2_STATE["warm_latency_us"] * 1e-6
"""Seconds that first loads and last stores save if the L2 holds them."""


CHOSEN = Path(__file__).with_name("chosen.json")
"""Constants that no fit sets, by name: value, meaning, and what it buys or where it is used."""


@cache
def chosen(name: str) -> Any:
    """The value of the constant ``name`` in ``CHOSEN``."""
    return read_json(CHOSEN)[name]["value"]


def models_of() -> dict[str, list[Model]]:
    """The models that describe each implementation, as every model declares them; all their modules are loaded."""
    return _models_of(folders_written(MODELS))


@cache
def _models_of(written: tuple[int, ...]) -> dict[str, list[Model]]:
    """Models by implementation. ``written``: when each folder of models last changed, which is the key of the cache."""
    by_implementation: dict[str, list[Model]] = {}
    for model in map(find_model, model_names()):
        for implementation in model.implementations:
            by_implementation.setdefault(implementation, []).append(model)
    return by_implementation


def model_of(case: Case, device: Device | None = None) -> Model:
    """The model that describes ``case``, on ``device`` if one is given; UnavailableError if there is none."""
    for model in models_of().get(case.implementation, []):
        if model.covers(case) and (device is None or model.runs_on(case.implementation, traits_of(device))):
            return model
    raise UnavailableError(f"no time model of {case.implementation}/{case.direction}")
