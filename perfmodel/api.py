"""The Python interface: a function for each command; its options by name, with underscores, and its arguments in their order.

``perfmodel.matmul(m=8192, n=128, k=8192)`` answers as ``perfmodel matmul -m 8192 -n 128 -k 8192`` does. A ``Result`` comes back: printed
it is the verdict, its fields are those of ``--json``. ``help(perfmodel.matmul)`` lists the options.

>>> import perfmodel
>>> cache = perfmodel.kv_cache("llama-3-8b", n=8192, batch=16)
>>> cache.bytes, cache["bytes"]
(17179869184, 17179869184)

>>> comparison = perfmodel.attention(n=4096, d=64, heads=16, hardware="h200")
>>> [(row.algorithm, row.flops, row.bound) for row in comparison.results]
[('standard', 68719476736, 'dram'), ('flash2', 68719476736, 'tensor')]

Two have functions of their own: ``compare_attention`` gives the counts themselves, exact integers of any size among them, and ``sweep``
columns of a grid in memory.

>>> columns = perfmodel.sweep(n="1024:4096:x2", d=64, heads=16, hardware="h200", algorithm=["standard", "flash2"])
>>> columns["n"][:4].tolist(), columns["algorithm"].tolist()[:4]
([1024, 2048, 4096, 1024], ['standard', 'standard', 'standard', 'flash2'])
>>> (columns["sram_bytes"][:3] / columns["sram_bytes"][3:]).round(2).tolist()
[3.77, 3.88, 3.94]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

from perfmodel.core.errors import UnavailableError, UsageError
from perfmodel.core.question import check_type, converted, from_python
from perfmodel.result import PANDAS, Result

if TYPE_CHECKING:
    from pandas import DataFrame
    from typer import Typer

    from perfmodel.core.hardware import Device
    from perfmodel.kernels.attention.request import Comparison
    from perfmodel.sweep.table import RowTable

MOST_BYTES = 1 << 32
"""Default limit in bytes for a sweep's columns in memory."""


def result(command: str, /, *places: Any, **options: Any) -> Result:
    """The answer of the command called ``command`` for these options.

    ``places``: its arguments, such as the name of a model; of ``hardware``, first ``list``, ``show`` or ``add``. ``options``: those of the
    command with underscores, by the name of their field (``direction`` for ``--pass``); a list where one may be repeated.
    ``explain="all"`` adds the formula of every number, ``output="report.html"`` writes the report to a file.

    UsageError for options without a meaning; DataError and UnavailableError as the command says them.

    >>> comparison = result("softmax", rows=4096, cols=32768)
    >>> [row.algorithm for row in comparison.results]
    ['safe', 'online', 'fused']
    """
    from perfmodel.cli import command_app
    from perfmodel.commands._command import report_of
    from perfmodel.report.provenance import named_devices
    from perfmodel.sweep.values import scalar

    places = tuple(map(scalar, places))
    options = {name: scalar(value) for name, value in options.items()}
    report = report_of(command_app(command), command, places, options)
    arguments = ", ".join([*map(repr, places), *(f"{name}={value!r}" for name, value in options.items())])
    return Result(report, f"perfmodel.{command.replace('-', '_')}({arguments})", named_devices(options))


def answer(command: str, /, *places: Any, **options: Any) -> dict[str, Any]:
    """The object that ``perfmodel COMMAND --json`` prints for these options, as plain dicts: ``result(...).to_dict()``.

    >>> answer("kv_cache", "llama-3-8b", n=8192)["bytes"]
    1073741824
    """
    return result(command, *places, **options).to_dict()


def function(name: str) -> Callable[..., Any]:
    """``perfmodel.NAME`` of a command, with its signature and its help; UsageError for no command."""
    from perfmodel.cli import command_app

    return sweep if name == "sweep" else _function(name, command_app(name))


@cache
def _function(name: str, app: Typer) -> Callable[..., Result]:
    from perfmodel.commands._python import help_of, signature_of

    def command_function(*places: Any, **options: Any) -> Result:
        return result(name, *places, **options)

    command_function.__name__ = command_function.__qualname__ = name
    command_function.__module__ = "perfmodel"
    command_function.__signature__ = signature_of(app, Result)  # type: ignore[attr-defined]
    command_function.__doc__ = help_of(app, name)
    return command_function


def compare_attention(*, hardware: str | Device | None = None, implementation: str | None = None, **options: Any) -> Comparison:
    """The Comparison that a report of attention is made of: exact counts, traffic, bound and roof of each algorithm.

    ``n`` queries, ``kv_len`` keys, head dims ``d`` and ``dv``: shapes as in ``perfmodel.core.workload.Attention``. ``results`` has
    one per algorithm and pass; in ``total``, ``flops`` and bytes are over all heads and sequences, fields that end in ``_s`` are seconds.

    ``options`` are those of ``perfmodel attention`` that describe the question, with underscores, ``direction`` for ``--pass``.
    ``implementation``: a kernel such as torch-sdpa-flash; its algorithm's traffic and roof are then those of the kernel, and
    ``predictions`` has the predicted times. UsageError for a wrong option, UnavailableError if the device's profile lacks a number.

    >>> comparison = compare_attention(n=1024, d=64, algorithm="flash", causal=True)
    >>> comparison.results[0].total.flops, comparison.results[0].tile.br
    (134348800, 128)
    """
    from perfmodel.catalog import calibrated_devices
    from perfmodel.core.hardware import Device
    from perfmodel.core.question import DEFAULT_DEVICE
    from perfmodel.kernels.attention.question import AttentionQuestion
    from perfmodel.sweep.base import device_named
    from perfmodel.sweep.values import scalar
    from perfmodel.timing.select_kernel import answered

    [question] = from_python([AttentionQuestion], {name: scalar(value) for name, value in options.items()}, "attention")
    if hardware is not None and not isinstance(hardware, (str, Device)):
        raise UsageError(f"hardware is {hardware!r:.40}", "give a device's name, the path of a profile, or a Device")
    device = hardware if isinstance(hardware, Device) else device_named(DEFAULT_DEVICE if hardware is None else hardware)
    comparison: Comparison = question.compare(device)
    name = converted("implementation", "str", implementation)
    if name is None:
        return comparison
    of_kernel, predictions, _ = answered(comparison, name, calibrated_devices)
    return replace(of_kernel, predictions=predictions)


