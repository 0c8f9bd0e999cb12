"""Input as people type it means the same in every command, in files, in texts of workloads, in sweeps and from Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from each import each

import perfmodel
from perfmodel.core.dtypes import ALIASES, DTYPES, canonical
from perfmodel.core.errors import DataError
from perfmodel.core.units import parse, parse_number
from tools.commands import all_commands, command

ALIKE = {
    "attention --n 8000 --d 64 --batch 10 --dtype fp16": "attention --n 8k --d 64 --batch 1e1 --dtype Float16",
    "attention --n 8192 --d 64 --dtype bf16": "attention --n 8Ki --d 64 --dtype torch.bfloat16",
    "matmul -m 8000 -n 128 -k 8192 --hardware h200 --dtype fp8": "matmul -m 8K -n 128 -k 8Ki --hardware h200 --dtype float8_e4m3fn",
    "mlp --batch 4000 --d-in 64 --d-hidden 64 --d-out 64 --dtype fp32": "mlp --batch 4k --d-in 64 --d-hidden 64 --d-out 64 --dtype float",
    "softmax --rows 4000 --cols 32768 --dtype bf16": "softmax --rows 4e3 --cols 32Ki --dtype BF16",
    "fuse --elements 1000000 --ops 30 --dtype fp16": "fuse --elements 1M --ops 30 --dtype half",
    "recompute --bytes 64MB --flops 10GFLOP --dtype fp16": "recompute --bytes 64mb --flops 1e10 --dtype HALF",
    "occupancy --threads 1000 --sram 48kB": "occupancy --threads 1k --sram 48KB",
    "kv-cache llama-3-8b --n 8000 --dtype fp8 --reserve 4GB": "kv-cache llama-3-8b --n 8k --dtype FP8 --reserve 4gb",
    "model llama-3-8b --phase decode --kv-len 2000 --kv-dtype int8": "model llama-3-8b --phase decode --kv-len 2k --kv-dtype INT8",
    "batch llama-3-8b --kv-len 2000 --dtype fp16": "batch llama-3-8b --kv-len 2k --dtype float16",
    "memory llama-3-8b --batch 8 --n 4000 --precision bf16": "memory llama-3-8b --batch 8 --n 4k --precision bfloat16",
    "serve gpt2 --isl 500 --osl 100 --concurrency 10": "serve gpt2 --isl 0.5k --osl 1e2 --concurrency 1e1",
    "remat --layers 10 --size 1000 --memory 8000": "remat --layers 1e1 --size 1k --memory 8k",
    "sweep --n 1000,2000 --d 64 --dtype fp16,bf16": "sweep --n 1k:2k:x2 --d 64 --dtype FP16,bfloat16",
    "sweep matmul --m 1000 --n 64 --k 64 --where m<=8000": "sweep matmul --m 1k --n 64 --k 64 --where m<=8k",
    "roofline --attention n=8000,d=64,dtype=fp16 --matmul 8000x128x8192": "roofline --attention n=8k,d=64,dtype=half --matmul 8kx128x8Ki",
}


@each("plain", ALIKE)
def test_as_typed_is_as_spelled_out(run, plain: str) -> None:
    numbers, typed = (run(f"{line} --json").json for line in (plain, ALIKE[plain]))
    for one in (numbers, typed):
        one.pop("inputs" if plain.startswith("sweep") else "provenance", None)  # repeats the text
    assert typed == numbers


def test_every_option_of_a_number_and_of_a_format_is_read_so() -> None:
    """Of all commands: no option has a reading of its own."""
    seen = set()
    for name in all_commands():
        found = command(name)
        for param in found.get_params(found.context_class(found)):
            reading = param.get_runtime_param() if hasattr(param, "get_runtime_param") else None
            if getattr(reading, "annotation", None) in (int, float):
                assert reading.coerce("8k", param, None) == 8000
                seen.add(name)
    assert len(seen) > 12


def test_formats_have_one_table() -> None:
    for alias, name in ALIASES.items():
        assert canonical(alias) == canonical(alias.upper()) == canonical(f"torch.{alias}") == name
    assert all(canonical(name.upper()) == name for name in DTYPES)
    tables = [path for path in Path(perfmodel.__file__).parent.rglob("*.py") if '"bfloat16"' in path.read_text()]
    of_torch = {"recorder.py", "sdpa.py"}  # names of PyTorch's own types
    assert {path.name for path in tables if "validation" not in path.parts} - of_torch <= {"dtypes.py"}


def test_python_and_files_take_the_same(run, tmp_path: Path) -> None:
    spelled: Any = perfmodel.matmul(m=8000, n=128, k=8192, dtype="fp16")
    assert perfmodel.matmul(m="8k", n=1.28e2, k="8Ki", dtype="half") == spelled
    assert perfmodel.sweep(n="1k:4k:x2", d=64, dtype="FP16")["n"].tolist()[:3] == [1000, 2000, 4000]
    assert perfmodel.compare_attention(n="8k", d=64, dtype="bfloat16").workload.dtype.name == "bf16"
    path = tmp_path / "mine.yaml"
    path.write_text("attention: {n: 8k, d: 64, dtype: Float16, pass: forward}\n")
    assert run(f"attention --config {path} --json").json["inputs"] == run("attention --n 8000 --d 64 --json").json["inputs"]
    section = "  - kind: roofline\n    devices: [h200]\n    workloads: [{matmul: {m: 8k, n: 1e3, k: 64, dtype: half}}]\n"
    path.write_text(f"study:\n  title: x\n  sections:\n{section}")
    assert "8000 x 1000 x 64" in run(f"report {path}").out


@each("text", ["", "8 k k", "8q", "-8k", "8kB", "1e9999", "k", "0x10", "1/2", "8,00"])
def test_what_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(DataError) as caught:
        parse_number(text)
    assert caught.value.fix


def test_units_keep_their_meaning() -> None:
    """Decimal and binary are never mixed; what could be bits, or milli, is refused."""
    assert [parse(text, "B") for text in ("1KB", "1kb", "1KiB", "1kib", "1GIB")] == [1000, 1000, 1024, 1024, 1 << 30]
    for text in ("1Gb", "1mB", "1 g", "1G"):
        with pytest.raises(DataError):
            parse(text, "B")
