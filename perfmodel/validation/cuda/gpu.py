"""The GPU that numba finds, or the reason why it finds none; and the environment of a measurement on it, which records keep."""

from __future__ import annotations

import os
import re
import subprocess
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from perfmodel import __version__
from perfmodel.catalog import device_ids, find_device
from perfmodel.core.errors import PerfmodelError, UnavailableError
from perfmodel.core.frozen import dataclass

INSTALL = "pip install 'numba-cuda[cu13]' 'numpy<2.5'  (cu12 for a driver of CUDA 12)"


@dataclass(frozen=True, slots=True)
class Gpu:
    """One device as the driver describes it; ``free_bytes`` at the time of asking."""

    name: str
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
    """Reason why the driver offers no device, or None."""
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
    """Context without numba's warning about grids that leave most of a device idle, as some measurements intend that."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*Grid size")
        yield


def _toolkit_error(error: Exception) -> UnavailableError:
    """Message on ``error`` of the first kernel: a problem of the compiler or of the driver."""
    text = in_words(error)
    names_toolkit = any(word in text.lower() for word in ("nvvm", "libdevice", "nvrtc", "nvjitlink"))
    if names_toolkit or isinstance(error, (ImportError, OSError)):
        return UnavailableError(f"a CUDA device, but no CUDA toolkit that numba can use: {text}", INSTALL)
    fix = f"check nvidia-smi; the versions that fit: {INSTALL}"
    return UnavailableError(f"a CUDA device, but the first kernel fails on it: {text}", fix)


def current_gpu() -> Gpu:
    """The device of the current context."""
    cuda = load_numba_cuda()
    device, context = cuda.get_current_device(), cuda.current_context()
    name = device.name.decode() if isinstance(device.name, bytes) else str(device.name)
    memory = context.get_memory_info()
    return Gpu(
        name=name,
        multiprocessors=int(device.MULTIPROCESSOR_COUNT),
        l2_bytes=int(device.L2_CACHE_SIZE),
        memory_bytes=int(memory.total),
        free_bytes=int(memory.free),
    )


def _first_line(error: object) -> str:
    """The first line of the error's text that is not empty, else the name of its type."""
    for line in str(error).splitlines():
        if line.strip():
            return line.strip()
    return type(error).__name__


def in_words(error: Exception) -> str:
    """One line on ``error``: its message, that host or device is out of memory, or its type and first line."""
    if isinstance(error, PerfmodelError):
        return error.message
    if isinstance(error, MemoryError):
        return "out of memory on the host"
    kind, line = type(error).__name__, _first_line(error)
    if "OUT_OF_MEMORY" in line or "out of memory" in line.lower():
        return f"out of memory on the device ({line})"
    return kind if line == kind else f"{kind}: {line}"


# What a measurement was made with

PACKAGES = ("numba", "numba-cuda", "numpy")
"""Packages whose versions a record keeps."""
SMI_FIELDS = {
    "driver_version": "driver",
    "clocks.sm": "sm_clock",
    "clocks.mem": "memory_clock",
    "clocks.max.sm": "max_sm_clock",
    "clocks.max.mem": "max_memory_clock",
    "power.limit": "power_limit",
}
"""Fields of nvidia-smi, printed with units, and their names in a record."""
SMI_TIMEOUT_S = 10


@dataclass(frozen=True, slots=True)
class Environment:
    """Environment of a measurement. ``hardware``: id of the device's profile; ``facts``: machine, software and clocks, for records."""

    hardware: str
    facts: dict[str, Any]


def this_environment(gpu: Gpu, hardware: str | None = None) -> Environment:
    """The environment of ``gpu``; ``hardware``: its profile, if the device's name does not identify it."""
    profile = find_device(hardware).id if hardware else profile_of(gpu.name, gpu.memory_bytes)
    return Environment(profile, {"device": gpu.name, "perfmodel": __version__, **package_versions(), **nvidia_smi()})


def package_versions(packages: Iterable[str] = PACKAGES) -> dict[str, str]:
    """Versions of those ``packages`` that are installed."""
    versions = {}
    for name in packages:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions


