"""Measurement records: JSON Lines, one measured kernel per line, the same for the project's own runs and for a user's.

A file whose name ends in .gz is packed with gzip.

The record alone decides, before any fit, whether fits may see it or are judged on it (``held_out``):

- A record whose source ends in "; fit", "; held out" or "; width" states its own use. Shapes of the last kind set the width of intervals.
- The project's own attention kernels are held out by families (d, causal, tile), so that no shape of a held-out kernel is fitted.
- Serving runs are held out by groups (model, device, engine), all but the groups of ``fitted_runs``.
- Of all other records, every shape is held out whose SHA-256, of its JSON with sorted keys, is odd: half of them.

``calibrate`` fits all records of a user (``all_fitted``), except those that state their own use.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from perfmodel.core.arith import quantile
from perfmodel.core.checks import opened
from perfmodel.core.errors import DataError
from perfmodel.core.files import parse_json, read_json
from perfmodel.core.frozen import dataclass
from perfmodel.timing.base import CLEAN

if TYPE_CHECKING:
    from gzip import GzipFile
    from io import BufferedReader

    from pydantic import TypeAdapter

MAX_LINE_BYTES = 1 << 20
HELD_OUT, FITTED, FOR_WIDTH = "; held out", "; fit", "; width"
STATED_USES = (HELD_OUT, FITTED, FOR_WIDTH)
"""Ends of the sources of records that state their own use."""
SERVING = "serving"
"""Workload of runs of engines, which have ``tpot_s``, ``ttft_s`` or ``tokens_per_s`` in place of ``time_s``."""
SERVING_RUNS, THROUGHPUT_RUNS = "public-serving", "public-throughput"
"""Shipped files of serving runs. They are read only by name, as the prediction of one run takes 0.1 s to seconds."""
LEAST_S, MOST_S = 1e-12, 1e9
"""Range of the seconds of a measurement."""
LARGEST_NUMBER, LONGEST_TEXT = 10**15, 1000
"""Limits of the other numbers in a record, and of the characters of its texts."""


@dataclass(frozen=True)
class Seconds:
    """Median and quantiles of repeated runs of one kernel, in seconds."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "allow_inf_nan": False}

    median: float
    p10: float | None = None
    p90: float | None = None

    @classmethod
    def of(cls, times: Sequence[float]) -> Seconds:
        """Quantiles of ``times``."""
        return cls(quantile(times, 0.5), quantile(times, 0.1), quantile(times, 0.9))

    @property
    def noise(self) -> float:
        """Noise of the runs: (p90 - p10) / median; 0 for a single run."""
        low, high = self.p10 or self.median, self.p90 or self.median
        return (high - low) / self.median if self.median else math.inf


@dataclass(frozen=True)
class Record:
    """One measurement.

    - ``shape``: sizes by key; ``validation.bounds`` lists the keys of each workload.
    - ``cache``: state of the L2 before each run. Flushed by reads (clean; cold in older files), flushed by writes (dirty), or with the same
      buffers timed again (warm). Without it a run counts as warm.
    - ``counters``: hardware counters in bytes. ``memory``: bytes of memory.
    - ``clock``: a run alone after a pause (burst), or repeated for seconds so that a power limit acts (sustained). ``power_w`` and
      ``sm_hz`` are means over that time, ``energy_j`` is per call.
    - ``ttft_s`` and ``tpot_s``: of a serving run, mean seconds to the first token and per token after it; ``time_s`` is the second one.
      ``tokens_per_s``: output tokens per second of all users; if a run has nothing else, the inverse is its time.
    - ``version``: version of the engine.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "allow_inf_nan": False}
    FIELDS: ClassVar[dict[str, str]] = {"pass": "direction"}

    workload: str
    implementation: str
    hardware: str
    dtype: str
    shape: dict[str, int | float | bool | str]
    time_s: Seconds
    direction: Literal["forward", "backward", "both"] = "forward"
    cache: Literal["cold", "clean", "dirty", "warm"] | None = None
    counters: dict[str, float] = field(default_factory=dict)
    launch: dict[str, int] = field(default_factory=dict)
    memory: dict[str, float] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    source: str = ""
    clock: Literal["burst", "sustained"] | None = None
    power_w: float | None = None
    sm_hz: float | None = None
    energy_j: float | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None
    tokens_per_s: float | None = None
    version: str = ""

    @property
    def cache_state(self) -> str:
        """State of the L2 before the run: one of ``timing.cache_state``, or empty if the record does not say."""
        return CLEAN if self.cache == "cold" else self.cache or ""

    @property
    def group(self) -> str:
        """Name of the group in which errors are summarized: workload, implementation and pass, or the model of a serving run."""
        if self.workload == SERVING:
            return f"{self.workload}/{self.implementation}/{self.shape.get('model', '')}"
        name = f"{self.workload}/{self.implementation}/{self.direction}"
        if self.clock == "sustained":
            return f"{name}/sustained"
        return f"{name}/profiled" if self.environment.get("profiled") else name


def profiled(record: Record) -> bool:
    """Whether ``record`` is a single run under a profiler: its counters are valid, its time is not."""
    return bool(record.counters) and record.environment.get("runs") == 1


@cache
def fitted_runs() -> frozenset[tuple[str, ...]]:
    """Groups of serving runs (model, device, engine) on which engines' overheads were chosen; drawn before, and all others are held out."""
    return frozenset(map(tuple, read_json(Path(__file__).parent / "measured" / "fitted-serving-runs.json")))


