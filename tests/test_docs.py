"""The pages of docs/ are current, the examples of every help page run, what docs/adding.md shows works; shells complete."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
from each import each
from fuzz_seeds import MEASURING, tree
from fuzzing import examples, no_measuring
from tables import table

from perfmodel.catalog import device_ids, model_names
from perfmodel.cli import command_names
from perfmodel.commands._completion import SCRIPTS
from perfmodel.report import formats
from tools.commands import all_commands
from tools.refresh import docs as refresh_docs
from tools.refresh import needed_formulas

DOCS = refresh_docs.DOCS
README = DOCS.parent / "README.md"
LINES = (
    "attention --n 512 --d 64", "matmul -m 256 -n 256 -k 256", "softmax --rows 64 --cols 64",
    "mlp --batch 8 --d-in 64 --d-hidden 64 --d-out 8",
    "fuse --elements 1024 --ops 3", "recompute --bytes 64MiB --flops 10GFLOP", "kv-cache llama-3-8b --n 8192", "model llama-3-8b",
    "memory llama-3-8b --batch 8 --n 4096", "remat --layers 10 --checkpoints 5", "roofline --matmul 512x512x512", "hardware list",
    "hardware show nvidia-h200-sxm", "sweep --n 64,128 --d 64", f"report {DOCS.parent / 'tests/data/studies/small.yaml'}", "claims",
    "occupancy --threads 256 --registers 64 --sram 48KiB --stride 2",
)  # fmt: skip
BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)
NOT_MEASURED = "nothing is measured in a fuzz test"


PROFILE = Path(__file__).with_name("data") / "traces" / "bert-small-h100.json.gz"


@pytest.mark.parametrize("name", refresh_docs.PAGES)
def test_generated_pages_are_current(name):
    """In all that they have; what was added since need not be there yet."""
    page = (DOCS / name).read_text()
    assert page == refresh_docs.PAGES[name](page), "refresh with: python -m tools.refresh.docs"


@pytest.mark.parametrize(
    ("name", "shipped", "gone"),
    [("devices.md", "| nvidia-a30 |", "| nvidia-a31 |"), ("commands.md", "\n## occupancy\n", "\n## occupied\n")],
)
def test_a_page_with_what_is_gone_is_not_current(name, shipped, gone):
    page = (DOCS / name).read_text()
    assert page.count(shipped) == 1
    changed = page.replace(shipped, gone)
    assert changed != refresh_docs.PAGES[name](changed)


def test_the_formulas_that_everyone_needs_come_first():
    """And one that is not what the program computes makes no page."""
    page = (DOCS / "formulas.md").read_text()
    first = page.partition("\n## ")[2].partition("\n## ")[0]
    assert re.findall(r"^(\d)\. \*\*", first, re.MULTILINE) == [*"123456"]
    one = needed_formulas.NEEDED[2]
    wrong = one._replace(parts=(one.parts[0]._replace(formula="B * H * (3 * N**2 + 4 * N * d)"),))
    assert len(list(needed_formulas.lines(refresh_docs.answer, [one]))) == 1
    with pytest.raises(AssertionError):
        list(needed_formulas.lines(refresh_docs.answer, [wrong]))


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_a_page_opens_with_what_it_is_for(page):
    """One sentence below its title."""
    _, sentence, *_ = page.read_text().removeprefix(refresh_docs.GENERATED).split("\n\n")
    assert sentence.endswith(".")
    assert not re.search(r"[.;] ", sentence)
    assert len(sentence) <= 140


def test_links_lead_somewhere():
    """Those of the pages, and the README leads to every page."""
    assert {path.name for path in DOCS.glob("*.md")} <= set(re.findall(r"\(docs/([^)]+)\)", README.read_text()))
    pages = [*DOCS.glob("*.md"), README]
    for page in pages:
        for target in re.findall(r"\]\(([^)#:]+)[^):]*\)", page.read_text()):
            assert (page.parent / target).exists(), (page.name, target)


# Help


@pytest.mark.parametrize("name", all_commands())
def test_examples_of_help_run(run, tmp_path, monkeypatch, name):
    """Each, as it is printed; what measures says that it would, and the shipped records are a few."""
    monkeypatch.chdir(tmp_path)
    no_measuring(monkeypatch)
    for document in ("before.json", "after.json"):
        Path(document).write_text(json.dumps(tree("report/example.json")))
    Path("step.json.gz").write_bytes(PROFILE.read_bytes())
    page = run(f"{name} --help")
    assert page.code == 0
    assert examples(name)
    for example in examples(name):
        assert f"\n  Example: perfmodel {' '.join(map(quoted, example))}\n" in page.out
        outcome = run("", *example)
        assert outcome.code in (0, 3) or (name in MEASURING and NOT_MEASURED in outcome.err) or NOT_MEASURED in outcome.err, outcome
        for place, word in enumerate(example):
            assert word != "-o" or outcome.code or Path(example[place + 1]).stat().st_size


def quoted(word: str) -> str:
    return shlex.quote(word) if shlex.quote(word) == word else f"'{word}'"


# Adding


def blocks() -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = BLOCK.findall((DOCS / "adding.md").read_text())
    return found


def test_what_adding_shows_works(run, tmp_path, monkeypatch):
    """Files go into folders beside the package's own; every line shown is then answered."""
    monkeypatch.chdir(tmp_path)
    ran = 0
    for language, text in blocks():
        if language == "python":
            path = re.match(r"# (perfmodel/\S+)/(\w+)\.py\n", text)
            assert path is not None
            package = import_module(path[1].replace("/", "."))
            folder = tmp_path / path[1]
            folder.mkdir(parents=True)
            (folder / f"{path[2]}.py").write_text(text)
            monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])
        elif language == "yaml":
            name = re.match(r"# (\S+\.yaml)\n", text)
            assert name is not None
            Path(name[1]).write_text(text)
        elif language == "json":
            Path("runs.jsonl").write_text(text)
        else:
            for line in text.splitlines():
                outcome = run("", *shlex.split(line.removeprefix("$ perfmodel ")))
                assert outcome.code == 0, (line, outcome)
                ran += 1
    assert ran == len(re.findall(r"^\$ ", (DOCS / "adding.md").read_text(), re.MULTILINE))
    assert Path("softmax.tsv").read_text().count("\t") > 10
    assert "tensor bf16\t" in Path("roofline.tsv").read_text()
    for name, module in list(sys.modules.items()):
        if str(tmp_path) in str(getattr(module, "__file__", "")):
            del sys.modules[name]


