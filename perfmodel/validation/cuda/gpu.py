"""The GPU that numba finds, or in words why it finds none."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from perfmodel.core.errors import UnavailableError

INSTALL = "pip install 'numba-cuda[cu13]' 'numpy<2.5'  (cu12 for a driver of CUDA 12)"


@dataclass(frozen=True, slots=True)
class Gpu:
    """What the driver says of one device; ``free_bytes`` at the time of asking."""

    name: str
    compute_capability: str
    multiprocessors: int
    l2_bytes: int
    memory_bytes: int
    free_bytes: int


def load_numba_cuda() -> Any:
    """The module numba.cuda; UnavailableError if it cannot be imported, or is the simulator."""
    try:
        from numba import config, cuda
    except (AttributeError, ImportError) as error:  # numba.cuda uses numpy.row_stack, which numpy 2.5 took away
        raise UnavailableError(f"numba.cuda does not load: {_first_line(error)}", f"install versions that fit: {INSTALL}") from None
    if getattr(config, "ENABLE_CUDASIM", False):
        raise UnavailableError("NUMBA_ENABLE_CUDASIM is set: times of the simulator are none of a GPU", "unset it and start again")
    return cuda


def open_gpu() -> Gpu:
    """The current device, after a kernel was compiled and run on it; UnavailableError says what is missing."""
    cuda = load_numba_cuda()
    problem = _driver_problem(cuda)
    if problem:
        fix = "run on a machine with an NVIDIA GPU and its driver, or compare records: perfmodel validate --records FILE"
        raise UnavailableError(f"no CUDA device: {problem}", fix)
    try:
        _try_kernel(cuda)
    except Exception as error:
        raise _toolkit_error(error) from error
    return current_gpu()


def _driver_problem(cuda: Any) -> str | None:
    """Why the driver offers no device, or None."""
    from numba.cuda.cudadrv import driver as module

    try:
        error = cuda.cuda_error()
        if error:
            return _first_line(error)
        if len(cuda.gpus) == 0:
            return "the driver lists none; CUDA_VISIBLE_DEVICES is " + os.environ.get("CUDA_VISIBLE_DEVICES", "not set")
    except (ImportError, module.CudaAPIError) as error:  # CudaSupportError is an ImportError
        return _first_line(error)
    return None


def _try_kernel(cuda: Any) -> None:
    """Compile and run the smallest kernel: NVVM, the linker and the driver have to agree."""

    def touch(array: Any) -> None:
        array[cuda.threadIdx.x] = 1.0

    with small_grids():
        cuda.jit(touch)[1, 32](cuda.device_array(32, "float32"))
        cuda.synchronize()


@contextmanager
def small_grids() -> Iterator[None]:
    """numba warns where a grid leaves most of a device idle; some measurements want just that."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*Grid size")
        yield


def _toolkit_error(error: Exception) -> UnavailableError:
    """``error`` of the first kernel in words: compiler, or driver."""
    text = f"{type(error).__name__}: {_first_line(error)}"
    missing = isinstance(error, (ImportError, OSError)) or any(word in text.lower() for word in ("nvvm", "libdevice", "nvrtc", "nvjitlink"))
    if missing:
        return UnavailableError(f"a CUDA device, but no CUDA toolkit that numba can use: {text}", INSTALL)
    return UnavailableError(
        f"a CUDA device, but the first kernel fails on it: {text}", f"check nvidia-smi; the versions that fit: {INSTALL}"
    )


def current_gpu() -> Gpu:
    """The device of the current context."""
    from numba import cuda as module

    cuda: Any = module
    device, context = cuda.get_current_device(), cuda.current_context()
    name = device.name.decode() if isinstance(device.name, bytes) else str(device.name)
    memory = context.get_memory_info()
    return Gpu(
        name=name,
        compute_capability=".".join(map(str, device.compute_capability)),
        multiprocessors=int(device.MULTIPROCESSOR_COUNT),
        l2_bytes=int(device.L2_CACHE_SIZE),
        memory_bytes=int(memory.total),
        free_bytes=int(memory.free),
    )


def _first_line(error: object) -> str:
    """The first line that says something."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
