"""Parts of docs/accuracy.md that come from code and records: between ``<!-- from the code: NAME -->`` and ``<!-- end -->``.

Each is a function of the part as it stands, so that a test can leave out what was added since; None has everything.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from perfmodel.catalog import find_device
from perfmodel.core.files import read_json
from perfmodel.timing.base import CHOSEN, STATES, find_model, model_names
from perfmodel.validation.calibrate import FEWEST_FOR_WIDTH
from perfmodel.validation.statistics import HIGH, LOW, PROMISED
from tools.scores import DATA, PAGE, counted, power_by_kind, sustained_rows, tuned, wide_rows
from tools.scores.predicted_measured import NAMES

LEFT_OUT = DATA / "leave_one_out.json"
STANDARD_LEFT_OUT = LEFT_OUT.with_name("standard_left_out.json")
PART = re.compile(r"<!-- from the code: (\w+) -->\n(.*?)<!-- end -->", re.DOTALL)


def table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table of Markdown."""
    lines = [f"| {' | '.join(cells)} |" for cells in [list(columns), *map(list, rows)]]
    return "\n".join([lines[0], "|" + " --- |" * lines[0].count(" | ") + " --- |", *lines[1:]]) + "\n"


def there(names: Iterable[str], page: str | None, written: str = "{}") -> list[str]:
    """Those that ``page`` knows, as they are ``written`` there; all without one. So what was added since is no fault of the page."""
    return [name for name in names if page is None or written.format(name) in page]


def counted_part(page: str | None = None) -> str:
    """Where L2-to-SM reads were held against counters, and how far off they are."""
    return table(["implementation", "pass", "lengths that tiles divide", "other lengths"], counted.lines())


def tuned_part(page: str | None = None) -> str:
    """Every constant in code that was chosen on measurements, and how many each model has beside its fitted parameters."""
    known = [one for one in tuned.declared() if page is None or f"`{in_package(one[0])}." in page]
    models = [
        [f"`{name}`", str(len(find_model(name).parameters)), str(tuned.count(tuned.drawn_on(name)))]
        for name in there(model_names(), page, "| `{}` |")
        if name != "three-scalars"
    ]
    rows = []
    for module, name in known:
        place = tuned.modules()[module]
        rows.append([f"`{in_package(module)}.{name}`", tuned.shown(getattr(place, name)), tuned.meanings(place)[name]])
    more = tuned.count(known)
    return (
        f"Parameters are fitted per kernel and architecture; {more} numbers more stand in code that\n"
        "were chosen on records that fits may see. Models share them: a kernel's prediction depends on some of its model's.\n"
        "Sequences of kernels have those of the parts as well.\n\n"
        + table(["model", "fitted", "chosen"], models)
        + "\n"
        + table(["constant", "value", "meaning"], rows)
        + "\nOthers stand in data, `timing/chosen.json`, with what they buy or where they are read.\n\n"
        + table(["number", "value", "meaning", "buys"], chosen_rows())
    )


def chosen_rows() -> list[list[str]]:
    """What stands in ``CHOSEN``."""
    known = read_json(CHOSEN).items()
    return [[f"`{name}`", tuned.shown(one["value"]), one["meaning"], one["buys"]] for name, one in known]


def in_package(module: str) -> str:
    """The name of ``module`` below ``perfmodel``."""
    return module.removeprefix("perfmodel.")


def assumed_part(page: str | None = None) -> str:
    """What the predictions of each model assume."""
    found: dict[str, list[str]] = {}
    for name in there(model_names(), page, "`{}`"):
        found.setdefault(find_model(name).assumes, []).append(f"`{name}`")
    return "".join(f"- {', '.join(names)}: {text}.\n" for text, names in found.items())


def interval_part(page: str | None = None) -> str:
    """What the interval is by construction."""
    return (
        f"Where {FEWEST_FOR_WIDTH} or more records of a kernel are kept for it, an interval holds {PROMISED:.0%} of them, and one\n"
        "standard error of that share more: no parameter was fitted to them and no rule chosen on them (split conformal prediction).\n"
        f"Elsewhere it runs from the {LOW:.0%} to the {HIGH:.0%} quantile of residuals of points that a fit did not see,\n"
        f"{HIGH - LOW:.0%} by construction, and is called an 80 % interval because new records scatter more than those on which the\n"
        "structure of the models was chosen.\n"
    )


