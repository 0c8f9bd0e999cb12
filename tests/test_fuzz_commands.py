"""Every command with options right and wrong: an answer or one clear message, in time, and no file but those asked for, whole.

12 lines per command here; 100,000 and more in all with ``pytest -m slow -s tests/test_fuzz_commands.py``.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import time
from collections import Counter
from pathlib import Path
from random import Random

import pytest
from each import each
from fuzz_seeds import MEASURING
from fuzzing import SETTINGS, answer, check, examples, lines, no_measuring, peak
from hypothesis import given
from hypothesis import strategies as st

from tools.commands import all_commands

LARGEST = 10**15


@pytest.fixture(autouse=True)
def _apart(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    no_measuring(monkeypatch)


def test_every_command_has_an_example() -> None:
    for name in all_commands():
        assert examples(name), name
        assert all(" ".join(line).startswith(name) for line in examples(name))


def answered(name: str) -> list[list[str]]:
    """Examples that need no file of the user's."""
    return [line for line in examples(name) if not any(word.endswith((".json", ".yaml", ".csv")) for word in line)] or examples(name)


SLOW = {"claims": 60, "report": 30, "batch": 20, "kv-cache": 10, "roofline": 5}
"""Commands that are asked so many times less often in the long run."""


@pytest.mark.parametrize("count", [6, pytest.param(6_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", all_commands())
def test_any_line_is_answered_or_refused(name: str, count: int) -> None:
    base = [MEASURING[name].split()] if name in MEASURING else answered(name)
    count = count if count < 100 else count // SLOW.get(name, 1)
    counted, longest, wrong, r = Counter[str](), (0.0, ""), [], Random(f"{name} {count}")
    for args in (base[0], *(lines(r, name, base) for _ in range(count))):
        begun, line = time.process_time(), shlex.join(args)
        try:
            code, out, err = answer(args)
            check(args, code, out, err)
            check_files(args, code)
            counted.update(("lines", f"exit {code}"))
        except Exception as error:
            wrong.append(f"perfmodel {line[:500]!a}\n    {error!r:.500}")
        longest = max(longest, (time.process_time() - begun, line))
    told = ", ".join(f"{what} {number:,}" for what, number in sorted(counted.items()))
    print(f"{name}: {told}; {peak()}; longest {longest[0]:.1f} s: {longest[1][:200]!a}")
    assert not wrong, "\n".join([f"{len(wrong)} are wrong", *wrong[:20]])
    assert counted["exit 0"] + counted["exit 3"] + counted["exit 1"], "not even the example was answered"


def check_files(args: list[str], code: int) -> None:
    """Nothing but the files that were asked for, whole; and they are gone afterwards."""
    if not os.listdir():
        return
    files = {path: path.read_bytes() for path in Path().rglob("*") if not path.is_dir()}
    for path in Path().iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    asked = {name for name in asked_files(args) if Path(name).parts}
    assert {path.parts[0] for path in files} <= {Path(name).parts[0] for name in asked} or "--resume" in args
    assert not files or code in (0, 3), "a failure that leaves a file"
    for path, content in files.items():
        if path.suffix == ".json":
            json.loads(content)


def asked_files(args: list[str]) -> list[str]:
    """What the line gives as ``--output``, however it is joined to it, or what its profile is named after."""
    if args[:2] == ["hardware", "add"]:
        args = [*args, *(f"-o{word}.yaml" for word in args[2:])]
    joined = [word.removeprefix(option) for word in args for option in ("--output=", "-o") if word.startswith(option)]
    return [*joined, *(args[place + 1] for place, word in enumerate(args[:-1]) if word in ("-o", "--output"))]


@each("name", [name for name in all_commands() if name not in MEASURING])
def test_one_option_at_its_largest(name: str) -> None:
    """Every whole number of an example at 10^15 is answered or refused; one more and 10^18 are no larger in what they may do."""
    for line in examples(name):
        for place, word in enumerate(line):
            if word.isdecimal():
                for number in (LARGEST, LARGEST + 1, 10**18, 10**30):
                    args = [*line[:place], str(number), *line[place + 1 :]]
                    code, out, err = answer(args)
                    check(args, code, out, err)
                    assert number <= LARGEST or code in (1, 2), (args, "taken though too large")


SIZE = st.integers(1, LARGEST)


@SETTINGS(6)
@given(SIZE, SIZE, SIZE, st.integers(1, 100))
def test_counts_are_exact_to_the_last_digit(n: int, kv_len: int, d: int, batch: int) -> None:
    line = f"attention --n {n} --kv-len {kv_len} --d {d} --batch {batch} --algorithm standard --json"
    code, out, err = answer(line.split())
    assert code == 0, err
    [result] = json.loads(out)["results"]
    assert result["flops"] == 4 * batch * n * kv_len * d
    assert result["accesses"]["total"] == batch * (4 * n * kv_len + 2 * n * d + 2 * kv_len * d)
    code, out, err = answer(f"matmul -m {n} -n {kv_len} -k {d} --batch {batch} --json".split())
    assert code == 0, err
    assert json.loads(out)["results"][0]["flops"] == 2 * batch * n * kv_len * d
    code, out, err = answer(f"kv-cache llama-3-8b --n {n} --batch {batch} --json".split())
    assert code == 0, err
    assert json.loads(out)["bytes"] == 131072 * n * batch
