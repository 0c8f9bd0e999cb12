"""Write the pages of docs/ that come from the code: ``python -m tools.refresh.docs``. A test checks that they are current."""

from __future__ import annotations

import inspect
import io
import json
import re
import shlex
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from importlib import import_module
from typing import Any

from perfmodel import catalog
from perfmodel.catalog import device_ids, find_device, system_names
from perfmodel.cli import main
from perfmodel.commands._command import examples_apart, spelled_out
from perfmodel.core.explain import L2_SOURCE, ROOF_SOURCE
from perfmodel.core.hardware import Device
from perfmodel.kernels.attention.algorithms import find, names
from perfmodel.report.formats.md import render
from perfmodel.report.hardware import list_report
from perfmodel.study.described import schema
from perfmodel.timing.base import Model, find_model
from perfmodel.timing.base import model_names as time_model_names
from tools.commands import all_commands, command
from tools.refresh import function_types, needed_formulas
from tools.scores import PAGE, programs
from tools.scores.accuracy_parts import refresh, there

DOCS = PAGE.parent
GENERATED = "<!-- From the code, by tools/refresh/docs.py. -->\n\n"


def table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table of Markdown."""
    cells = [list(columns), *map(list, rows)]
    lines = [f"| {' | '.join(cell.replace('|', chr(92) + '|').replace(chr(10), ' ') for cell in row)} |" for row in cells]
    return "\n".join([lines[0], "|" + " --- |" * len(cells[0]), *lines[1:]]) + "\n"


def listed(name: str, page: str | None) -> bool:
    """Whether ``name`` stands in a list of ``page``, or there is none."""
    return page is None or re.search(rf"(?<![\w-]){re.escape(name)}(, |;| or all)", page) is not None


def code(text: str) -> str:
    """``text`` as code of Markdown; empty of none."""
    return f"`{text}`" if text else ""


def paragraphs(text: str | None) -> list[str]:
    """Of a docstring, without doctests."""
    found = re.split(r"\n\s*\n", inspect.cleandoc(text or ""))
    return [" ".join(part.split()).replace("``", "`") for part in found if not part.lstrip().startswith(">>>")]


def answer(line: str) -> Any:
    """The JSON that a command prints."""
    out = io.StringIO()
    with redirect_stdout(out):
        assert main(shlex.split(line)) == 0, line
    return json.loads(out.getvalue())


# Commands

CONVENTIONS = """Every command with its options and examples.