def sustained_part(page: str | None = None) -> str:
    """Clock, watts, joules and seconds of runs for seconds."""
    fit = find_device("nvidia-h200-sxm").power
    assert fit is not None
    missing = sum(sustained_rows.unpredicted().values())
    return (
        f"Parameters were fitted to {fit.points} other kernels; other steps had a part in the choice of the clock's exponent and of the\n"
        "draw of a moment. Fits without a point miss its watts by\n"
        f"{fit.median_error:.1%} in the median and {fit.p90_error:.1%} at the 90 % quantile. Below: a draw with a seed of its own,\n"
        "each cell median and 90 % quantile of |predicted / measured - 1|. Time alone: predicted by the kernel's own model, so that\n"
        "its error is in all figures, or measured, so that the power model alone is judged.\n"
        f"{missing} rows have no model of their time.\n\n"
        + table(["rows", "time alone", "count", "clock", "power", "energy", "time"], sustained_rows.table_rows())
        + "\nA kind of kernels that no fit saw, the others fitted: median of the size and of the error itself, time alone as measured.\n"
        "Clocks are those of rows that the limit slows, measured or predicted; the second number counts them. Steps are in no fit.\n\n"
        + table(
            ["kind", "rows", *(f"{what}, {how}" for how in ("left out", "seen") for what in ("clock", "power", "time"))],
            power_by_kind.table_rows(),
        )
    )


@cache
def drawn(files: tuple[Path, ...]) -> Mapping[tuple[str, str], wide_rows.Judged]:
    """Kernels of a draw, by group and state of the caches."""
    return wide_rows.judged(wide_rows.raws(files))


def summed(found: Mapping[tuple[str, str], wide_rows.Judged], name: str = "") -> wide_rows.Judged:
    """All of ``found``, or those of one family, as one."""
    every = wide_rows.Judged()
    for (group, _), one in found.items():
        if not name or wide_rows.class_of(group) == name:
            every.extend(one)
    return every


def first_part(page: str | None = None) -> str:
    """What the page opens with: the error of all kernels of the last draw."""
    every = summed(drawn(tuple(wide_rows.FILES)))
    median, held = f"{100 * every.median:.1f} %", f"{100 * every.coverage:.0f} %"
    return f"Median error {median}, {held} of the 80 % intervals hold, on {len(every.errors):,} kernels drawn afterwards.\n"


def families_part(page: str | None = None) -> str:
    """A row per family of what was measured and seen by no fit."""
    kernels = drawn(tuple(wide_rows.FILES))
    every = {name: summed(kernels, family) for family, name in NAMES.items()}
    every |= {"all of these, lent by the H200": summed(drawn((wide_rows.BORROWED,))), "steps of models": summed(wide_rows.steps())}
    where = dict.fromkeys(every, "H200") | {"all of these, lent by the H200": "H100"}
    rows = [
        [name, where[name], f"{len(one.errors):,}", f"{one.median:.1%}", f"{one.p90:.1%}", f"{one.coverage:.0%}"]
        for name, one in every.items()
    ]
    for kind, one in read_json(SERVED)["held out"]["all"].items():
        for short, words in (("tpot", "time per output token"), ("ttft", "time to the first token")):
            figures = [f"{one['runs']:,}", *(f"{one[f'{short}_{size}']:.1%}" for size in ("median", "p90")), f"{one[f'{short}_held']:.0%}"]
            rows.append([f"{words}, {KINDS[kind]}", "engines", *figures])
    return table(["family", "on", "rows", "median error", "9 of 10 within", "intervals that hold"], rows)


