"""All-reduces of serving engines: which kernel sums which size, hand-worked times, and NCCL above their limits."""

from __future__ import annotations

from dataclasses import replace

import pytest
from each import each

from perfmodel.catalog import calibrated_devices, find_device
from perfmodel.core.dtypes import DTYPES
from perfmodel.core.errors import UnavailableError
from perfmodel.kernels.collectives import ALL_REDUCE, Collective
from perfmodel.timing.base import Case
from perfmodel.timing.models.custom_allreduce import IN_SWITCH, KIB, MIB, MODEL, ONE_SHOT, PASS_BYTES, TWO_SHOT, WAYS, WORLDS, seconds
from perfmodel.transformer.kernel_choice import KernelChoice
from perfmodel.transformer.op import collective
from perfmodel.transformer.op_time import predict_op
from perfmodel.transformer.step import decode

H200, B200, A100, NVL72 = map(find_device, ("h200", "b200", "nvidia-a100-sxm-80gb", "gb200"))
P = dict(zip((p.name for p in MODEL.parameters), (4.0, 0.1, 1.5, 1.0, 0.5, 10.0), strict=True))
LINK = 450e9


def asked(world, size, implementation="vllm-allreduce"):
    return Case(Collective(ALL_REDUCE, world, size, DTYPES["bf16"]), implementation)


@each(
    ("implementation", "device", "world", "size", "way"),
    [
        ("vllm-allreduce", H200, 8, 128 * KIB, ONE_SHOT),
        ("vllm-allreduce", H200, 8, 256 * KIB, IN_SWITCH),
        ("vllm-allreduce", H200, 8, 65 * MIB, None),
        ("vllm-allreduce", H200, 2, 4 * MIB, ONE_SHOT),
        ("vllm-allreduce", B200, 8, 512 * KIB, TWO_SHOT),
        ("vllm-allreduce", A100, 8, 4 * MIB, TWO_SHOT),
        ("vllm-allreduce", A100, 8, 8 * MIB, None),
        ("sglang-allreduce", H200, 4, 256 * KIB, ONE_SHOT),
        ("sglang-allreduce", H200, 4, 512 * KIB, TWO_SHOT),
        ("sglang-allreduce", H200, 4, 8 * MIB, None),
        ("sglang-allreduce-v2", H200, 8, 160 * KIB, ONE_SHOT),
        ("sglang-allreduce-v2", B200, 8, 720 * KIB, ONE_SHOT),
        ("sglang-allreduce-v2", B200, 8, 16 * MIB, TWO_SHOT),
        ("trtllm-allreduce", H200, 8, 512 * KIB, TWO_SHOT),
        ("trtllm-allreduce", B200, 8, 1 * MIB, ONE_SHOT),
        ("trtllm-allreduce", B200, 8, 8 * MIB, None),
    ],
)
def test_which_kernel_sums(implementation, device, world, size, way):
    assert WAYS[implementation](device, world, size) == way


def test_engines_sum_among_more_than_two_cards_over_pcie_by_nccl():
    l40s = find_device("nvidia-l40s")
    assert seconds(asked(2, 64 * KIB), l40s, P) > 0
    with pytest.raises(UnavailableError, match="NCCL"):
        seconds(asked(4, 64 * KIB), l40s, P)


def test_hand_worked_times():
    small = 7 * 0.1e-6 + 4e-6 + 7 * 65536 / (0.5 * LINK)
    assert seconds(asked(8, 65536), H200, P) == pytest.approx(small)
    size = 4 * MIB
    again = 4e-6 * 2.5 + 7 * 0.1e-6 + (size / 8 / PASS_BYTES - 1) * 1e-6 + 2 * 7 / 8 * size / (0.5 * LINK)
    assert seconds(asked(8, size, "sglang-allreduce"), H200, P) == pytest.approx(again)
    assert seconds(asked(8, size), H200, P) == pytest.approx(10e-6 + size / (0.5 * LINK) + 4 * size / 4.8e12), "copied in and out"


@pytest.mark.parametrize("implementation", WAYS)
def test_no_case_beats_the_link(implementation):
    perfect = dict.fromkeys(P, 1e-9) | {"link_share": 1.0}
    for device in (H200, B200, A100):
        for world in WORLDS:
            for size in [1 << power for power in range(8, 27)]:
                case = asked(world, size, implementation)
                if WAYS[implementation](device, world, size) is not None:
                    assert seconds(case, device, perfect) >= case.workload.estimate(device).needs.link_s


def test_more_hosts_are_not_theirs():
    with pytest.raises(UnavailableError, match="NCCL"):
        seconds(asked(8, 1024), NVL72, P)
    assert seconds(asked(4, 1024), NVL72, P) > 0
    assert not MODEL.covers(asked(16, 1024))
    assert not MODEL.covers(replace(asked(8, 1024), workload=Collective("all_gather", 8, 1024, DTYPES["bf16"])))


@pytest.mark.parametrize(("tokens", "model"), [(4, "custom-allreduce"), (16384, "nccl")])
def test_nccl_sums_what_the_engine_leaves_to_it(tokens, model):
    step = replace(decode(tokens, 2048, dtype=DTYPES["bf16"]), kernels=KernelChoice(all_reduce=("vllm-allreduce", "nccl")))
    found = predict_op(collective(ALL_REDUCE, 8, tokens * 8192, step), H200, 0.0, calibrated_devices)
    assert found.calibration.model == model
