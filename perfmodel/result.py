"""The result of a command in Python: one object with the whole answer, which prints in a few lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from html import escape
from json import loads
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from perfmodel.core.errors import UnavailableError, cut

if TYPE_CHECKING:
    from pandas import DataFrame

    from perfmodel.report.document import DataTable, Report, Table

LINES, WIDTH = 3, 160
"""Sentences that ``repr`` shows, and the characters of each."""
ROWS = ("results", "ops", "rows", "devices", "claims")
"""Fields whose objects become rows of ``to_frame``; the first that an answer has counts."""
ABOUT = ("schema", "version", "metric_units", "provenance", "verdict", "reasons")
"""Fields about the answer, which are no part of it."""
PANDAS = "pip install pandas"
INDENT = "\u00a0\u00a0"


class View(Mapping[str, Any]):
    """One object of an answer, read-only. A field is an item or an attribute: ``view["bytes"]``, ``view.bytes``.

    >>> view = View({"n": 64, "time_s": {"roofline": 1e-6}, "kernels": [{"name": "copy"}]})
    >>> view.n, view.time_s.roofline, view["kernels"][0].name
    (64, 1e-06, 'copy')
    >>> view == {"n": 64, "time_s": {"roofline": 1e-6}, "kernels": [{"name": "copy"}]}
    True
    """

    __slots__ = ("_content",)
    _content: dict[str, Any]

    def __init__(self, content: dict[str, Any]) -> None:
        object.__setattr__(self, "_content", content)  # past __setattr__ of this class, which refuses

    def __getitem__(self, name: str) -> Any:
        """The field called ``name``: a number, a text, a list or ``View``; KeyError if there is none."""
        return _viewed(self._content[name])

    def __iter__(self) -> Iterator[str]:
        """Names of the fields."""
        return iter(self._content)

    def __len__(self) -> int:
        """Number of fields."""
        return len(self._content)

    def __getattr__(self, name: str) -> Any:
        """The field called ``name``; AttributeError with the known names if there is none."""
        if name.startswith("_") or name not in self._content:
            raise AttributeError(f"there is no field {name!r}; there are {', '.join(self._content)}")
        return self[name]

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is read-only; to_dict() gives a copy to change")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is read-only; to_dict() gives a copy to change")

    def __dir__(self) -> list[str]:
        """Attribute names: methods, and fields that are valid names."""
        return sorted({*object.__dir__(self), *(name for name in self._content if name.isidentifier())})

    def __repr__(self) -> str:
        return f"<{cut(', '.join(f'{name}: {_brief(value)}' for name, value in self._content.items()), WIDTH)}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return View, (self._content,)

    def to_dict(self) -> dict[str, Any]:
        """The object as plain dicts and lists, a copy."""
        return deepcopy(self._content)


def _viewed(value: Any) -> Any:
    """``value`` with a ``View`` in place of each dict."""
    if isinstance(value, dict):
        return View(value)
    return [_viewed(item) for item in value] if isinstance(value, list) else value


def _brief(value: Any) -> str:
    if isinstance(value, dict):
        return "{...}"
    if isinstance(value, list):
        return f"{len(value)} in a list"
    return f"{value:.4g}" if isinstance(value, float) else repr(value)


class Result(View):
    """The answer of a command: the object that ``--json`` prints, with its fields as items and attributes, read-only.

    ``print(result)`` says the answer in a few lines, a notebook shows it with a picture. ``to_dict()`` gives plain dicts, ``to_frame()``
    a pandas DataFrame, ``save("report.html")`` writes any format of ``perfmodel ... -o``. Times are in seconds, sizes in bytes.

    >>> import perfmodel
    >>> cache = perfmodel.kv_cache("llama-3-8b", n=8192, batch=16)
    >>> cache.bytes, cache["memory"]["fits"]
    (17179869184, True)
    """

    __slots__ = ("_call", "_devices", "report")
    report: Report
    """The answer as it is printed: verdict, tables, pictures, notes."""
    _call: str
    _devices: tuple[str, ...]

    def __init__(self, report: Report, call: str = "", devices: Sequence[str] = ()) -> None:
        from perfmodel.report.formats.json import render

        super().__init__(loads(render(report)))
        object.__setattr__(self, "report", report)
        object.__setattr__(self, "_call", call)
        object.__setattr__(self, "_devices", tuple(devices))

    def __reduce__(self) -> tuple[Any, ...]:
        return Result, (self.report, self._call, self._devices)

    def __repr__(self) -> str:
        readable = self._readable()
        fields = f"Fields: {', '.join(self._without_about())}"
        return "\n".join(cut(line, WIDTH) for line in (readable.title, *readable.verdict[:LINES], fields))

    def _repr_html_(self) -> str:
        """The answer for a notebook: verdict, first picture, and the table of a screen."""
        from perfmodel.report.document import on_screen

        report = self._readable()
        items = "".join(f"<li>{escape(sentence)}</li>" for sentence in report.verdict)
        verdict = f"<ul>{items}</ul>" if items else ""
        tables = "".join(map(_table, on_screen(report)))
        return f"<div><b>{escape(report.title)}</b>{verdict}{_picture(report)}{tables}</div>"

    def _readable(self) -> Report:
        from perfmodel.report.formats import readable

        return readable(self.report)

    def to_frame(self) -> DataFrame:
        """A pandas DataFrame of what is compared: a row per algorithm, operation, point or device.

        A column is a field, by its path, such as ``time_s.predicted``. UnavailableError without pandas.
        """
        try:
            from pandas import DataFrame
        except ImportError:
            raise UnavailableError("to_frame needs pandas, which is not installed", PANDAS) from None
        return DataFrame.from_records(self.records())

    def records(self) -> list[dict[str, Any]]:
        """The rows of ``to_frame``, as flat dicts; lists inside them are left out."""
        if not self.report.data:
            filled = [table for table in self._tables() if table.rows]
            return filled[0].records() if filled else []
        rows = [row for row in map(_flat, self._objects()) if row]
        parents = {name.rpartition(".")[0] for row in rows for name in row}
        return [{name: value for name, value in row.items() if name not in parents} for row in rows]

    def _objects(self) -> list[dict[str, Any]]:
        """The objects of the first field of ``ROWS`` that has some; else the answer itself."""
        for name in ROWS:
            objects = self._content.get(name)
            if objects and isinstance(objects[0], dict):
                return list(objects)
        return [self._without_about()]

    def _without_about(self) -> dict[str, Any]:
        return {name: value for name, value in self._content.items() if name not in ABOUT}

    def _tables(self) -> list[DataTable]:
        from perfmodel.report.charts.chart_tables import points_table

        return [*self.report.data_tables, points_table(self.report.rooflines)]

    def save(self, path: str | Path) -> Path:
        """Write the report to ``path``, in the format of its suffix: .html, .md, .json, .txt, .svg, .png. The path comes back.

        UsageError for a suffix that no format has, or a place that cannot be written.
        """
        from perfmodel.report import check_output, write
        from perfmodel.report.provenance import with_provenance

        target = Path(path)
        check_output(target, ["charts"] if self.report.charts else [])
        write(target, with_provenance(self.report, self._call, self._devices))
        return target


def _flat(record: Mapping[str, Any], place: str = "") -> dict[str, Any]:
    """``record`` as a flat dict: nested fields go by their path, lists are left out.

    >>> _flat({"n": 1, "time_s": {"roofline": 2.0}, "kernels": []})
    {'n': 1, 'time_s.roofline': 2.0}
    """
    flat: dict[str, Any] = {}
    for name, value in record.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{place}{name}.")
        elif not isinstance(value, list):
            flat[f"{place}{name}"] = value
    return flat


def _picture(report: Report) -> str:
    """The first picture of ``report`` as HTML with the image inside."""
    if not report.charts:
        return ""
    from base64 import b64encode

    from perfmodel.report.charts.draw import standalone
    from perfmodel.report.document import captioned
    from perfmodel.report.formats.svg import FONT, panel

    chart = captioned(report)[0]
    drawn = b64encode(standalone(panel(chart), FONT).encode()).decode()
    return f'<img alt="{escape(chart.title)}" style="max-width:100%" src="data:image/svg+xml;base64,{drawn}">'


def _table(table: Table) -> str:
    sides = ["left" if side == "l" else "right" for side in table.alignment]
    head = _row("th", table.columns, sides)
    body = "".join(_row("td", row, sides) for row in table.rows)
    title = f"<caption>{escape(table.title)}</caption>" if table.title else ""
    return f"<table>{title}<thead>{head}</thead><tbody>{body}</tbody></table>"


def _row(tag: str, row: Sequence[str], sides: Sequence[str]) -> str:
    """An HTML row with a cell of kind ``tag`` per text of ``row``."""
    texts = [escape(cell).replace("  ", INDENT) for cell in row]
    cells = [f'<{tag} style="text-align:{side}">{text}</{tag}>' for text, side in zip(texts, sides, strict=True)]
    return f"<tr>{''.join(cells)}</tr>"