def wide_part(page: str | None = None) -> str:
    """Errors and coverage of the last draw: clean, dirty and warm, alone and for seconds."""
    kernels, of_steps = drawn(tuple(wide_rows.FILES)), wide_rows.steps()
    words = [
        f"- {state}: {len(one.errors):,} kernels, error {one.median:.1%} in the median, {one.p90:.1%} at the 90 % quantile; "
        f"{one.coverage:.1%} of the intervals hold; {len(one.missing)} rows have no prediction.\n"
        for (_, state), one in wide_rows.together(kernels, lambda group: "").items()
    ]
    clocks = (wide_rows.BURST, wide_rows.SUSTAINED)
    every_step = wide_rows.together(of_steps, lambda group: "steps")
    tables = (
        (["kernels", *STATES], wide_rows.lines(wide_rows.together(kernels, wide_rows.class_of), STATES)),
        (["steps", *clocks], [*wide_rows.lines(every_step, clocks), *wide_rows.lines(of_steps, clocks)]),
        (["group", *STATES], wide_rows.lines(kernels, STATES)),
    )
    return "".join(words) + "".join(f"\n{table(heads, rows)}" for heads, rows in tables)


def borrowed_part(page: str | None = None) -> str:
    """The same of a draw on an H100."""
    every = drawn((wide_rows.BORROWED,))
    known = {key: one for key, one in every.items() if one.errors}
    missing = sum(len(one.missing) for one in every.values())
    words = f"{sum(len(one.errors) for one in known.values()):,} rows; {missing} more have no prediction.\n\n"
    return words + table(["group", *STATES], wide_rows.lines(known, STATES))


def left_out_part(page: str | None = None) -> str:
    """Every device with records, predicted as if it had none."""
    found = read_json(LEFT_OUT)

    def cells(one: Mapping[str, float], side: str) -> list[str]:
        return [f"{one[side]:.1%}", f"{one[f'{side}_p90']:.1%}", f"{one[f'{side}_held']:.0%}"]

    kinds = dict.fromkeys(kind for own in found.values() for kind in own)
    rows = [
        [kind, name, f"{one['rows']:,}", f"{one['pooled']:,}", *cells(one, "alone"), *cells(one, "probed"), f"{one['scalars']:.1%}"]
        for kind in kinds
        for name, own in found.items()
        if kind in own and (one := own[kind])["rows"]
    ]
    refused = sum(one["refused"] for own in found.values() for one in own.values())
    heads = ["kernels", "device", "rows", "pooled", "alone", "p90", "held", "probed", "p90", "held", "3 scalars"]
    words = f"{len(found)} devices. {refused} rows more are of FlashAttention 1, which no other device was timed with.\n\n"
    return words + table(heads, rows)


def standard_part(page: str | None = None) -> str:
    """Standard attention of every device with rows of it, predicted as if it had none."""
    found = read_json(STANDARD_LEFT_OUT)
    rows = [[name, str(one["rows"]), f"{one['median']:.1%}", f"{one['p90']:.1%}", str(one["held"])] for name, one in found.items()]
    count, held = (sum(one[name] for one in found.values()) for name in ("rows", "held"))
    return f"{held} of {count} intervals hold.\n\n" + table(["device", "rows", "median", "p90", "held"], rows)


SERVED = DATA / "serving_scores.json"
THROUGHPUT = SERVED.with_name("throughput_scores.json")
KINDS = {"dense": "dense models", "experts": "models with experts", "experts, pools": "prefill and decode apart"}
"""Kinds of serving runs, as the first table names them."""
REFERENCE = {
    ("llama-3.1-70b", "nvidia-h100-sxm-80gb", "vllm"): "4.6 %, p90 9.8 % (with H200)",
    ("llama-3.1-70b", "nvidia-h200-sxm", "vllm"): "4.6 %, p90 9.8 % (with H100)",
}
"""Errors of NVIDIA aiconfigurator in TPOT, where they are known of a group."""


def served(one: Mapping[str, float]) -> list[str]:
    """Figures of some runs."""
    each = [f"{one['runs']:,}", *(f"{one[f'{name}_{size}']:.1%}" for name in ("tpot", "ttft") for size in ("median", "p90"))]
    return [*each, f"{one['tpot_held']:.0%}", f"{one['ttft_held']:.0%}"]


