"""Measurement records: JSON Lines, one measured kernel per line, the same for the project's own runs and for a user's.

A file whose name ends in .gz is packed with gzip.

The record alone decides, before any fit, whether fits may see it or are judged on it:

- A record whose source ends in "; fit" or "; held out" says it itself: its shapes were drawn apart.
- Of the project's own attention kernels, whole families (d, causal, tile) are held out: never one shape of a fitted kernel.
- Of serving runs, whole groups (model, device, engine) are fitted: those of ``fitted_runs``, on which engines' overheads were chosen.
- Of all others, half of the shapes: those whose SHA-256, of the shape as JSON with sorted keys, is odd.

A user's records are all fitted when ``calibrate`` reads them (``all_fitted``), but for those that say that they are held out.
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
"""Ends of the sources of records that state their own use."""
SERVING = "serving"
"""Workload of runs of engines, which have ``tpot_s``, ``ttft_s`` or ``tokens_per_s`` in place of ``time_s``."""
SERVING_RUNS, THROUGHPUT_RUNS = "public-serving", "public-throughput"
"""Shipped files of such runs, which are read only by name, as predicting one takes 0.1 s to seconds."""
LEAST_S, MOST_S = 1e-12, 1e9
LARGEST_NUMBER, LONGEST_TEXT = 10**15, 1000
"""Range of the seconds of a measurement, and limits of other numbers and of texts in a record."""


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
        return ((self.p90 or self.median) - (self.p10 or self.median)) / self.median if self.median else math.inf


@dataclass(frozen=True)
class Record:
    """One measurement.

    ``shape``: sizes under the keys that the workload names (attention: batch, heads, kv_heads, n, kv_len, d, causal and the optional dv,
    window, density, mask, dropout; matmul: m, n, k, and the optional batch, aligned, crossed). ``cache``: whether the L2 was flushed
    between runs by reads (clean; cold in older files) or by writes (dirty), or the same buffers were timed again (warm); unknown counts as
    warm. ``counters`` in bytes. ``clock``: alone after a pause (burst) or run for seconds, where a power limit acts (sustained);
    ``power_w`` and ``sm_hz`` meanwhile, ``energy_j`` per call. A serving run has mean seconds to the first token, ``ttft_s``, and per token
    after it, ``tpot_s``, which is also its ``time_s``; ``version`` is the engine's. ``tokens_per_s``: output tokens per second of all
    users; if a run has nothing else, the inverse is its time.
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
        return {"cold": CLEAN, None: ""}.get(self.cache, self.cache or "")

    @property
    def group(self) -> str:
        """Group of the record's error: workload, implementation, pass, and sustained or profiled; for serving engine and model."""
        if self.workload == SERVING:
            return f"{self.workload}/{self.implementation}/{self.shape.get('model', '')}"
        apart = "/sustained" if self.clock == "sustained" else "/profiled" if self.environment.get("profiled") else ""
        return f"{self.workload}/{self.implementation}/{self.direction}{apart}"


def profiled(record: Record) -> bool:
    """Whether ``record`` is a single run under a profiler: its counters are valid, its time is not."""
    return bool(record.counters) and record.environment.get("runs") == 1


@cache
def fitted_runs() -> frozenset[tuple[str, ...]]:
    """Groups of serving runs (model, device, engine), drawn before anything was fitted to them; all others are held out."""
    return frozenset(map(tuple, read_json(Path(__file__).parent / "measured" / "fitted-serving-runs.json")))


def held_out(record: Record) -> bool:
    """Whether no fit may see ``record``."""
    if record.source.endswith((HELD_OUT, FITTED, FOR_WIDTH)):
        return not record.source.endswith(FITTED)
    if record.workload == SERVING:
        return (record.shape.get("model"), record.hardware, record.shape.get("engine")) not in fitted_runs()
    return int(hashlib.sha256(group_key(record).encode()).hexdigest(), 16) % 2 == 1


def all_fitted(records: Iterable[Record]) -> list[Record]:
    """``records`` marked for fits, except those that state their own use."""
    marked = (HELD_OUT, FITTED, FOR_WIDTH)
    return [record if record.source.endswith(marked) else replace(record, source=record.source + FITTED) for record in records]


