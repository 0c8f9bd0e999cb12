"""What the kernels are made of, as instructions on a device and as plain Python in the simulator."""

from __future__ import annotations

from typing import Any

import numba
import numba.cuda
import numpy as np

cuda: Any = numba.cuda
float32: Any = numba.float32
_settings: Any = numba.config
SIMULATED = bool(_settings.ENABLE_CUDASIM)
"""True under NUMBA_ENABLE_CUDASIM=1, which must be set before numba is first imported."""

if SIMULATED:
    from perfmodel.validation.kernels import _simulated as _simulated_steps

    _provider: Any = _simulated_steps
else:
    from perfmodel.validation.kernels import _instructions

    _provider = _instructions

copies_done: Any = _provider.copies_done
copy4: Any = _provider.copy4
keep: Any = _provider.keep
lane_max: Any = _provider.lane_max
lane_sum: Any = _provider.lane_sum
load4: Any = _provider.load4
load4_global: Any = _provider.load4_global
load_global: Any = _provider.load_global
store4: Any = _provider.store4
sync_warp: Any = _provider.sync_warp

__all__ = [
    "SIMULATED",
    "ZERO",
    "U",
    "copies_done",
    "copy4",
    "cuda",
    "device_function",
    "float32",
    "keep",
    "kernel",
    "lane_max",
    "lane_sum",
    "load4",
    "load4_global",
    "load_global",
    "store4",
    "sync_warp",
]

U: Any = np.uint64
"""Every index and loop bound is unsigned: numba wraps signed ones around at each load."""

ZERO: Any = np.float32(0)


def device_function(function: Any) -> Any:
    """``function`` compiled for the device; as it is in the simulator, where it must not use ``cuda``."""
    return function if SIMULATED else cuda.jit(device=True)(function)


def kernel(function: Any, max_registers: int | None = None) -> Any:
    """``function`` as a kernel: fused multiply-adds, fast exponentials, subnormals flushed to zero."""
    return cuda.jit(function) if SIMULATED else cuda.jit(function, fastmath=True, max_registers=max_registers)
