"""Which kernels a training step runs, how often and for how long: one step under torch's profiler."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from perfmodel.validation.cases import KernelCase
from perfmodel.validation.libraries import Torch
from tools.measure.training.gpt2_step import Gpt2Steps
from tools.measure.training.meter import silent

NAME_LENGTH = 160


def kernels(steps: Gpt2Steps, case: KernelCase, torch: Torch) -> list[list[Any]]:
    """[name, launches, microseconds in all] of each kernel of one step, the longest first."""
    module = import_module("torch.profiler")
    job, ids = steps.prepared(case, torch)
    job.step(ids, silent)
    torch.cuda.synchronize()
    with module.profile(activities=[module.ProfilerActivity.CUDA]) as profile:
        job.step(ids, silent)
        torch.cuda.synchronize()
    found = [[each.key[:NAME_LENGTH], each.count, round(each.self_device_time_total, 2)] for each in profile.key_averages()]
    return sorted((row for row in found if row[2] > 0), key=lambda row: -row[2])