def held_out(record: Record) -> bool:
    """Whether no fit may see ``record``."""
    if record.source.endswith(STATED_USES):
        return not record.source.endswith(FITTED)
    if record.workload == SERVING:
        return (record.shape.get("model"), record.hardware, record.shape.get("engine")) not in fitted_runs()
    return int(hashlib.sha256(group_key(record).encode()).hexdigest(), 16) % 2 == 1


def all_fitted(records: Iterable[Record]) -> list[Record]:
    """``records`` marked for fits, except those that state their own use."""
    return [record if record.source.endswith(STATED_USES) else replace(record, source=record.source + FITTED) for record in records]


def sets_width(record: Record) -> bool:
    """Whether ``record`` is used only for the width of prediction intervals."""
    return record.source.endswith(FOR_WIDTH)


def group_key(record: Record) -> str:
    """Key of records that are fitted or held out together, also in cross-validation: the shape, or the family of a project's kernel."""
    shape, launch = record.shape, record.launch
    if record.implementation.startswith("numba-") and record.workload == "attention":
        return json.dumps([shape.get("d", 0), shape.get("causal", False), launch.get("br", 0), launch.get("bc", 0)])
    return json.dumps(shape, sort_keys=True)


PACKED, SUFFIX = ".gz", ".jsonl"


def name_of(path: Path) -> str:
    """Name of a file of records without its suffixes.

    >>> name_of(Path("drawn.jsonl.gz")), name_of(Path("drawn.jsonl"))
    ('drawn', 'drawn')
    """
    return path.name.removesuffix(PACKED).removesuffix(SUFFIX)


def shipped_records(*names: str) -> list[Path]:
    """Files of shipped measurements, sorted by device: those called ``names`` (``name_of``), by default all but serving runs."""
    folder = Path(__file__).parent / "measured"
    paths = sorted(path for suffix in (SUFFIX, SUFFIX + PACKED) for path in folder.glob(f"*/*{suffix}"))
    if names:
        return [path for path in paths if name_of(path) in names]
    return [path for path in paths if name_of(path) not in (SERVING_RUNS, THROUGHPUT_RUNS)]


def as_record(raw: dict[str, Any]) -> Record:
    """``raw``, an object of the record format, as a Record; pydantic's ValidationError names a wrong field."""
    return _adapter().validate_python(_renamed(raw))


def raw_of(record: Record) -> dict[str, Any]:
    """``record`` as an object of the record format, without its empty fields."""
    key_of = {field: key for key, field in Record.FIELDS.items()}
    values = {**vars(record), "time_s": {key: value for key, value in asdict(record.time_s).items() if value is not None}}
    if record.workload == SERVING:
        del values["time_s"]
    return {key_of.get(name, name): value for name, value in values.items() if value not in ({}, "", None)}


@cache
def _adapter() -> TypeAdapter[Record]:
    from pydantic import TypeAdapter

    return TypeAdapter(Record)


def _renamed(raw: dict[str, Any]) -> dict[str, Any]:
    """``raw`` under the names of Record's fields, with the ``time_s`` of a serving run."""
    renamed = {Record.FIELDS.get(key, key): value for key, value in raw.items()}
    if raw.get("workload") == SERVING and "time_s" not in raw:
        if "tpot_s" in raw:
            renamed["time_s"] = {"median": raw["tpot_s"]}
        elif "tokens_per_s" in raw:
            renamed["time_s"] = {"median": _seconds_per_token(raw["tokens_per_s"])}
    return renamed