Data goes to stdout, progress and messages to stderr. `-o FILE` writes a file whole or not at all, in the format that
its suffix names; `-o -` is stdout. Exit codes: 0 answered, 1 failed, 2 wrong usage, 3 out of tolerance, 130 interrupted. `NO_COLOR` is
honoured. `eval "$(perfmodel --show-completion bash)"` completes commands, options, devices and models; zsh and fish too.
"""


def commands_page(page: str | None = None) -> str:
    """Every command with its options and examples."""
    parts = [f"{GENERATED}# Commands\n\n{CONVENTIONS}"]
    for name in there(all_commands(), page, "\n## {}\n"):
        found = command(name)
        text, examples = examples_apart(found.help or "")
        rows = []
        for param in found.params:
            if param.name == "help":
                continue
            argument = param.param_type_name == "argument"
            shown = param.metavar or str(param.name).upper() if argument else ", ".join(param.opts)
            shown += f" / {', '.join(param.secondary_opts)}" if param.secondary_opts else ""
            value = "" if getattr(param, "is_flag", False) else kind(param)
            rows.append([code(shown), value, spelled_out(getattr(param, "help", None) or "", lambda name: listed(name, page))])
        shown_examples = "".join(f"$ {example}\n" for example in examples)
        parts.append(f"## {name}\n\n" + "\n\n".join(paragraphs(text)) + f"\n\n```console\n{shown_examples}```\n")
        parts.append(table(["option", "value", "meaning"], rows))
    return "\n".join(parts)


def kind(param: Any) -> str:
    """What a value of ``param`` is, in a word or two."""
    text = str(param.type_descriptor.annotation)
    word = next((word for known, word in (("int", "whole number"), ("float", "number")) if known in text), "text")
    return f"{word}, repeatable" if "list" in text else word


# Formulas

KERNEL = "matmul -m 8192 -n 128 -k 8192 --explain all --json"
ATTENTION = "attention --n 4096 --d 64 --heads 16 --batch 8 --pass {} --algorithm {} {} --explain all --json"
OPTIONS = {"block-sparse": "--sparsity 0.25", "split-kv": "--splits 4"}
QUESTIONS = {
    "Matrix multiplication": KERNEL,
    "Softmax": "softmax --rows 4096 --cols 32768 --explain all --json",
    "Two-layer MLP": "mlp --batch 4096 --d-in 1024 --d-hidden 4096 --d-out 1024 --explain all --json",
    "Elementwise chain": "fuse --elements 1048576 --ops 30 --explain all --json",
    "Store or recompute": "recompute --bytes 64MiB --flops 10GFLOP --explain all --json",
    "Occupancy and sectors": "occupancy --threads 256 --registers 64 --sram 48KiB --stride 2 --explain all --json",
    "KV cache": "kv-cache llama-3-8b --n 8192 --batch 16 --explain all --json",
    "Memory of a training step": "memory llama-3-8b --batch 8 --n 4096 --dp 8 --zero 3 --recompute full --explain all --json",
    "Rematerialization": "remat --layers 10 --checkpoints 5 --explain all --json",
}
SHARED = re.compile(
    r"(total |term |lower bound|roofline$|without |compulsory|intensity|reads$|writes$|(SRAM|DRAM) (read|write) bytes|BW_|P_)"
)
"""Names of what every kernel has."""
FORMULAS = """What `--explain` shows, in symbols: the functions that compute the numbers, run on numbers that remember how they
came about. Every command prints the same with its values. A multiply-add counts 2 FLOP; elements become bytes by their format's size.
"""


def steps(line: str) -> list[tuple[str, list[dict[str, Any]]]]:
    """Parts of an explanation, each with what it is of."""
    found = []
    for part in answer(line)["explanation"]:
        title = ", ".join(str(value) for key, value in part.items() if key != "steps" and isinstance(value, str))
        found.append((title, part["steps"]))
    return found


def formulas(listed: Iterable[dict[str, Any]]) -> str:
    """The table of the steps that have a formula or are given."""
    shown = [step for step in listed if step["formula"] or step["source"] == "given"]
    rows = [[step["name"], code(step["formula"]), step["meaning"], step["source"]] for step in shown]
    return table(["name", "formula", "meaning", "source"], rows)


def own(listed: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without what every kernel has."""
    return [step for step in listed if not SHARED.match(step["name"].rsplit("] ", 1)[-1]) and step["source"] != L2_SOURCE]


def formulas_page(page: str | None = None) -> str:
    """Formulas with their sources."""
    [(_, kernel)] = steps(KERNEL)
    parts = [f"{GENERATED}# Formulas\n\nWhich formula gives which number, and who published it.\n"]
    parts.append(f"## Six that everyone needs\n\n{''.join(needed_formulas.lines(answer))}\n{needed_formulas.SYMBOLS}")
    parts.append(f"## How the rest is made\n\n{FORMULAS}")
    parts.append("## Every kernel: bytes, bound and roof\n\nHere of a matrix multiplication with its tile.\n")
    parts.append(formulas(step for step in kernel if SHARED.match(step["name"]) or step["source"] in (L2_SOURCE, ROOF_SOURCE)))
    for name in there(names(), page, "`--algorithm {}`"):
        algorithm = find(name)
        module = import_module(algorithm.forward.__module__)
        parts.append(f"## {algorithm.title}\n\n" + "\n\n".join(paragraphs(module.__doc__)) + "\n")
        parts.append(f"`--algorithm {name}`. Accesses grow as {algorithm.io_class}. Source: {algorithm.source}.\n")
        for direction in ("forward", "backward"):
            if algorithm.obstacle(workload(name), direction) is None:
                [(_, found)] = steps(ATTENTION.format(direction, name, OPTIONS.get(name, "")))
                parts.append(f"### {name}, {direction}\n\n{formulas(own(found))}")
    for title, line in QUESTIONS.items():
        parts.append(f"## {title}\n\n`perfmodel {line.removesuffix(' --explain all --json')}`\n")
        parts += [(f"### {title}: {name}\n\n" if many else "") + formulas(own(found)) for many, name, found in told(line)]
    parts.append(time_models_part(page))
    return "\n".join(parts)


