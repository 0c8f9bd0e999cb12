"""Who lends a calibration: the nearest device that has one, and the nearest ones for the kernels of a sequence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache, partial

from perfmodel.core.architectures import are_alike, are_kin, distance, run_the_same_code, same_board
from perfmodel.core.hardware import Calibration, Device
from perfmodel.timing.base import SAME_TIME, find_model
from perfmodel.timing.intervals import ENOUGH_TO_LEND
from perfmodel.timing.transfer import held_share, multiplies

FallbackDevices = Callable[[], Iterable[Device]]
ENOUGH_ALIKE = 2  # known
"""Points per parameter from which a fit is lent to a device that runs the same compiled kernels: their residuals tell something."""


def listed_once(devices: FallbackDevices) -> FallbackDevices:
    """``devices``, asked for when first needed and only then: a catalog looks for its files anew each time."""
    return cache(lambda: tuple(devices()))


def nearest(device: Device, others: list[Device]) -> Device | None:
    """The one of ``others`` on which kernels run most alike, by ``core.architectures``; None where none is kin."""
    return min((other for other in others if are_kin(device, other)), key=lambda other: distance(device, other), default=None)


def nearest_lender(device: Device, lending: Sequence[tuple[Device, Calibration]]) -> Device | None:
    """``nearest`` of the devices that lend a calibration: one that was fitted to enough points, if there is such a kin.

    Collectives over PCIe are lent to GPUs that have no other link, and to those alone. Attention of a board short of watts is lent to
    boards as short or shorter of them, and where no other lends it.

    Of a sequence whose kernels are calibrated one by one, without a kin another of the same machines.
    """
    lending = [(one, block) for one, block in lending if block.workload != "collective" or one.over_pcie == device.over_pcie]
    devices = [device, *(one for one, _ in lending)]
    own = held_share(device, devices)
    fed = [(one, block) for one, block in lending if not multiplies(block) or held_share(one, devices) >= own]
    sure = [(one, block) for one, block in fed or lending if block.points >= _enough(device, one, block)]
    kin = nearest(device, [one for one, _ in sure]) or nearest(device, [one for one, _ in fed or lending])
    alike = [one for one, block in sure if find_model(block.model).part_workloads and are_alike(device, one)]
    return kin or min(alike, key=lambda one: distance(device, one), default=None)


def _enough(device: Device, other: Device, block: Calibration) -> int:
    """Points from which ``block`` of ``other`` is lent to ``device``: fewer where both run the same compiled kernels, any on one board."""
    if same_board(device, other):
        return 0
    return min(ENOUGH_ALIKE * len(block.parameters), ENOUGH_TO_LEND) if run_the_same_code(device, other) else ENOUGH_TO_LEND


def lender(device: Device, fallbacks: FallbackDevices, lends: Callable[[Device], object]) -> Device | None:
    """``device`` itself if it ``lends`` what is wanted, else the nearest of the others that does; None without any."""
    return device if lends(device) else nearest(device, [one for one in fallbacks() if lends(one)])


def model_calibration(model: str, device: Device, fallbacks: FallbackDevices) -> tuple[Calibration | None, bool]:
    """The calibration of ``model`` of ``device``, or else of the nearest architecture; and whether it is the device's own."""

    def blocks(one: Device) -> list[Calibration]:
        return [block for block in one.calibration if block.model == model]

    found = lender(device, fallbacks, blocks)
    return (None if found is None else blocks(found)[0]), found is device


def with_parts(device: Device, model: str, dtype: str, fallbacks: FallbackDevices, board: Device | None = None) -> Device:
    """``device`` with the calibrations in ``dtype`` of the nearest others for parts of ``model`` that it has none of in that format.

    A published product (cuBLAS, in a graph) stands for PyTorch's in published sequences alone: it starts sooner than a call.

    ``board``: the device as its profile has it, where ``device`` has rates that were timed; another one of it lends alone.
    """
    sequence = find_model(model)
    workloads = sequence.part_workloads
    if not workloads:
        return device
    formats = {dtype, SAME_TIME.get(dtype, dtype)}

    def serves(block: Calibration) -> bool:
        """A product in the format alone; passes over memory also where they were timed in 16 bits."""
        if block.implementation == "cublas" and not sequence.from_tables:
            return False
        return not formats.isdisjoint(block.dtypes) or (block.workload != "matmul" and not SAME_TIME.keys().isdisjoint(block.dtypes))

    missing = set(workloads) - {block.workload for block in device.calibration if serves(block)}
    if not missing:
        return device
    from perfmodel.timing.intervals import lent_part

    # passes over memory take the time of their bytes on GPUs of every maker
    gpus = sorted(filter(partial(are_alike, device), fallbacks()), key=lambda one: (not are_kin(device, one), distance(device, one)))
    listed = [(one, block) for one in gpus for block in one.calibration if block.workload != "matmul" or are_kin(device, one)]
    listed = [(one, block) for one, block in listed if block.workload in missing and serves(block)]
    again = [one for one in gpus if same_board(board or device, one)]
    served = {block.workload for one, block in listed if one in again}
    lent = [lent_part(block, device, one) for one, block in listed if block.workload not in served or one in again]
    return replace(device, calibration=[*device.calibration, *lent])