class Columns(Mapping[str, Any]):
    """The rows of a sweep, a NumPy array per column; words as Python strings.

    ``pandas.DataFrame(dict(columns), copy=False)`` and ``polars.DataFrame(dict(columns))`` take the numbers without a copy.
    ``units`` by column; ``left_out``: how many rows have no answer, by reason; ``excluded``: how many constraints took away.
    """

    def __init__(self, table: RowTable, left_out: Mapping[str, int], excluded: int) -> None:
        self._table, self.left_out, self.excluded = table, dict(left_out), excluded
        self.units = {field_.name: field_.unit for field_ in table.fields}
        self._decoded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        """The column called ``name``, an array of shape [rows] in the unit ``units[name]``; KeyError if there is none."""
        if name not in self.units:
            raise KeyError(name)
        if name not in self._decoded:
            self._decoded[name] = self._table.decoded(name)
        return self._decoded[name]

    def __iter__(self) -> Iterator[str]:
        """Names of the columns."""
        return iter(self.units)

    def __len__(self) -> int:
        """Number of columns."""
        return len(self.units)

    def to_frame(self) -> DataFrame:
        """The rows as a pandas DataFrame, which shares the numbers. UnavailableError without pandas."""
        try:
            from pandas import DataFrame
        except ImportError:
            raise UnavailableError("to_frame needs pandas, which is not installed", PANDAS) from None
        return DataFrame(dict(self), copy=False)

    def to_dict(self) -> dict[str, list[Any]]:
        """A list per column."""
        return {name: self[name].tolist() for name in self}

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self._table.rows

    def codes(self, name: str) -> tuple[Any, tuple[str, ...]]:
        """A column of words as codes (int32, not a copy) and what they mean, as ``pandas.Categorical.from_codes`` takes them.

        KeyError for a column of numbers, or none.
        """
        words = {field_.name: field_.words for field_ in self._table.fields}.get(name)
        if not words:
            raise KeyError(name)
        return self._table.column(name), words

    def __repr__(self) -> str:
        return f"<{self.rows:,} rows of {', '.join(self.units)}>"


def sweep(
    workload: str = "attention",
    *,
    where: str | Sequence[str] = (),
    columns: str | Sequence[str] | None = None,
    most_bytes: int = MOST_BYTES,
    **axes: Any,
) -> Columns:
    """Every combination of ``axes``, as columns in memory; for more rows than fit ``most_bytes`` there is ``perfmodel sweep -o``.

    ``workload``: attention, matmul, kv-cache, model or serve. ``axes`` are the options of that command with underscores; a value is a
    number, a list, a range or an expression of other axes. ``where``: constraints on inputs and columns. ``columns``: a list of names,
    or a text with commas in between. Units of the columns are in ``units``: B, s, FLOP. UsageError for an axis, constraint or column
    that cannot be read, or more than ``most_bytes``; rows without an answer are counted in ``left_out``.

    >>> from perfmodel.api import sweep
    >>> columns = sweep("matmul", m="1024:4096:x2", n=4096, k="m / 2", where="roofline_s > 0.1 ms", columns=["flops", "roofline_s"])
    >>> columns["m"].tolist(), columns["flops"].tolist(), columns.units["roofline_s"], columns.excluded
    ([4096], [68719476736.0], 's', 2)
    """
    from perfmodel.sweep.evaluate import Runner
    from perfmodel.sweep.grid import grid_of
    from perfmodel.sweep.study import SweepStudy
    from perfmodel.sweep.summary import Counts
    from perfmodel.sweep.table import row_bytes

    column_names = None
    if columns is not None:
        texts = columns.split(",") if isinstance(columns, str) else columns
        column_names = tuple(name.strip() for name in _texts("columns", texts))
    grid = grid_of(SweepStudy(workload, axes, _texts("where", where), column_names))
    check_type("most_bytes", most_bytes, isinstance(most_bytes, (int, float)), "a number of bytes")
    size = grid.points * row_bytes(grid.fields)
    if size > most_bytes:
        fix = "take fewer values, allow more with most_bytes, or write them to a file with: perfmodel sweep -o rows.parquet"
        raise UsageError(f"{grid.points:,} rows take {size:,} B", fix)
    runner, counts = Runner(grid, max(grid.points, 1)), Counts()
    [chunk] = runner.chunks()
    table = runner.evaluate(chunk, counts.update)
    return Columns(table.part(0, table.rows), counts.left_out, counts.excluded)


def _texts(name: str, value: Any) -> tuple[str, ...]:
    """``value`` as a tuple of texts; UsageError if it is neither a text nor several."""
    several = hasattr(value, "__iter__") and not isinstance(value, (str, bytes, Mapping))
    values = tuple(value) if several else (value,)
    for text in values:
        check_type(name, text, isinstance(text, str), "a text or a list of texts")
    return values
