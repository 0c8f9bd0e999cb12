"""Write into each shipped calibration the versions that its records tell: ``python -m tools.refresh.versions``. A test checks them."""

from __future__ import annotations

from collections import defaultdict

from perfmodel.catalog import data_folder, find_device
from perfmodel.validation.calibrate import points
from perfmodel.validation.calibration_run import versions_of
from perfmodel.validation.fit_points import KernelFamily
from perfmodel.validation.records import Record, read_records, shipped_records

PROFILES = data_folder("hardware_specs")


def versions() -> dict[tuple[str, KernelFamily], str]:
    """By device, and workload, implementation, pass and model: what the records behind a calibration were made with."""
    records = [record for path in shipped_records() for _, record in read_records(path)]
    devices = {name: find_device(name) for name in {record.hardware for record in records}}
    found: dict[tuple[str, KernelFamily], list[Record]] = defaultdict(list)
    for key, own in points(records, devices).items():
        for point in own:
            found[point.device.id, key.family].append(point.record)
    return {key: versions_of(own) for key, own in found.items()}


if __name__ == "__main__":
    for (device, family), found in versions().items():
        path = PROFILES / f"{device}.yaml"
        for block in find_device(device).calibration:
            if (block.workload, block.implementation, block.direction, block.model) == family and block.versions != found:
                head = f'implementation: "{family[1]}", workload: "{family[0]}", direction: "{family[2]}", model: "{family[3]}"'
                before, after = path.read_text().split(head, 1)
                path.write_text(before + head + after.replace(f'versions: "{block.versions}"', f'versions: "{found}"', 1))
