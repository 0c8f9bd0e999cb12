"""Mistakes: one clear message with place and fix, exit code 1 or 2, no traceback, no partial file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from perfmodel.core.files import read_yaml

PROFILE = (Path(__file__).parents[1] / "hardware_specs" / "nvidia-h200-sxm.yaml").read_text()


def changed(old: str, new: str) -> str:
    assert old in PROFILE
    return PROFILE.replace(old, new, 1)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["not a mapping"]),
        ("- 1\n- 2\n", ["not a mapping"]),
        ("a: [1, 2\nb: 3\n", ["line 2"]),
        ("a: 1\na: 2\n", ["line 2", "'a' appears twice"]),
        ("a: &x [1]\nb: [*x, *x]\n", ["aliases"]),
        ("a: &a [1]\nb: &b [*a, *a]\nc: &c [*b, *b]\nd: [*c, *c]\n", ["aliases"]),
        ("a: " + "[" * 5000, ["nested deeper"]),
        ("- " * 5000, ["nested deeper"]),
        ("a: !!python/object/apply:os.system [ls]\n", ["tag"]),
        ("a: 2026-01-01\n", ["tag", "quote"]),
        ("1: a\n", ["key must be plain text"]),
        ("\x00", ["not YAML"]),
        (changed("schema_version: 1\n", ""), ["schema_version", "required"]),
        (changed("schema_version: 1", "schema_version: 2"), ["line 1", "schema_version"]),
        (changed("4.8 TB/s", "4.8 TB"), ["memory.2.bandwidth", "'4.8 TB' is not in B/s", "4.8 TB/s"]),
        (changed("4.8 TB/s", "4.8e12"), ["'4.8e12' is not in B/s"]),
        (changed("4.8 TB/s", "48"), ["48 has no unit"]),
        (changed("4.8 TB/s", "fast"), ["not a number with a unit"]),
        (changed("4.8 TB/s", "0 TB/s"), ["not positive"]),
        (changed("1830 MHz", "1830 MB"), ["clocks.tensor", "is not in Hz"]),
        (changed("kind: datasheet", "kind: guess"), ["kind", "datasheet"]),
        (changed("source: whitepaper", "source: hearsay"), ["hearsay", "not in 'sources'"]),
        (changed("architecture:", "colour: green\narchitecture:"), ["colour", "unknown field"]),
        (changed("  - level: sram", "  - level: l2"), ["l2"]),
        (changed("{value: 132,", "{value: -1,"), ["multiprocessors", "-1"]),
        (changed("{value: 132,", "{value: 1.5,"), ["multiprocessors"]),
        (changed("shape: {m: 1280, n: 4096, k: 12032}", "shape: {m: 1280, n: 4096}"), ["microbenchmarks.", "shape is", "k: 8192"]),
        (changed("shape: {m: 1280, n: 4096, k: 12032}", "shape: {m: 1280, n: 4096, k: 0}"), ["microbenchmarks.", "shape is", "k: 8192"]),
        (changed("shape: {m: 1280, n: 4096, k: 12032}", "shape: {m: 1280, n: 4096, k: wide}"), ["microbenchmarks.", "shape.k"]),
    ],
)
def test_profile_mistakes_name_file_line_and_field(run, tmp_path, text, words):
    path = tmp_path / "profile.yaml"
    path.write_text(text)
    for line in (f"hardware check {path}", f"attention --n 64 --d 64 --hardware {path}"):
        outcome = run(line)
        assert outcome.code == 1, outcome
        assert str(path) in outcome.err
        for word in words:
            assert word in outcome.err
        assert "Traceback" not in outcome.err


def test_numbers_of_other_bases_are_text(tmp_path):
    """YAML 1.1 reads 1:30 as 90, in base 60, and 020 as 16; nobody who writes these means that."""
    path = tmp_path / "mine.yaml"
    path.write_text("a: [1:30, -1:30, 1:30.5, 020, 1_000, 0x10, -3, 1.5, 1.5e+3, .inf, 0, true]\n")
    assert read_yaml(path)[0]["a"] == ["1:30", "-1:30", "1:30.5", "020", 1000, 16, -3, 1.5, 1500, float("inf"), 0, True]


def test_shipped_files_hold_no_such_number():
    """So all of them mean to this reader what they mean to any other."""
    files = [*Path(__file__).parents[1].glob("hardware_specs/*.yaml"), *Path(__file__).parents[1].glob("configs/**/*.yaml")]
    assert len(files) > 60
    for path in files:
        assert read_yaml(path)[0] == yaml.load(path.read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader)), path


def test_contradicting_profile_fails_the_check(run, tmp_path):
    path = tmp_path / "profile.yaml"
    path.write_text(changed("989.4 TFLOP/s", "1979 TFLOP/s"))
    outcome = run(f"hardware check {path}")
    assert outcome.code == 1
    assert "fp16" in outcome.err


def test_large_and_unreadable_files(run, tmp_path):
    big = tmp_path / "big.yaml"
    with big.open("wb") as file:
        file.truncate(50_000_000)
    assert "larger than" in run(f"hardware check {big}").err
    folder = tmp_path / "folder.yaml"
    folder.mkdir()
    assert "not a regular file" in run(f"hardware check {folder}").err
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"a: \xff\xfe")
    assert "not UTF-8" in run(f"hardware check {binary}").err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("attention:\n  n: 64\n  d: many\n", ["line 3", "attention.d", "integer"]),
        ("attention:\n  n: 64\n  d: 64\n  colour: red\n", ["attention.colour"]),
        ("attention: 3\n", ["no mapping 'attention'"]),
        ("other:\n  n: 64\n", ["no mapping 'attention'"]),
    ],
)
def test_configuration_mistakes(run, tmp_path, text, words):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    outcome = run(f"attention --config {path}")
    assert outcome.code == 1, outcome
    for word in words:
        assert word in outcome.err


def test_outputs_are_checked_before_work_and_replaced_whole(run, tmp_path):
    path = tmp_path / "out.json"
    path.write_text("old")
    assert run(f"attention --n 0 --d 64 -o {path}").code == 2
    assert path.read_text() == "old"
    assert run(f"attention --n 64 --d 64 -o {tmp_path}").code == 2
    folder = tmp_path / "x.json"
    folder.mkdir()
    assert "is a folder" in run(f"attention --n 64 --d 64 -o {folder}").err
    link = tmp_path / "link.json"
    link.symlink_to(path)
    assert run(f"attention --n 64 --d 64 -o {link}").code == 0
    assert link.is_symlink()
    assert path.read_text().startswith("{")


def test_a_full_disk_leaves_nothing(run, tmp_path, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    outcome = run(f"attention --n 64 --d 64 -o {tmp_path / 'out.json'}")
    assert (outcome.code, list(tmp_path.iterdir())) == (1, [])
    assert "No space left" in outcome.err


def test_a_closed_pipe_is_no_crash():
    command = f"{sys.executable} -m perfmodel hardware list --json | head -c 1"
    finished = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert "Traceback" not in finished.stderr


@pytest.mark.parametrize("command", ["attention --n 64 --d 64", "--help", "attention --help", "hardware list"])
def test_output_that_cannot_be_written(command):
    full = subprocess.run(f"{sys.executable} -m perfmodel {command} > /dev/full", shell=True, capture_output=True, text=True, check=False)
    assert (full.returncode, "Traceback" in full.stderr) == (1, False)
    assert "No space left" in full.stderr
    closed = subprocess.run(f"{sys.executable} -m perfmodel {command} >&-", shell=True, capture_output=True, text=True, check=False)
    assert (closed.returncode, closed.stderr) == (1, "")


def test_a_pipe_is_written_to_and_permissions_are_kept(run, tmp_path):
    path = tmp_path / "secret.json"
    path.write_text("")
    path.chmod(0o600)
    assert run(f"attention --n 64 --d 64 -o {path}").code == 0
    assert path.stat().st_mode & 0o777 == 0o600
    os.mkfifo(tmp_path / "pipe.json")
    reader = subprocess.Popen(["cat", tmp_path / "pipe.json"], stdout=subprocess.PIPE, text=True)
    assert run(f"attention --n 64 --d 64 -o {tmp_path / 'pipe.json'}").code == 0
    assert reader.communicate()[0].startswith("{")
    os.mkfifo(tmp_path / "pipe.yaml")
    assert "not a regular file" in run(f"hardware check {tmp_path / 'pipe.yaml'}").err


def test_a_profile_that_knows_almost_nothing(run, tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text(
        "schema_version: 1\nid: small\nname: Small\nvendor: me\narchitecture: x\nsources: {s: me}\n"
        "memory:\n  - {level: dram, scope: device, name: DDR, bandwidth: {value: 100 GB/s, kind: measured, source: s}}\n"
        "peaks: {tensor: {fp16: {value: 1 TFLOP/s, kind: measured, source: s}}}\n"
    )
    outcome = run(f"attention --n 512 --d 64 --hardware {path} --sram 64KiB --full")
    assert outcome.code == 0
    assert "has no L2 size" in outcome.out
    assert "has no rate for the exponential unit" in outcome.out
