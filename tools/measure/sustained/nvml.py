"""What the driver's management library says of the first GPU, through ctypes: readings alone."""

from __future__ import annotations

import ctypes
import threading
import time
from dataclasses import dataclass
from functools import cache
from typing import Any

SM_CLOCK = 1
"""NVML_CLOCK_SM"""
SAMPLED_EVERY_S = 0.02


@cache
def _library() -> tuple[Any, ctypes.c_void_p]:
    nvml, handle = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p()
    if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle)):
        raise OSError("NVML finds no GPU")
    return nvml, handle


def _get(name: str, kind: Any = ctypes.c_uint, *before: Any) -> int:
    nvml, handle = _library()
    value = kind()
    if getattr(nvml, name)(handle, *before, ctypes.byref(value)):
        raise OSError(f"{name} fails")
    return int(value.value)


def joules() -> float:
    """Total energy since the driver was loaded."""
    return _get("nvmlDeviceGetTotalEnergyConsumption", ctypes.c_ulonglong) / 1e3


def sm_mhz() -> int:
    """The SM clock now."""
    return _get("nvmlDeviceGetClockInfo", ctypes.c_uint, ctypes.c_uint(SM_CLOCK))


def limit_w() -> float:
    """The power limit that is enforced."""
    return _get("nvmlDeviceGetEnforcedPowerLimit") / 1e3


@dataclass(frozen=True, slots=True)
class Sample:
    """One reading: when, SM clock, bits of reasons for a lower clock."""

    at_s: float
    mhz: int
    reasons: int


class Sampler(threading.Thread):
    """Reads clock and reasons until ``stop``."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.samples: list[Sample] = []
        self.on = True

    def run(self) -> None:
        """Sample; called by ``start``."""
        while self.on:
            reasons = _get("nvmlDeviceGetCurrentClocksThrottleReasons", ctypes.c_ulonglong)
            self.samples.append(Sample(time.perf_counter(), sm_mhz(), reasons))
            time.sleep(SAMPLED_EVERY_S)

    def stop(self) -> None:
        """End after the next sample."""
        self.on = False
        self.join()