def sets_width(record: Record) -> bool:
    """Whether ``record`` is for the interval of a fit that did not see it."""
    return record.source.endswith(FOR_WIDTH)


def group_key(record: Record) -> str:
    """Key of records that are fitted or held out together, also in cross-validation: the family of an own kernel, or the shape."""
    kept: Any = record.shape
    if record.implementation.startswith("numba-") and record.workload == "attention":
        launch = record.launch
        kept = [record.shape.get("d", 0), record.shape.get("causal", False), launch.get("br", 0), launch.get("bc", 0)]
    return json.dumps(kept, sort_keys=True)


PACKED, SUFFIX = ".gz", ".jsonl"


def name_of(path: Path) -> str:
    """Name of a file of records without its suffixes.

    >>> name_of(Path("drawn.jsonl.gz")), name_of(Path("drawn.jsonl"))
    ('drawn', 'drawn')
    """
    return path.name.removesuffix(PACKED).removesuffix(SUFFIX)


def shipped_records(*names: str) -> list[Path]:
    """Files of the project's own measurements, by device: those called ``names`` (``name_of``), by default all but serving runs."""
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
    names = {field: key for key, field in Record.FIELDS.items()}
    known = {**vars(record), "time_s": {key: value for key, value in asdict(record.time_s).items() if value is not None}}
    left = "time_s" if record.workload == SERVING else ""
    return {names.get(name, name): value for name, value in known.items() if value not in ({}, "", None) and name != left}


@cache
def _adapter() -> TypeAdapter[Record]:
    from pydantic import TypeAdapter

    return TypeAdapter(Record)


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no number of JSON")


def _renamed(raw: dict[str, Any]) -> dict[str, Any]:
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
    """Software of all records of ``path``, from a file beside it that lists it among its ``files``; a record may say more."""
    beside = path.parent / f"{name_of(path).partition('-')[0]}-environment.json"
    if not beside.is_file():
        return {}
    text = read_json(beside)
    if not isinstance(text, dict) or not isinstance(text.get("software", {}), dict):
        raise DataError(f"{beside}: not an object with an object 'software'", "mend it, or move it away")
    named = str(text.get("files", "")).partition(":")[0]
    return dict(text.get("software", {})) if name_of(path) in named.split(", ") else {}


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
    """(line of ``path`` as it stands, its Record) for each line; DataError names file, line and field."""
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
    from pydantic import ValidationError

    try:
        raw = parse_json(line.decode(), parse_constant=_refuse)
        if b"\\ud" in line.lower():
            json.dumps(raw, ensure_ascii=False).encode()
        if not isinstance(raw, dict):
            raise DataError(f"{place}: not a JSON object")
        record = _adapter().validate_python(_renamed(raw))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        raise DataError(f"{place}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    except ValueError as error:  # not JSON, not UTF-8, ambiguous, a number of thousands of digits
        raise DataError(f"{place}: not JSON: {str(error)[:200]}") from None
    times = {"time_s.median" if record.tpot_s is None else "tpot_s": record.time_s.median, "ttft_s": record.ttft_s}
    if record.tokens_per_s is not None:
        times = {**times, "1 / tokens_per_s": _seconds_per_token(record.tokens_per_s), "time_s.median": None}
    for name, seconds in times.items():
        if seconds is not None and not LEAST_S <= seconds <= MOST_S:
            raise DataError(f"{place}: {name} is {seconds}", "give seconds, above zero")
    for name, value in {**vars(record), **record.shape, **{f"time_s.{end}": getattr(record.time_s, end) for end in ("p10", "p90")}}.items():
        if isinstance(value, str) and len(value) > LONGEST_TEXT:
            raise DataError(f"{place}: {name} has {len(value):,} characters", f"give at most {LONGEST_TEXT}")
        if isinstance(value, (int, float)) and abs(value) > LARGEST_NUMBER:
            raise DataError(f"{place}: {name} is too large", f"give a number up to {LARGEST_NUMBER:.0e}")
    return raw, record
