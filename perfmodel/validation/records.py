"""Measurement records: JSON Lines, one measured kernel per line, the same for the project's own runs and for a user's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from perfmodel.catalog import parse_json
from perfmodel.errors import DataError

MAX_LINE_BYTES = 1 << 20
LEAST_S, MOST_S = 1e-12, 1e9
"""Seconds that a measurement can take."""


@dataclass(frozen=True)
class Seconds:
    """Times of repeated runs of one kernel, in seconds."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "allow_inf_nan": False}

    median: float
    p10: float | None = None
    p90: float | None = None


@dataclass(frozen=True)
class Record:
    """One measurement.

    ``shape``: sizes under the keys that the workload names (attention: batch, heads, kv_heads, n, kv_len, d, causal and the
    optional dv, window, density, mask, dropout; matmul: m, n, k). ``cache``: whether L2 was flushed between runs (cold) or the
    same buffers were timed again (warm); unknown counts as warm. ``counters`` in bytes.
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
    cache: Literal["cold", "warm"] | None = None
    counters: dict[str, float] = field(default_factory=dict)
    launch: dict[str, int] = field(default_factory=dict)
    memory: dict[str, float] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    source: str = ""

    @property
    def group(self) -> str:
        """workload/implementation/pass: what errors are gathered by."""
        return f"{self.workload}/{self.implementation}/{self.direction}"


def profiled(record: Record) -> bool:
    """Whether ``record`` is one run under a profiler: its counters tell something, its time does not."""
    return bool(record.counters) and record.environment.get("runs") == 1


def shipped_records() -> list[Path]:
    """Files of the project's own measurements, by device."""
    return sorted((Path(__file__).parent / "measured").glob("*/*.jsonl"))


def as_record(raw: dict[str, Any]) -> Record:
    """``raw``, an object of the record format, as a Record; pydantic's ValidationError names a wrong field."""
    from pydantic import TypeAdapter

    return TypeAdapter(Record).validate_python(_renamed(raw))


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no number of JSON")


def _renamed(raw: dict[str, Any]) -> dict[str, Any]:
    return {Record.FIELDS.get(key, key): value for key, value in raw.items()}


def _software(path: Path) -> dict[str, Any]:
    """What all records of ``path`` were made with, where a file beside it says so for its ``files``: each record may say more."""
    import json

    beside = path.parent / f"{path.stem.partition('-')[0]}-environment.json"
    if not beside.is_file():
        return {}
    text = json.loads(beside.read_text(encoding="utf-8"))
    named = str(text.get("files", "")).partition(":")[0]
    return dict(text.get("software", {})) if path.stem in named.split(", ") else {}


def read_records(path: Path) -> Iterator[tuple[dict[str, Any], Record]]:
    """Each line of ``path`` as it stands and as a Record; DataError names file, line and field."""
    import json

    from pydantic import TypeAdapter, ValidationError

    adapter, software = TypeAdapter(Record), _software(path)
    try:
        with path.open("rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES + 1), b""), start=1):
                if not line.strip():
                    continue
                if len(line) > MAX_LINE_BYTES:
                    raise DataError(f"{path}, line {number}: longer than {MAX_LINE_BYTES:,} B")
                try:
                    raw = parse_json(line.decode(), parse_constant=_refuse)
                    if b"\\ud" in line.lower():
                        json.dumps(raw, ensure_ascii=False).encode()
                    if not isinstance(raw, dict):
                        raise DataError(f"{path}, line {number}: not a JSON object")
                    record = adapter.validate_python(_renamed(raw))
                except ValidationError as error:
                    first = error.errors(include_url=False, include_context=False)[0]
                    place = ".".join(map(str, first["loc"]))
                    raise DataError(f"{path}, line {number}: {place}: {first['msg']}") from None
                except ValueError as error:  # not JSON, not UTF-8, ambiguous, a number of thousands of digits
                    raise DataError(f"{path}, line {number}: not JSON: {str(error)[:200]}") from None
                if not LEAST_S <= record.time_s.median <= MOST_S:
                    raise DataError(f"{path}, line {number}: time_s.median is {record.time_s.median}", "give seconds, above zero")
                yield raw, replace(record, environment={**software, **record.environment}) if software else record
    except (OSError, ValueError) as error:  # ValueError: a path with a null character
        raise DataError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