SERVED_HEADS = ["runs", "TPOT median", "p90", "TTFT median", "p90", "TPOT intervals hold", "TTFT intervals hold"]


def serving_part(page: str | None = None) -> str:
    """Public serving runs: those seen when overheads were fitted, and those held out."""
    found = read_json(SERVED)
    rows = [[half, kind, *served(one)] for half, part in found.items() for kind, one in part["all"].items()]
    missing = sum(count for part in found.values() for count in part["missing"].values())
    words = f"{missing} runs have no prediction. Of 421 such runs aiconfigurator's TPOT is 14.2 % off in the median.\n\n"
    return words + table(["half", "models", *SERVED_HEADS], rows)


def serving_groups_part(page: str | None = None) -> str:
    """The same by group."""
    rows = [
        [half, name, *served(one), REFERENCE.get(tuple(name.split(" / ")[:3]), "")]
        for half, part in read_json(SERVED).items()
        for name, one in part["groups"].items()
    ]
    return table(["half", "model / device / engine / weights", *SERVED_HEADS, "aiconfigurator, TPOT"], rows)


LOCAL = {"tg": "decode", "pp": "prompt"}
"""Tests of llama-bench, in words."""


def local_part(page: str | None = None) -> str:
    """Public llama-bench runs of devices that no fit had."""
    rows = [
        [f"{builds}, {backend}", LOCAL[test], str(one["runs"]), str(one["devices"]), *(f"{one[x]:.1%}" for x in ("median", "p90", "held"))]
        for builds, backends in read_json(SERVED.with_name("llama_cpp_scores.json")).items()
        for backend, tests in backends.items()
        for test, one in tests.items()
    ]
    return table(["builds", "test", "runs", "devices", "median", "p90", "intervals hold"], rows)


FIGURES = {"tokens_per_s": "tokens/s", "tpot_s": "TPOT", "ttft_s": "TTFT"}
FIGURE_HEADS = ["figure", "runs", "median", "p90", "with its sign", "intervals hold"]


def figures(scores: Mapping[str, Any], note: str = "") -> list[list[str]]:
    """A row per figure of each of ``scores``."""

    def cells(one: Mapping[str, float]) -> list[str]:
        return [f"{one['runs']:,}", f"{one['median']:.1%}", f"{one['p90']:.1%}", f"{one['bias']:+.1%}", f"{one['held']:.0%}"]

    return [[what + note, FIGURES[name], *cells(one)] for what, own in scores.items() for name, one in own.items()]


def throughput_part(page: str | None = None) -> str:
    """Published throughput, by kind of model."""
    found = read_json(THROUGHPUT)
    words = f"{found['predicted']:,} of {found['runs']:,} runs are predicted.\n\n"
    return words + table(["models", *FIGURE_HEADS], figures(found["all"]) + figures(found["first"], ", first score"))


def throughput_groups_part(page: str | None = None) -> str:
    """The same by source and by group."""
    found = read_json(THROUGHPUT)
    sources = table(["models / source and version / engine / requests", *FIGURE_HEADS], figures(found["sources"]))
    return f"{sources}\n{table(['model / device / engine', *FIGURE_HEADS], figures(found['groups']))}"


PARTS = {
    "first": first_part,
    "families": families_part,
    "wide": wide_part,
    "left_out": left_out_part,
    "standard_left_out": standard_part,
    "serving": serving_part,
    "serving_groups": serving_groups_part,
    "local": local_part,
    "throughput": throughput_part,
    "throughput_groups": throughput_groups_part,
    "sustained": sustained_part,
    "counted": counted_part,
    "borrowed": borrowed_part,
    "tuned": tuned_part,
    "assumed": assumed_part,
    "interval": interval_part,
}


def current(match: re.Match[str]) -> str:
    """The part of ``match`` as it is now."""
    return f"<!-- from the code: {match[1]} -->\n{PARTS[match[1]]()}<!-- end -->"


def refresh() -> None:
    """Write every part anew."""
    PAGE.write_text(PART.sub(current, PAGE.read_text(encoding="utf-8")), encoding="utf-8")