def _seconds_per_token(rate: object) -> float:
    """Seconds per token at ``rate`` tokens per second; 0 if the rate has no meaning."""
    return 1 / rate if isinstance(rate, (int, float)) and rate > 0 else 0.0


def _software(path: Path) -> dict[str, Any]:
    """Software versions that hold for all records of ``path``.

    They stand beside it in X-environment.json, where X is the first word of its name, if that file lists it under ``files``.
    """
    beside = path.parent / f"{name_of(path).partition('-')[0]}-environment.json"
    if not beside.is_file():
        return {}
    content = read_json(beside)
    if not isinstance(content, dict) or not isinstance(content.get("software", {}), dict):
        raise DataError(f"{beside}: not an object with an object 'software'", "mend it, or move it away")
    listed = str(content.get("files", "")).partition(":")[0].split(", ")
    return dict(content.get("software", {})) if name_of(path) in listed else {}


@contextmanager
def unpacked(path: Path) -> Iterator[BufferedReader | GzipFile]:
    """``path`` opened for reading, unpacked if it is packed; DataError if it cannot be read."""
    with opened(path) as file:
        if path.suffix != PACKED:
            yield file
            return
        import gzip
        import zlib

        try:
            with gzip.GzipFile(fileobj=file) as content:
                yield content
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise DataError(f"{path}: damaged, or not packed with gzip: {error}", "pack it again, or leave .gz out of its name") from None


def read_records(path: Path) -> Iterator[tuple[dict[str, Any], Record]]:
    """(object as it stands, Record) for each line of ``path``; DataError names file, line and field."""
    with unpacked(path) as file:
        software = _software(path)
        for number, line in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES + 1), b""), start=1):
            if not line.strip():
                continue
            if len(line) > MAX_LINE_BYTES:
                raise DataError(f"{path}, line {number}: longer than {MAX_LINE_BYTES:,} B")
            raw, record = _line(line, f"{path}, line {number}")
            yield raw, replace(record, environment={**software, **record.environment}) if software else record


def _line(line: bytes, place: str) -> tuple[dict[str, Any], Record]:
    """The object on ``line`` and its Record; ``place``: file and line, for errors."""
    from pydantic import ValidationError

    try:
        raw = parse_json(line.decode(), parse_constant=_refuse)
        if b"\\ud" in line.lower():  # an escaped surrogate alone is no text: encoding raises
            json.dumps(raw, ensure_ascii=False).encode()
        if not isinstance(raw, dict):
            raise DataError(f"{place}: not a JSON object")
        record = _adapter().validate_python(_renamed(raw))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        raise DataError(f"{place}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    except ValueError as error:  # not JSON, not UTF-8, ambiguous, a number of thousands of digits
        raise DataError(f"{place}: not JSON: {str(error)[:200]}") from None
    _check_ranges(record, place)
    return raw, record


def _refuse(constant: str) -> Any:
    """ValueError for the constants NaN and Infinity, which Python's parser would accept."""
    raise ValueError(f"{constant} is no number of JSON")


def _check_ranges(record: Record, place: str) -> None:
    """DataError for seconds out of range, and for texts and numbers that are too large."""
    seconds: dict[str, float | None] = {}
    if record.tpot_s is not None:
        seconds["tpot_s"] = record.time_s.median
    elif record.tokens_per_s is None:
        seconds["time_s.median"] = record.time_s.median
    seconds["ttft_s"] = record.ttft_s
    if record.tokens_per_s is not None:
        seconds["1 / tokens_per_s"] = _seconds_per_token(record.tokens_per_s)
    for name, value in seconds.items():
        if value is not None and not LEAST_S <= value <= MOST_S:
            raise DataError(f"{place}: {name} is {value}", "give seconds, above zero")
    quantiles = {"time_s.p10": record.time_s.p10, "time_s.p90": record.time_s.p90}
    for name, value in {**vars(record), **record.shape, **quantiles}.items():
        if isinstance(value, str) and len(value) > LONGEST_TEXT:
            raise DataError(f"{place}: {name} has {len(value):,} characters", f"give at most {LONGEST_TEXT}")
        if isinstance(value, (int, float)) and abs(value) > LARGEST_NUMBER:
            raise DataError(f"{place}: {name} is too large", f"give a number up to {LARGEST_NUMBER:.0e}")