def told(line: str) -> list[tuple[bool, str, list[dict[str, Any]]]]:
    """The lists of steps of ``line`` that have a formula of their own: whether there are several, name and steps."""
    found = steps(line)
    return [(len(found) > 1, name, listed) for name, listed in found if any(step["formula"] for step in own(listed))]


def workload(name: str) -> Any:
    """The attention that the formulas of algorithm ``name`` are shown for."""
    from perfmodel.kernels.attention.question import AttentionQuestion

    needed: dict[str, dict[str, Any]] = {"block-sparse": {"sparsity": 0.25}, "split-kv": {"splits": 4}}
    options = needed.get(name, {})
    return AttentionQuestion(n=4096, d=64, heads=16, batch=8, **options).workload()


def time_models_part(page: str | None) -> str:
    """What is fitted, model by model; those of one file together."""
    parts = ["## Time models\n\nEach predicts the seconds of one family of kernels; its parameters are fitted to measurements.\n"]
    files: dict[str, list[Model]] = {}
    headed = None if page is None else " ".join(re.findall(r"^### (.*)$", page, re.MULTILINE)).replace(",", "").split()
    for model in map(find_model, time_model_names()):
        if headed is None or model.name in headed:
            files.setdefault((model.launch or model.seconds).__module__, []).append(model)
    for place, models in files.items():
        parts.append(f"### {', '.join(model.name for model in models)}\n\n" + "\n\n".join(paragraphs(import_module(place).__doc__)) + "\n")
        for model in models:
            one = model.covers if "<locals>" in model.seconds.__qualname__ else model.seconds  # of an engine, all kernels take the same
            meant = re.sub(r"[;.]?\s*UnavailableError[^.]*\.", ".", "\n\n".join(paragraphs(one.__doc__)))
            said = [f"`{model.name}`: {meant}"] if len(models) > 1 else []
            parts.append("\n\n".join([*said, f"Source: {model.source}.", f"Assumed: {model.assumes}."]) + "\n")
            parts.append(table(["parameter", "meaning"], ([code(one.name), one.meaning] for one in model.parameters)))
    return "\n".join(parts)


# Devices


def devices_page(page: str | None = None) -> str:
    """All profiles, what was fitted on them, models and systems."""
    devices = [find_device(name) for name in there(device_ids(), page, "\n| {} |")]
    listed = render(list_report(devices)).removeprefix(f"## {len(devices)} device profiles\n\n")
    rows = [row for device in devices for row in calibrated(device)]
    columns = ["device", "implementation", "workload", "pass", "formats", "points", "median error, held out", "date"]
    return "\n".join(
        [
            f"{GENERATED}# Devices\n\nWhich devices, models and systems are shipped, and what was measured on them.\n",
            f"{len(devices)} profiles; `perfmodel hardware show ID` prints each number with kind and source.\n",
            listed,
            "## Calibrations\n\nTime models fitted to measurements, and how far off they were on measurements that no fit saw.\n",
            table(columns, rows),
            f"## Models\n\n{', '.join(map(code, there(catalog.model_names(), page, '`{}`')))}; or the path of any config.json.\n",
            f"## Systems\n\n{', '.join(map(code, there(system_names(), page, '`{}`')))}; or the path of a YAML file.\n",
        ]
    )


