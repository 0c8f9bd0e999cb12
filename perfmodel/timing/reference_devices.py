"""Reference devices, whose calibrations serve another: the nearest one, and the nearest ones for the kernels of a sequence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache, partial

from perfmodel.core.architectures import are_alike, distance, run_the_same_code, same_board, transferable
from perfmodel.core.hardware import Calibration, Device
from perfmodel.timing.base import CONVOLUTION, PASS, SAME_TIME, find_model
from perfmodel.timing.intervals import ENOUGH_TO_TRANSFER
from perfmodel.timing.transfer import held_share, multiplies, product_of

FallbackDevices = Callable[[], Iterable[Device]]
ENOUGH_ALIKE = 2  # known
"""Points per parameter from which a fit serves a device that runs the same compiled kernels."""


def listed_once(devices: FallbackDevices) -> FallbackDevices:
    """``devices``, called once and only when needed, as a catalog looks for its files at every call."""
    return cache(lambda: tuple(devices()))


def nearest(device: Device, others: list[Device], products: bool = False) -> Device | None:
    """The device of ``others`` on which kernels, or ``products`` alone, run most alike, by ``core.architectures``; None if none is of the
    same kind.
    """
    alike = (other for other in others if transferable(device, other))
    return min(alike, key=lambda other: distance(device, other, products), default=None)


def nearest_reference(device: Device, candidates: Sequence[tuple[Device, Calibration]], others: Sequence[Device] = ()) -> Device | None:
    """The ``nearest`` device whose calibration may serve ``device``, preferably one fitted to enough points; None if there is none.

    Collectives over PCIe serve only GPUs without another link. Attention of a board short of watts, and its products where ``device`` has
    none timed, serve boards at least as short, and others only if no other device has them; ``others``: further boards that show who is
    short. A sequence whose kernels are calibrated one by one, and a pass over memory, also take a device that ``are_alike`` allows.
    """
    candidates = [(other, block) for other, block in candidates if block.workload != "collective" or other.over_pcie == device.over_pcie]
    devices = [device, *(other for other, _ in candidates)]

    def fed(other: Device, block: Calibration) -> bool:
        """Whether ``other`` was not shorter of watts than ``device`` when ``block`` was timed, or that does not show."""
        if multiplies(block):
            return held_share(other, devices) >= held_share(device, devices)
        timed = block.workload != "matmul" or "fp32" in block.dtypes or product_of(device, block) is not None
        return timed or held_share(other, [*devices, *others]) >= held_share(device, [*devices, *others])

    well_fed = [(other, block) for other, block in candidates if fed(other, block)] or candidates
    sure = [(other, block) for other, block in well_fed if block.points >= _enough(device, other, block)]
    products = all(block.workload == "matmul" for _, block in candidates)
    closest = next(filter(None, (nearest(device, [other for other, _ in listed], products) for listed in (sure, well_fed))), None)
    anywhere = [(other, block) for other, block in sure if find_model(block.model).part_workloads or block.workload in (PASS, CONVOLUTION)]
    alike = [other for other, _ in anywhere if are_alike(device, other)]
    return closest or min(alike, key=lambda other: distance(device, other), default=None)


def _enough(device: Device, other: Device, block: Calibration) -> int:
    """Points from which ``block`` of ``other`` serves ``device``: fewer if both run the same kernels, any number on the same board."""
    if same_board(device, other):
        return 0
    return min(ENOUGH_ALIKE * len(block.parameters), ENOUGH_TO_TRANSFER) if run_the_same_code(device, other) else ENOUGH_TO_TRANSFER


def reference_device(device: Device, fallbacks: FallbackDevices, serves: Callable[[Device], object]) -> Device | None:
    """``device`` itself if it ``serves``, else the nearest other device that does; None if there is none."""
    return device if serves(device) else nearest(device, [other for other in fallbacks() if serves(other)])


def model_calibration(model: str, device: Device, fallbacks: FallbackDevices) -> tuple[Calibration | None, bool]:
    """The calibration of ``model`` on ``device``, else on the nearest architecture; and whether it is the device's own."""

    def blocks(one: Device) -> list[Calibration]:
        return [block for block in one.calibration if block.model == model]

    source = reference_device(device, fallbacks, blocks)
    return (None if source is None else blocks(source)[0]), source is device


def with_parts(device: Device, model: str, dtype: str, fallbacks: FallbackDevices, board: Device | None = None) -> Device:
    """``device`` with calibrations of the nearest other devices for those parts of ``model`` that it has none for in ``dtype``.

    A published product (cuBLAS, in a graph) replaces PyTorch's only in published sequences, as it starts sooner than a call. ``board``: the
    unchanged profile, if ``device`` has timed rates; another device of that board then serves alone.
    """
    sequence = find_model(model)
    workloads = sequence.part_workloads
    if not workloads:
        return device
    formats = {dtype, SAME_TIME.get(dtype, dtype)}

    def serves(block: Calibration) -> bool:
        """Whether ``block`` serves: a product only in the format, passes over memory also in 16 bits."""
        if block.implementation == "cublas" and not sequence.from_tables:
            return False
        return not formats.isdisjoint(block.dtypes) or (block.workload != "matmul" and not SAME_TIME.keys().isdisjoint(block.dtypes))

    missing = set(workloads) - {block.workload for block in device.calibration if serves(block)}
    if not missing:
        return device
    from perfmodel.timing.intervals import transferred_part

    # passes over memory take the time of their bytes on GPUs of every maker
    gpus = sorted(filter(partial(are_alike, device), fallbacks()), key=lambda gpu: (not transferable(device, gpu), distance(device, gpu)))
    listed = [(other, block) for other in gpus for block in other.calibration if block.workload != "matmul" or transferable(device, other)]
    listed = [(other, block) for other, block in listed if block.workload in missing and serves(block)]
    again = [other for other in gpus if same_board(board or device, other)]
    served = {block.workload for other, block in listed if other in again}
    transferred = [transferred_part(block, device, other) for other, block in listed if block.workload not in served or other in again]
    return replace(device, calibration=[*device.calibration, *transferred])