def test_one_file_writes_every_report(tmp_path, monkeypatch, run):
    """The exporter of docs/adding.md, dropped into formats/, has every number of every report, of pictures alone too."""
    from tools.refresh.report_example import example

    [text] = [text for language, text in blocks() if language == "python" and "/formats/" in text]
    assert len(text.splitlines()) < 15
    (tmp_path / "tsv.py").write_text(text)
    monkeypatch.setattr(formats, "__path__", [*formats.__path__, str(tmp_path)])
    whole = example()
    pictures = [replace(whole, charts=[chart], tables=[], data_tables=[]) for chart in whole.charts]
    for report in [whole, *pictures]:
        made = formats.render(".tsv", report)
        assert isinstance(made, str)
        assert made.count("\t") > 5, report.charts[0].title
        assert not set(made) & set("\x1b\x9b")
    for line in LINES:
        outcome = run(line, "-o", str(tmp_path / "out.tsv"))
        assert outcome.code == 0, (line, outcome)
        assert (tmp_path / "out.tsv").read_text().count("\t") > 1, line
    sys.modules.pop("perfmodel.report.formats.tsv")


# Completion


@each(
    ("words", "found"),
    [*table("words_are_completed"), *((["sweep", *words], found) for words, found in table("axes_and_studies_are_completed"))],
)
def test_words_are_completed(run, words, found):
    outcome = run("--complete", *words)
    assert (outcome.code, outcome.out.split(), outcome.err) == (0, found, "")


def test_all_commands_devices_and_models_are_completed(run):
    assert run("--complete", "").out.split()[: len(command_names())] == [name.replace("_", "-") for name in command_names()]
    assert run("--complete", "attention", "--hardware", "").out.split() == device_ids()
    assert run("--complete", "model", "").out.split() == model_names()


@pytest.mark.parametrize("shell", SCRIPTS)
def test_scripts_are_in_the_language_of_their_shell(run, shell):
    script = run(f"--show-completion {shell}").out
    assert "perfmodel --complete" in script
    if shutil.which(shell):
        subprocess.run([shell, "-n", "-c", script], check=True)
    assert run("--show-completion csh").code == 2


def test_bash_completes():
    """The script as bash evaluates it, with the words that bash hands over."""
    words = "COMP_WORDS=(perfmodel attention --hardware nvidia-h200); COMP_CWORD=3"
    line = f'eval "$(perfmodel --show-completion bash)"; {words}; _perfmodel; echo ${{COMPREPLY[@]}}'
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    finished = subprocess.run(["bash", "-c", line], env=os.environ | {"PATH": path}, capture_output=True, text=True, check=True)
    assert finished.stdout == "nvidia-h200-sxm\n"


def test_completion_loads_no_more_than_it_needs():
    code = "import sys; from perfmodel.cli import main; main(sys.argv[1:]); print(*sorted(sys.modules))"
    words = ["--complete", "attention", "--hardware", "h200"]
    modules = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True).stdout.split()
    assert {"numpy", "numba", "pydantic", "rich.table"}.isdisjoint(modules)
    assert not [name for name in modules if name.startswith("perfmodel.commands.") and name.rsplit(".", 1)[1] not in LOADED]


LOADED = ("_command", "_completion", "_output", "attention")
