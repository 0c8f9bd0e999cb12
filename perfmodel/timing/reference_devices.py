"""Reference devices, whose calibrations serve another device: the nearest one, and the nearest ones for the kernels of a sequence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache

from perfmodel.core.architectures import are_alike, distance, run_the_same_code, same_board, transferable
from perfmodel.core.hardware import Calibration, Device
from perfmodel.timing.base import CONVOLUTION, PASS, SAME_TIME, find_model
from perfmodel.timing.intervals import ENOUGH_TO_TRANSFER, transferred_part
from perfmodel.timing.transfer import held_share, multiplies, product_of

FallbackDevices = Callable[[], Iterable[Device]]
ENOUGH_ALIKE = 2  # known
"""Points per parameter from which a fit serves a device that runs the same compiled kernels."""


def listed_once(devices: FallbackDevices) -> FallbackDevices:
    """``devices``, called once and only when needed, as a catalog looks for its files at every call."""
    return cache(lambda: tuple(devices()))


def nearest(device: Device, others: list[Device], products: bool = False) -> Device | None:
    """The device of ``others`` on which kernels, or ``products`` alone, run most like on ``device``, by ``core.architectures``.

    None if no other device is of the same kind.
    """
    candidates = (other for other in others if transferable(device, other))
    return min(candidates, key=lambda other: distance(device, other, products), default=None)


def nearest_reference(device: Device, candidates: Sequence[tuple[Device, Calibration]], others: Sequence[Device] = ()) -> Device | None:
    """The ``nearest`` device whose calibration may serve ``device``, preferably one fitted to enough points; None if there is none.

    - Collectives over PCIe serve only GPUs without another link.
    - A board short of watts multiplies at a lower clock. Its attention, and its products if ``device`` has none timed, serve boards that
      are at least as short, and others only if no other device has them. ``others``: further boards that show which ones are short.
    - If no device of the same kind serves, a sequence whose kernels are calibrated one by one, and a pass over memory, also take a device
      that ``are_alike`` allows.
    """
    candidates = [(other, block) for other, block in candidates if block.workload != "collective" or other.over_pcie == device.over_pcie]
    devices = [device, *(other for other, _ in candidates)]

    def has_enough_watts(other: Device, block: Calibration) -> bool:
        """Whether ``other`` is not shorter of watts than ``device``, or ``block`` does not depend on that."""
        if multiplies(block):
            return held_share(other, devices) >= held_share(device, devices)
        if block.workload != "matmul" or "fp32" in block.dtypes or product_of(device, block) is not None:
            return True
        return held_share(other, [*devices, *others]) >= held_share(device, [*devices, *others])

    candidates = [(other, block) for other, block in candidates if has_enough_watts(other, block)] or candidates
    certain = [(other, block) for other, block in candidates if block.points >= _enough_points(device, other, block)]
    products = all(block.workload == "matmul" for _, block in candidates)
    for listed in (certain, candidates):
        closest = nearest(device, [other for other, _ in listed], products)
        if closest is not None:
            return closest
    anywhere = [
        other
        for other, block in certain
        if (find_model(block.model).part_workloads or block.workload in (PASS, CONVOLUTION)) and are_alike(device, other)
    ]
    return min(anywhere, key=lambda other: distance(device, other), default=None)


def _enough_points(device: Device, other: Device, block: Calibration) -> int:
    """Points from which ``block`` of ``other`` serves ``device``: fewer if both run the same kernels, any number on the same board."""
    if same_board(device, other):
        return 0
    if run_the_same_code(device, other):
        return min(ENOUGH_ALIKE * len(block.parameters), ENOUGH_TO_TRANSFER)
    return ENOUGH_TO_TRANSFER


def reference_device(device: Device, fallbacks: FallbackDevices, serves: Callable[[Device], object]) -> Device | None:
    """``device`` itself if it ``serves``, else the nearest other device that does; None if there is none."""
    return device if serves(device) else nearest(device, [other for other in fallbacks() if serves(other)])


def model_calibration(model: str, device: Device, fallbacks: FallbackDevices) -> tuple[Calibration | None, bool]:
    """(the calibration of ``model`` on ``device``, else on the nearest device that has one; whether it is the device's own)."""

    def blocks_of(candidate: Device) -> list[Calibration]:
        return [block for block in candidate.calibration if block.model == model]

    reference = reference_device(device, fallbacks, blocks_of)
    return (None if reference is None else blocks_of(reference)[0]), reference is device


def with_parts(device: Device, model: str, dtype: str, fallbacks: FallbackDevices, board: Device | None = None) -> Device:
    """``device`` with calibrations of other devices, the nearest first, for those parts of ``model`` that it has none for in ``dtype``.

    ``board``: the unchanged profile, if ``device`` has scaled rates. If another profile of that board is calibrated for a part, its
    calibrations serve alone.
    """
    sequence = find_model(model)
    if not sequence.part_workloads:
        return device
    formats = {dtype, SAME_TIME.get(dtype, dtype)}

    def serves(block: Calibration) -> bool:
        """Whether ``block`` times a part: a product only in the format, a pass over memory also in 16 bits.

        cuBLAS, published from graphs, starts sooner than a call: it serves published sequences alone.
        """
        if block.implementation == "cublas" and not sequence.from_tables:
            return False
        in_16_bits = block.workload != "matmul" and not SAME_TIME.keys().isdisjoint(block.dtypes)
        return in_16_bits or not formats.isdisjoint(block.dtypes)

    missing = set(sequence.part_workloads) - {block.workload for block in device.calibration if serves(block)}
    if not missing:
        return device
    # passes over memory take the time of their bytes on GPUs of every maker; products serve devices of the same kind
    gpus = [gpu for gpu in fallbacks() if are_alike(device, gpu)]
    gpus.sort(key=lambda gpu: (not transferable(device, gpu), distance(device, gpu)))
    candidates = [(gpu, block) for gpu in gpus for block in gpu.calibration if block.workload in missing and serves(block)]
    candidates = [(gpu, block) for gpu, block in candidates if block.workload != "matmul" or transferable(device, gpu)]
    on_same_board = {block.workload for gpu, block in candidates if same_board(board or device, gpu)}
    added = [
        transferred_part(block, device, gpu)
        for gpu, block in candidates
        if block.workload not in on_same_board or same_board(board or device, gpu)
    ]
    return replace(device, calibration=[*device.calibration, *added])
