"""What the kernels are made of, as instructions on a device and as plain Python in the simulator, and how they are launched."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numba
import numba.cuda
import numpy as np

cuda: Any = numba.cuda
float32: Any = numba.float32
_settings: Any = numba.config
SIMULATED = bool(_settings.ENABLE_CUDASIM)
"""True under NUMBA_ENABLE_CUDASIM=1, which must be set before numba is first imported."""
_provider: Any = import_module("perfmodel.validation.kernels." + ("_simulated" if SIMULATED else "_instructions"))
copies_done, copy4, keep = _provider.copies_done, _provider.copy4, _provider.keep
load4, load4_global, load_global, store4 = _provider.load4, _provider.load4_global, _provider.load_global, _provider.store4
lane_max, lane_sum, sync_warp = _provider.lane_max, _provider.lane_sum, _provider.sync_warp

U: Any = np.uint64
"""Every index and loop bound is unsigned: numba wraps signed ones around at each load."""
F32: Any = np.float32
ZERO, FOUR = F32(0), U(4)
LOWEST = F32(-1e30)
"""Running maximum before the first score: finite, so that a row that sees no key yet gets exp2 of a difference, not nan."""
HIDDEN = F32(-3e38)
"""Score of a masked key: times any scale it stays far below LOWEST; finite, as fast math knows no infinities."""
UNASKED_SHARED_BYTES = 48 * 1024
"""More shared memory of a block must be asked for of the driver, which numba has no option for."""
_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8  # CUfunction_attribute of the CUDA driver API


def device_function(function: Any) -> Any:
    """``function`` compiled for the device; as it is in the simulator, where it must not use ``cuda``."""
    return function if SIMULATED else cuda.jit(device=True)(function)


def kernel(function: Any, max_registers: int | None = None) -> Any:
    """``function`` as a kernel: fused multiply-adds, fast exponentials, subnormals flushed to zero."""
    return cuda.jit(function) if SIMULATED else cuda.jit(function, fastmath=True, max_registers=max_registers)


def _allow_shared(function: Any, shared_bytes: int) -> None:
    """Raise the limit of a loaded kernel: a CUkernel under the numba-cuda package, a CUfunction under numba's own target."""
    from numba.cuda.cudadrv import driver as module

    driver: Any = module

    if hasattr(function, "kernel"):
        attribute = driver.binding.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        driver.driver.cuKernelSetAttribute(attribute, shared_bytes, function.handle, function.device.id)
        return
    handle = ctypes.c_void_p(int(getattr(function.handle, "value", function.handle)))
    code = ctypes.CDLL("libcuda.so.1").cuFuncSetAttribute(handle, _MAX_DYNAMIC_SHARED_SIZE_BYTES, shared_bytes)
    if code:
        raise RuntimeError(f"{shared_bytes} B of shared memory per block: cuFuncSetAttribute returned {code}; use a smaller tile")


def launcher(kernel: Any, grid: tuple[int, ...], threads: int, shared_bytes: int, *args: Any, stream: Any = 0) -> Callable[[], None]:
    """Compile ``kernel`` for ``args`` and return what launches it, so that a timed launch compiles and checks nothing."""
    if not SIMULATED:
        kernel = kernel.specialize(*args)
        if shared_bytes > UNASKED_SHARED_BYTES:
            [overload] = kernel.overloads.values()
            _allow_shared(overload._codelibrary.get_cufunc(), shared_bytes)
    configured = kernel[grid, threads, stream, shared_bytes]
    return lambda: configured(*args)


def in_turn(steps: tuple[Callable[[], None], ...]) -> Callable[[], None]:
    """What launches ``steps`` one after the other."""

    def launch() -> None:
        for step in steps:
            step()

    return launch
