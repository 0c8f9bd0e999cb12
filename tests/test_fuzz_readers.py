"""Every reader on damaged and hostile files: a value or one clear message, in time; and what is read can be computed with.

80 files per reader here; 1,250, and more than 20,000 in all, with ``pytest -m slow -s tests/test_fuzz_readers.py``.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from each import each
from fuzz_seeds import READERS, SEEDS, Seeds, studies
from fuzzing import SETTINGS, answer, calls, check, contents, guard, no_measuring, peak
from hypothesis import given

import perfmodel
from perfmodel.core.errors import PerfmodelError
from perfmodel.core.units import parse, parse_any
from perfmodel.study.schema import kind_names
from tools.commands import all_commands, command

CASES = [
    pytest.param(name, seeds, id=f"{name.removeprefix('perfmodel.')}{seeds.suffix}") for name, all_of in SEEDS.items() for seeds in all_of
]
OTHERWISE = {
    "perfmodel.validation.cuda.counters.read_cases": "reads what the same run has written",
    "perfmodel.catalog.find_device": "load_device",
    "perfmodel.catalog.find_model": "load_model",
}
"""Readers that have no seeds of their own, and why."""
WRITTEN = {"output", "save_study"}
"""Options whose file is written and never read."""


@pytest.fixture(autouse=True)
def _apart(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    no_measuring(monkeypatch)


def read(name: str, path: Path) -> None:
    """Read all of ``path``, if ``name`` is a function and not a line."""
    found = READERS[name](path) if name in READERS else None
    if hasattr(found, "__next__"):
        list(found)


def refused(name: str, path: Path) -> str | None:
    """What is said of a file that cannot be read; None if it is read."""
    try:
        with guard():
            read(name, path)
    except PerfmodelError as error:
        return str(error)
    return None


def ask(line: str, path: Path, given_text: str) -> int:
    args = line.replace("{}", str(path)).split()
    told = answer(args)
    check(args, *told, given_text)
    return told[0]


def test_every_reader_is_fuzzed() -> None:
    """A new function that reads a path needs a file that it reads in fuzz_seeds.py; a new option that takes one, a line."""
    assert set(READERS) - set(OTHERWISE) <= set(SEEDS)
    assert {name for name in SEEDS if name.startswith("perfmodel.")} <= set(READERS)
    sections = [section["kind"] for seed in studies() for section in seed["study"]["sections"]]
    assert set(sections) == set(kind_names()), "a new kind of section needs a study in fuzz_seeds.py"
    lines = [*SEEDS, *(line for all_of in SEEDS.values() for seeds in all_of for line in seeds.lines)]
    for name in all_commands():
        for param in command(name).params:
            told = getattr(param, "help", None) or ""
            if param.name in WRITTEN or getattr(param, "is_flag", False) or not re.search(r"\b(file|path)\b", told, re.IGNORECASE):
                continue
            option = next((opt for opt in param.opts if opt.startswith("--")), "")
            takes = [line for line in lines if line.startswith(f"{name} ") and "{}" in line]
            assert any(f"{option} {{}}" in line if option else re.match(rf"{name}( \S+)* {{}}", line) for line in takes), (name, param.name)


@pytest.mark.parametrize(("name", "seeds"), CASES)
def test_seeds_are_read(name: str, seeds: Seeds) -> None:
    path = Path(f"file{seeds.suffix}")
    for seed in seeds.files:
        path.write_text(seed if isinstance(seed, str) else json.dumps(seed))
        read(name, path)
    if name not in READERS:
        assert ask(name, path, "") == 0


@pytest.mark.parametrize("examples", [24, pytest.param(1_250, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("name", "seeds"), CASES)
def test_any_file_is_read_or_refused(name: str, seeds: Seeds, examples: int) -> None:
    path, counted, begun = Path(f"file{seeds.suffix}"), Counter[str](), time.process_time()
    examples = examples if name in READERS else examples // 8  # a line whose file another entry reads

    @SETTINGS(examples)
    @given(contents(seeds.files, seeds.suffix))
    def try_one(raw: bytes) -> None:
        path.write_bytes(raw)
        counted["files"] += 1
        message = refused(name, path)
        if message is not None:
            counted["refused"] += 1
            assert message.strip()
            return
        counted["read"] += 1
        line = chosen(seeds.lines, raw) if name in READERS else name
        if line:
            counted[f"exit {ask(line, path, raw.decode('utf-8', 'replace'))}"] += 1
        assert [entry.name for entry in Path().iterdir()] == [path.name]

    try_one()
    summary(f"{name} {seeds.suffix}", counted, time.process_time() - begun)
    assert counted["files"] >= examples


def chosen(lines: list[str], raw: bytes) -> str:
    """One of ``lines`` for every sixth file: to answer takes longer than to read."""
    place = crc32(raw) % (6 * len(lines) or 1)
    return lines[place] if place < len(lines) else ""


def summary(name: str, counted: Counter[str], seconds: float) -> None:
    told = ", ".join(f"{what} {count:,}" for what, count in sorted(counted.items()))
    print(f"{name}: {told}; {peak()}; {seconds:.0f} s")


# What no mutation finds in 80 examples

AT_ONCE = 500_000
"""Calls, in Python and C, that a refusal may take: those of a few documents of their size that are read."""
ANYTHING = ("perfmodel.core.files.read_json", "perfmodel.core.files.read_yaml")
"""Readers of any document."""


@each(
    ("text", "words"),
    [
        ("a: &a [1]\n" + "".join(f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join([f'*{chr(97 + i)}'] * 9)}]\n" for i in range(9)), "aliases"),
        ("[" * 100_000, "nested deeper"),
        ("{a: " * 30_000, "nested deeper"),
        ("- " * 100_000, "nested deeper"),
        ("? " * 100_000, "nested deeper"),
        ("".join(f"{' ' * i}a:\n" for i in range(1000)), "nested deeper"),
        ("a: 1\n" * 2, "appears twice"),
        ("a: !!python/name:os.system x\n", "tag"),
        ("a: !!binary aGk=\n", "tag"),
        ("<<: {a: 1}\n", "tag"),
        ("a: " + "9" * 10_000, "Exceeds the limit"),
        ("a: 0x" + "f" * 10_000, "a number is above 1e+60"),
        ("a: '\\ud800'\n--- \nb: 1\n", "document"),
        ("x" * (1 << 21), "larger than"),
        ("a: " + "1" * 70 + ":" + ":".join(["59"] * 9000), ""),
    ],
)
@each("name", ["perfmodel.core.files.read_yaml", "perfmodel.catalog.load_device", "perfmodel.catalog.load_model"])
def test_yaml_bombs_are_refused_at_once(name: str, text: str, words: str) -> None:
    path = Path("bomb.yaml")
    path.write_text(text)
    with calls() as counted:
        message = refused(name, path)
    assert (message is None) == (not words) or name != "perfmodel.core.files.read_yaml"
    assert words in (message or "")
    assert counted["calls"] < AT_ONCE


MANY = ", ".join(f'"k{i}": 1' for i in range(20_000))


@each(
    "text",
    [
        *("[" * 100_000, '{"a":' * 50_000, '{"a": 1, "a": 2}', "9" * 10_000, "NaN", '{"a": "\\ud800"}', '"\\u0000"'),
        *(f'{{{MANY}, "k19999": 2}}', f"{{{MANY}}}", "[" + "[], " * 50_000 + "1]", '{"a": ' + "1e99999" + "}"),
    ],
)
def test_json_bombs_are_refused_at_once(text: str) -> None:
    Path("bomb.json").write_text(text)
    for name in READERS:
        if name not in OTHERWISE and any(seeds.suffix in (".json", ".jsonl") for seeds in SEEDS.get(name, [])):
            with calls() as counted:
                assert refused(name, Path("bomb.json")) or name in ANYTHING
            assert counted["calls"] < AT_ONCE


@pytest.mark.parametrize(
    "text",
    ["9" * 4000 + " B x y", "9" * 150 + " B x y", "1_" * 90 + " B", "1e" * 90, " " * 190 + "1", "1" + " " * 190 + "B x", "1.", "1e9999 B"],
)
def test_quantities_are_refused_at_once(text: str) -> None:
    with calls() as counted:
        with pytest.raises(PerfmodelError):
            parse(text, "B")
        with pytest.raises(PerfmodelError):
            parse_any(text)
    assert counted["calls"] < AT_ONCE / 1000


def test_endless_files_end() -> None:
    """A file without an end is refused after its largest size, not read."""
    for name in set(READERS) - set(OTHERWISE):
        for endless in ("/dev/zero", "/dev/full"):
            with guard(), pytest.raises(PerfmodelError):
                read(name, Path(endless))


@pytest.mark.parametrize("name", sorted(set(READERS) - set(OTHERWISE)))
def test_paths_that_are_no_files(name: str) -> None:
    Path("loop").symlink_to("loop")
    Path("dangling").symlink_to("nowhere")
    Path("folder").mkdir()
    for path in (
        "loop",
        "dangling",
        "folder",
        "folder/x/y",
        "a" * 300,
        "nul\0.yaml",
        "",
        "/dev/null/x",
        "\udcff",
        "x" * 5000,
        "no/such/file",
    ):
        with guard(), pytest.raises(PerfmodelError):
            read(name, Path(path))


@pytest.mark.parametrize("name", sorted(set(READERS) - set(OTHERWISE)))
def test_pipes_are_refused(name: str) -> None:
    """A pipe whose other end nobody opens would be waited for without an end."""
    for suffix in {".yaml", *(seeds.suffix for seeds in SEEDS[name])}:
        os.mkfifo(f"pipe{suffix}")
        with guard(), pytest.raises(PerfmodelError, match="not a regular file"):
            read(name, Path(f"pipe{suffix}").absolute())


def test_every_file_is_opened_in_one_place() -> None:
    """Readers of what users name go through ``perfmodel.core.checks``, which refuses what is no regular file."""
    root = Path(perfmodel.__path__[0])
    for name in READERS:
        if name not in OTHERWISE and name.startswith("perfmodel."):
            source = (root.parent / f"{name.rpartition('.')[0].replace('.', '/')}.py").read_text()
            assert not re.search(r"read_bytes\(\)|\.open\(|(?<!\w)open\(", source), name


def test_a_file_that_may_not_be_read(monkeypatch) -> None:
    def denied(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    secret = Path("secret.yaml").resolve()
    secret.write_text("x")
    monkeypatch.setattr(Path, "open", denied)
    for name in set(READERS) - set(OTHERWISE):
        with pytest.raises(PerfmodelError, match="Permission denied"):
            read(name, secret)
