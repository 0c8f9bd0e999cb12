"""Launching: more than 48 KiB of shared memory must be asked for of the driver, which numba has no option for."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from perfmodel.validation.kernels._steps import SIMULATED

UNASKED_SHARED_BYTES = 48 * 1024
_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8  # CUfunction_attribute of the CUDA driver API


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
