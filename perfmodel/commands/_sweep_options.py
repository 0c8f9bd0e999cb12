"""What the sweep command makes of its words: a study and a search, where rows go, and help on axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.core.errors import UsageError, suggest

if TYPE_CHECKING:
    from perfmodel.sweep.parts import Output
    from perfmodel.sweep.run_sweep import Search
    from perfmodel.sweep.study import StudyFile, SweepStudy


def merged(words: Sequence[str], given: Mapping[str, Any]) -> tuple[SweepStudy, Search]:
    """The study that ``words`` name or spell out, options before what its file says."""
    from perfmodel.sweep.run_sweep import Search
    from perfmodel.sweep.study import WORKLOADS, StudyFile, SweepStudy, listed, read_study

    named = words[:1] if words and not words[0].startswith("-") else []
    file = StudyFile({}) if not named else StudyFile({}, workload=named[0]) if named[0] in WORKLOADS else read_study(named[0])
    axes = {**file.axes, **axes_of(words[len(named) :], file)}
    columns = given["columns"].split(",") if given["columns"] else file.columns
    where = (*listed(file.where), *listed(file.subject_to), *given["where"])
    pareto = given["pareto"].split(",") if given["pareto"] else file.pareto
    if pareto is not None and len(pareto) != 2:
        raise UsageError("--pareto takes two columns", "write it like --pareto time,memory")
    top = file.top if given["top"] is None else given["top"]
    if given["top"] is not None and not (given["minimize"] or file.minimize):
        raise UsageError("--top is for --minimize, and nothing here reads it", "give a column with --minimize, or leave it out")
    search = Search(given["minimize"] or file.minimize, (pareto[0].strip(), pareto[1].strip()) if pareto else None, top)
    return SweepStudy(file.workload, axes, where, None if columns is None else tuple(name.strip() for name in columns)), search


def axes_of(words: Sequence[str], file: StudyFile) -> dict[str, Any]:
    """``--n 512 --causal`` as axes; an option given twice has both values."""
    from perfmodel.sweep.study import workload_named

    workload = workload_named(file.workload)
    known = {one.name.replace("_", "-"): one for one in workload.inputs}
    found: dict[str, Any] = {}
    rest = list(words)
    while rest:
        word, _, value = rest.pop(0).partition("=")
        name = word.lstrip("-")
        negated = name.startswith("no-") and name not in known
        one = known.get(name.removeprefix("no-") if negated else name)
        if not word.startswith("-") or one is None:
            raise UsageError(f"{word}: sweeps over {workload.name} have no such option", suggest(name, list(known)))
        if one.kind == "flag" and not value:
            value = rest.pop(0) if rest and not rest[0].startswith("-") and not negated else str(not negated).lower()
        elif not value:
            if not rest:
                raise UsageError(f"{word} needs a value", "such as --n 512:131072:x2")
            value = rest.pop(0)
        found[one.name] = f"{found[one.name]},{value}" if one.name in found else value
    return found


def where_to(output: Sequence[str] | None, form: str | None, resume: bool, dask: str | None) -> tuple[Output | None, list[str]]:
    """The output for rows, if any, and those for the report. UsageError if they do not go together."""
    reports: list[str] = []
    rows: list[str] = []
    for name in output or ():
        suffix = Path(name).suffix.removeprefix(".")
        data = name.endswith("/") or suffix in ("csv", "jsonl", "parquet") or (name == "-" and form is not None) or (dask and not suffix)
        (rows if data else reports).append(name)
    for name in reports:
        _check_suffix(name)
    if len(rows) > 1:
        raise UsageError(f"--output: rows go to one place, not to {len(rows)}", "run the sweep again for another format")
    if not rows:
        for option, holds in (("--resume", resume), ("--dask", dask), ("--format", form)):
            if holds:
                raise UsageError(f"{option} is about rows in a file", "say where with -o, such as -o rows.parquet")
        return None, reports
    return _rows_output(rows[0], form, resume, dask), reports


def _check_suffix(name: str) -> None:
    """UsageError for a file that is neither of rows nor of the report."""
    from perfmodel.report.formats import suffixes

    if name != "-" and Path(name).suffix not in suffixes(()):
        kind = repr(Path(name).suffix) if Path(name).suffix else "a file without suffix"
        fix = f"end it in .csv, .jsonl or .parquet, or in / for a folder, for rows; in {', '.join(suffixes(()))} for the report"
        raise UsageError(f"--output: no format is written to {kind} ({name})", f"{fix}; rows to stdout: -o - --format csv")


def _rows_output(name: str, form: str | None, resume: bool, dask: str | None) -> Output:
    from perfmodel.sweep.parts import Output
    from perfmodel.sweep.writers import formats

    folder = name.endswith("/") or dask is not None
    if name == "-":
        if resume or dask:
            raise UsageError("--resume and --dask need a file", "give one with -o")
        if form not in formats():
            raise UsageError(f"--format: there is no format {form!r}", suggest(str(form), formats()))
        return Output(None, str(form))
    path, written = Path(name), "parquet" if folder else Path(name).suffix.removeprefix(".")
    if form not in (None, written):
        raise UsageError(f"--format {form} does not fit {name}", "leave it out: the suffix says it")
    if folder and path.suffix in (".csv", ".jsonl"):
        who = "--dask writes a" if dask else "a name that ends in / is a"
        raise UsageError(f"{who} folder of Parquet files, not {name}", "name a folder, such as -o rows/")
    if not path.parent.is_dir():
        raise UsageError(f"--output: there is no folder {path.parent}", "create it first")
    if not folder and path.is_dir():
        raise UsageError(f"--output: {path} is a folder", "end it in / to write Parquet files into it, or name a file")
    return Output(path, written, folder, resume, dask)


def memory_bytes(text: str | None) -> int:
    """The memory that ``--memory`` gives a sweep."""
    from perfmodel.core.checks import size_bytes
    from perfmodel.sweep.run_sweep import DEFAULT_MEMORY

    if text is None:
        return DEFAULT_MEMORY
    if not text.strip().endswith("B"):
        raise UsageError(f"--memory: {text[:40]!r} has no unit", "give a size of 1MiB or more, such as 512MiB")
    return size_bytes("memory", text, least=1 << 20)


def axes_help() -> str:
    """Axes and columns of every workload."""
    from perfmodel.sweep.study import WORKLOADS, workload_named

    lines = [
        "Axes are options named as those of the command itself:",
        "  --n 512:131072:x2 --d 64,128 --batch 1:64:+1 --kv-heads heads/4 --hardware all --causal both",
        "A value is a number, a list, a range (:xF multiplies, :+S adds), or an expression of other axes; 'all' is every name.",
    ]
    for name in WORKLOADS:
        workload = workload_named(name)
        listed = ", ".join(one.name.replace("_", "-") for one in workload.inputs)
        lines += ["", f"Axes of {name}: {listed}", f"Columns: {', '.join(one.name for one in workload.columns)}"]
        if workload.words:
            lines.append("Short names: " + ", ".join(f"{word} = {column}" for word, column in workload.words.items()))
    return "\n".join(lines)
