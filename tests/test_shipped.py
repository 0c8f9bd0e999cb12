"""Every command that takes a model on every shipped model, and every command that takes a device on every shipped device: an answer,
or a refusal that is listed here with its reason and its fix. What a refusal tells to give is given, and then there is an answer.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from perfmodel.catalog import device_ids, find_device, find_model, model_names
from perfmodel.transformer.training.question import untrained
from tools.commands import all_commands, command

OF_MODELS = {
    "batch": ["batch {}"],
    "kv-cache": ["kv-cache {}"],
    "memory": ["memory {}"],
    "model": [f"model {{}} --phase {how}" for how in ("decode --kv-len 512", "prefill --n 512", "generate --n 64", "train --n 64 --tp 2")],
    "remat": ["remat {} --n 512"],
    "serve": ["serve {} --hardware h200"],
    "compare": ["compare a100-sxm-80gb h200 --model '{} decode'"],
    "report": ["report --model '{} decode'"],
    "roofline": ["roofline --model '{} decode'"],
    "sweep": ["sweep model --model {} --phase decode --kv-len 512,1024"],
}  # fmt: skip
SHAPE = "n=1024 d=64 heads=4"
OF_DEVICES = {
    "attention": ["attention --n 1024 --d 64 --heads 4", "attention --n 1024 --d 64 --heads 4 --pass both --causal --algorithm all"],
    "batch": ["batch llama-3.2-1b --kv-len 512"],
    "compare": [f"compare standard flash --attention '{SHAPE}'"],
    "fuse": ["fuse --elements 1048576 --ops 30"],
    "kv-cache": ["kv-cache llama-3.2-1b --n 512"],
    "matmul": ["matmul -m 512 -n 128 -k 512"],
    "memory": ["memory gpt2 --n 512"],
    "mlp": ["mlp --batch 512 --d-in 256 --d-hidden 512 --d-out 256"],
    "model": ["model llama-3.2-1b --phase decode --kv-len 512"],
    "occupancy": ["occupancy --threads 256 --registers 64 --sram 16KiB", "occupancy --threads 256 --stride 2"],
    "recompute": ["recompute --bytes 64MiB --flops 10GFLOP"],
    "remat": ["remat --layers 4 --width 1000 --batch 512 --strategy sqrt-n", "remat gpt2 --n 512 --strategy sqrt-n"],
    "report": [f"report --attention '{SHAPE}'"],
    "roofline": [f"roofline --attention '{SHAPE}' --matmul 512x512x512"],
    "serve": ["serve llama-3.2-1b --concurrency 4"],
    "softmax": ["softmax --rows 512 --cols 4096"],
    "trace": [f"trace {Path(__file__).with_name('data') / 'traces' / 'bert-small-h100.json.gz'}"],
    "sweep": ["sweep --n 512:2048:x2 --d 64", "sweep matmul --m 64 --n 64 --k 64", "sweep model --model gpt2 --phase decode --kv-len 512"],
}  # fmt: skip
MEASURED = {"calibrate", "validate"}
"""Commands whose ``--hardware`` is that of records."""

NO_SRAM = r"has no SRAM size per block|left out: \S+ has no SRAM size per block"
REFUSED_MODELS = {
    r"what their backward pass keeps is not known here": lambda words, spec: words[0] in ("memory", "remat", "model") and untrained(spec),
    r"needs .* per GPU, and vLLM has": lambda words, spec: words[0] == "serve",
    r"takes 1,024 tokens in all": lambda words, spec: words[0] == "serve" and spec.max_positions == 1024,
}
"""Refusals of commands on models, and whether they are right."""
REFUSED_DEVICES = {
    NO_SRAM: lambda words, device: device.level("sram") is None or device.level("sram").per_block is None,
    r"has no multiprocessor limits": lambda words, device: words[0] == "occupancy" and device.limits.max_threads_per_multiprocessor is None,
    r"the bytes of its smallest transfer are not known": lambda words, device: "--stride" in words and device.vendor != "NVIDIA",
    r"runs on .* devices, not on": lambda words, device: words[0] == "serve" and device.vendor == "Apple",
    r"has no DRAM capacity": lambda words, device: device.dram.capacity is None,
}
FIX = re.compile(r"give (--[a-z-]+ \S+)")
SPARSE = 27
"""In the normal run one in so many models or devices, others for each command, but for the quick ``WHOLE`` ones: the rest is slow."""
WHOLE = {"memory", "fuse", "matmul", "mlp", "occupancy", "recompute", "softmax"}


def test_no_command_is_forgotten():
    """A new command that takes a model or a device is listed above."""
    options = {name: {param.name for param in command(name).params} for name in all_commands()}
    taking = {
        name for name in all_commands() if any(param.metavar == "MODEL" for param in command(name).params) or "model" in options[name]
    }
    assert set(OF_MODELS) == {*taking, "sweep"}
    assert set(OF_DEVICES) == {name for name in all_commands() if "hardware" in options[name]} - MEASURED | {"sweep"}


def check(run, lines, thing, refusals, more=()) -> list[str]:
    """Faults of ``lines`` on ``thing``."""
    found = []
    for line in lines:
        words = shlex.split(line)
        outcome = run("", *words, *more)
        if outcome.code in (1, 2) and "Traceback" not in outcome.err:
            right = [holds(words, thing) for text, holds in refusals.items() if re.search(text, outcome.err)]
            fix = FIX.search(outcome.err)
            if right and all(right) and (fix is None or run("", *words, *more, *fix[1].split()).code == 0):
                continue
        if outcome.code:
            found.append(f"{line}: exit {outcome.code}: {outcome.err}")
    return found


def lines_of(commands, name: str, names: list[str], every: bool):
    """Lines of the command ``name``, and which of ``names`` they are for."""
    if every:
        return commands[name], names
    return commands[name], names if name in WHOLE else names[list(commands).index(name) % SPARSE :: SPARSE]


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", OF_MODELS)
def test_every_command_on_every_model(run, name, every):
    lines, models = lines_of(OF_MODELS, name, model_names(), every)
    asked = {model: [line.format(model) for line in lines] for model in models}
    faults = [fault for model, listed in asked.items() for fault in check(run, listed, find_model(model), REFUSED_MODELS)]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", OF_DEVICES)
def test_every_command_on_every_device(run, name, every):
    lines, devices = lines_of(OF_DEVICES, name, device_ids(), every)
    asked = [(find_device(device), ("--hardware", device)) for device in devices]
    faults = [fault for device, more in asked for fault in check(run, lines, device, REFUSED_DEVICES, more)]
    assert not faults, "\n".join(faults)
