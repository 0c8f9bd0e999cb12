"""``perfmodel trace`` beside AMD's TraceLens on its own profiles: ``python -m tools.scores.tracelens CHECKOUT COMMAND``.

``CHECKOUT``: of AMD-AGI/TraceLens; ``COMMAND``: its TraceLens_generate_perf_report_pytorch. Prints the table of ``docs/programs.md``.
"""

from __future__ import annotations

import csv
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from perfmodel.catalog import calibrated_devices, find_device
from perfmodel.program.answer import ProgramAnswer
from perfmodel.program.price import OperatorGroup
from perfmodel.program.profile import read

PAIRED = {
    "a ViT": "Falconsai_nsfw_image_detection__1016002",
    "Qwen1.5 0.5B": "Qwen_Qwen1.5-0.5B-Chat__1016005",
    "TimeSformer": "facebook_timesformer-base-finetuned-k400__1016002",
    "bert-small": "gaunernst_bert-small-uncased__1016001",
    "OWLv2 large": "google_owlv2-large-patch14-ensemble__1016001",
}
PROFILES = [
    *(
        (name, f"{folder}/{file}", device)
        for name, file in PAIRED.items()
        for folder, device in (("h100", "h100-sxm"), ("mi300", "mi300x"))
    ),
    ("Qwen3 8B under SGLang", "inference/sglang_prefilldecode/sglang_Qwen3-8B_prefilldecode", "mi300x"),
    ("compiled by Inductor", "torch_compile_triton/trace", "mi300x"),
    ("gpt-oss under vLLM", "b200/eager_trace", "b200"),
]
"""Name, file in ``tests/traces`` and device."""
PLATFORMS = {"mi300x": "MI300X"}
"""Devices that TraceLens has rates of."""
PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm")


def tracelens(path: Path, device: str, command: str) -> list[dict[str, str]]:
    """Operators by shape as TraceLens lists them."""
    platform = ["--gpu_arch_platform", PLATFORMS[device]] if device in PLATFORMS else []
    with tempfile.TemporaryDirectory() as folder:
        options = ["--profile_json_path", str(path), "--output_csvs_dir", folder, "--output_xlsx_path", f"{folder}/all.xlsx", *platform]
        subprocess.run([command, *options], check=True, capture_output=True)
        csv.field_size_limit(1 << 30)
        with Path(folder, "unified_perf_summary.csv").open() as file:
            return list(csv.DictReader(file))


def number(row: dict[str, str], column: str) -> float:
    """The number in ``column``; 0 if there is none."""
    text = row.get(column) or "nan"
    return 0.0 if text == "nan" else float(text)


def main() -> None:
    """Print a row per profile: shares of the kernels' time, and FLOP and bytes of products beside TraceLens' own."""
    checkout, command = Path(sys.argv[1]), sys.argv[2]
    for name, file, device in PROFILES:
        path = checkout / "tests" / "traces" / f"{file}.json.gz"
        answer = ProgramAnswer(read(path), find_device(device), calibrated_devices)
        rows = tracelens(path, device, command)
        steps, measured_s = answer.profile.steps, answer.measured_s * answer.profile.steps
        known = [row for row in rows if row["has_perf_model"] == "True" and (number(row, "GFLOPS") or number(row, "Data Moved (MB)"))]
        known_s = 1e-6 * sum(number(row, "Kernel Time (µs)_sum") for row in known)
        roof_s = 1e-6 * sum(number(row, "Roofline Time (µs)_first") * number(row, "operation_count") for row in known)
        theirs = [row for row in known if row["op category"] == "GEMM" or row["name"] in PRODUCTS]
        ours = [group for group in answer.groups if group.call.name in PRODUCTS and group.ops]
        flops = _ratio(ours, "flops", steps, theirs, "GFLOPS", 1e9)
        moved = _ratio(ours, "bytes", steps, theirs, "Data Moved (MB)", 2**20)
        roof = f"{roof_s / known_s:.0%}" if roof_s else "-"
        least, predicted = answer.lower_s / answer.compared_s, answer.predicted_s() / answer.compared_s
        shares = f"{answer.known_share:.0%}", f"{known_s / measured_s:.0%}", f"{predicted:.0%}", f"{least:.0%}", roof
        cells = (name, answer.device.name, *shares)
        print(f"| {' | '.join(cells).replace('%', ' %')} |  products: FLOP {flops}, bytes {moved} of TraceLens'")


def _ratio(ours: list[OperatorGroup], key: str, steps: int, theirs: list[dict[str, str]], column: str, unit: float) -> Any:
    there = unit * sum(number(row, column) * number(row, "operation_count") for row in theirs)
    return f"{steps * sum(getattr(group, key) for group in ours) / there:.4f}" if there else "-"


if __name__ == "__main__":
    main()