def nvidia_smi(ask: Callable[[list[str]], str] | None = None) -> dict[str, str]:
    """Driver, clocks and power limit from nvidia-smi; empty if it reports none."""
    command = ["nvidia-smi", f"--query-gpu={','.join(SMI_FIELDS)}", "--format=csv,noheader"]
    try:
        lines = (ask or _run)(command).splitlines()
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return {}
    values = [value.strip() for value in lines[0].split(",")] if lines else []
    if len(values) != len(SMI_FIELDS):
        return {}
    return {name: value for name, value in zip(SMI_FIELDS.values(), values, strict=True) if value and not value.startswith("[")}


def _run(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=SMI_TIMEOUT_S, check=True).stdout


# The profile of a device, by its name

_FILLERS = frozenset({"nvidia", "geforce", "tesla", "gpu", "graphics", "grace", "hopper", "hbm2", "hbm3", "hbm3e"})
_FILLERS |= {"amd", "instinct", "vf"} | {"generation", "workstation", "edition"}
"""Words that do not distinguish parts. RTX cards keep the words Server and Max-Q, which distinguish editions."""
_FORMS = ("sxm", "pcie", "nvl")
"""Form factors. A name without one is an SXM part, as NVIDIA names PCIe and NVL cards, or a part that comes in a single form."""
SIZE_TOLERANCE = 0.15
"""Relative tolerance of sizes: names round gigabytes, binary or not, and drivers keep some memory for themselves."""


def profile_of(name: str, memory_bytes: int | None = None) -> str:
    """Id of the profile of a device that its driver calls ``name``; UnavailableError asks for --hardware if none or several match.

    The words of the model and its form factor must be the same. ``memory_bytes``, or else the name, distinguishes parts of several sizes.

    >>> profile_of("NVIDIA H200"), profile_of("NVIDIA A100-PCIE-40GB"), profile_of("NVIDIA GeForce RTX 4090")
    ('nvidia-h200-sxm', 'nvidia-a100-pcie-40gb', 'nvidia-rtx-4090')
    """
    words = _words(name)
    candidates = [profile for profile in device_ids() if profile.startswith(("nvidia-", "amd-"))]
    fitting = [profile for profile in candidates if _fits(_words(profile), words, memory_bytes)]
    if len(fitting) == 1:
        return fitting[0]
    problem = f"could be any of {', '.join(fitting)}" if fitting else "has no profile that is known by its name"
    raise UnavailableError(f"the device {name!r} {problem}", "name its profile: --hardware ID, see perfmodel hardware list")


def _words(name: str) -> frozenset[str]:
    """Words of a device's name or id, sizes as one word (80gb), without fillers; sxm4 is sxm.

    >>> sorted(_words("NVIDIA A100-SXM4-80GB")), sorted(_words("nvidia-l40s"))
    (['80gb', 'a100', 'sxm'], ['l40s'])
    """
    text = re.sub(r"(\d+)\s*gb\b", r"\1gb", name.lower())
    words = [re.sub(r"^sxm\d$", "sxm", word) for word in re.split(r"[^a-z0-9]+", text) if word]
    return frozenset(words) - _FILLERS


def _fits(profile: frozenset[str], device: frozenset[str], memory_bytes: int | None) -> bool:
    """Whether the words of a ``profile`` match those that the driver reports of its ``device``."""
    if _form(profile) != _form(device) or _model(profile) != _model(device):
        return False
    profile_sizes, device_sizes = _sizes(profile), _sizes(device)
    if profile_sizes and memory_bytes is not None:  # a name's size can be another memory's: GH200 480GB
        return any(abs(memory_bytes / (int(size.removesuffix("gb")) * 1e9) - 1) < SIZE_TOLERANCE for size in profile_sizes)
    return not profile_sizes or not device_sizes or profile_sizes == device_sizes


def _form(words: frozenset[str]) -> str:
    return next((form for form in _FORMS if form in words), "sxm")


def _model(words: frozenset[str]) -> frozenset[str]:
    return words - _sizes(words) - set(_FORMS)


def _sizes(words: frozenset[str]) -> frozenset[str]:
    return frozenset(word for word in words if re.fullmatch(r"\d+gb", word))