def calibrated(device: Device) -> list[list[str]]:
    """A row for each calibration of ``device``."""

    def share(value: float | None) -> str:
        return "-" if value is None else f"{value:.1%}"

    return [
        [
            *(device.id, block.implementation, block.workload, block.direction, ", ".join(block.dtypes), str(block.points)),
            *(share(block.held_out_median_error), block.date),
        ]
        for block in device.calibration
    ]


# Studies

STUDIES = """How to write a study, a file of questions whose answers make one document.

A study is a YAML file of sections; `perfmodel report FILE.yaml` makes one document of it. `perfmodel report --attention
'n=1024:65536:x2 d=64 heads=16 batch=8' --hardware h100 --hardware h200 --save-study mine.yaml` writes one to begin with, and
`perfmodel report --schema > study.schema.json` the JSON Schema, which editors know: `# yaml-language-server: $schema=study.schema.json`.

```yaml
study:
  title: where tiling pays
  question: From which length on does tiling pay?
  sections:
    - kind: sweep
      devices: [h100, h200]
      workload:
        attention: {d: 64, heads: 16, batch: 8}
      over: n
      values: [1024, 4096, 16384, 65536]
```

The report begins with the `question` (by default the `title`) and the answer of the first section, for its first device. The answer and
every caption are made of the predicted numbers. Figures are numbered in the order of the sections; `notes` are among the assumptions.
"""


def studies_page(page: str | None = None) -> str:
    """Every kind of section with its fields, and their parts."""
    whole = schema()["$defs"]
    kinds = [name for name, one in whole.items() if "const" in one["properties"].get("kind", {})]
    parts = [f"{GENERATED}# Studies\n\n{STUDIES}"]
    for name in [*kinds, *(name for name in whole if name not in kinds)]:
        one, required = whole[name], whole[name].get("required", [])
        rows = [
            [code(field), type_words(how), "yes" if field in required else "", how.get("description", "")]
            for field, how in one["properties"].items()
        ]
        said = one.get("description", "")
        parts.append(f"## {name}\n\n{said}\n\n{table(['field', 'value', 'required', 'meaning'], rows)}")
    return "\n".join(parts)


def type_words(how: dict[str, Any]) -> str:
    """What a field may be, in a few words."""
    if "const" in how:
        return code(how["const"])
    if "enum" in how:
        return ", ".join(map(code, how["enum"]))
    if "$ref" in how:
        return str(how["$ref"]).rsplit("/", 1)[-1]
    if "anyOf" in how:
        return " or ".join(map(type_words, how["anyOf"]))
    if how.get("type") == "array":
        return f"list of {type_words(how.get('items', {}))}"
    names = {"string": "text", "integer": "whole number", "object": "mapping", "boolean": "true or false"}
    kind = str(how.get("type", "any"))
    return names.get(kind, kind)


def programs_page(page: str | None = None) -> str:
    """The page on programs, its table of programs measured and predicted made anew; only that is generated."""
    before, found, after = (page or (DOCS / "programs.md").read_text(encoding="utf-8")).partition(SCORED)
    return f"{before}{found}\n{programs.table('fresh')}\n\n{after[after.index('### ') :]}"


SCORED = "<!-- scores -->\n"


PAGES: dict[str, Callable[[str | None], str]] = {
    "programs.md": programs_page,
    "commands.md": commands_page,
    "formulas.md": formulas_page,
    "devices.md": devices_page,
    "studies.md": studies_page,
}

if __name__ == "__main__":
    DOCS.mkdir(exist_ok=True)
    for name, page in PAGES.items():
        (DOCS / name).write_text(page(None), encoding="utf-8")
    refresh()
    function_types.FILE.write_text(function_types.stub(), encoding="utf-8")
