"""More constants, signs and edges worked out by hand: times of fused attention, training state, layouts, suggestions."""

from __future__ import annotations

from typing import Any

import pytest

from perfmodel.cache import dram_bytes, resident_blocks
from perfmodel.catalog import find_device, find_model
from perfmodel.cost import READ, Access, Kernel, Launch
from perfmodel.dtypes import DTYPES
from perfmodel.errors import suggest
from perfmodel.timing.base import Case
from perfmodel.timing.models.flash_prefill import MODEL
from perfmodel.transformer.training.question import Parallel, Training
from perfmodel.transformer.training.state import state_bytes
from perfmodel.transformer.training.step.search import candidates
from perfmodel.workload import BACKWARD, FORWARD, Attention

MIB = 1 << 20
A100, H200 = (find_device(f"nvidia-{name}") for name in ("a100-sxm-80gb", "h200-sxm"))


# Times of fused attention


def attention(n: int, d: int, heads: int = 4, kv_heads: int = 4) -> Attention:
    return Attention(n=n, kv_len=n, d=d, dv=d, batch=2, heads=heads, kv_heads=kv_heads, dtype=DTYPES["bf16"])


@pytest.mark.parametrize(
    ("implementation", "w", "direction", "moved"),
    [
        ("torch-sdpa-flash", attention(4096, 128), FORWARD, 4 * 1),
        # Q, K, V, O and their gradients; O and dO for the row sums, dQ in fp32 set to zero and read, dQ written: 2 + 2 * 2 + 1
        ("torch-sdpa-flash", attention(4096, 128), BACKWARD, 4 * 2 + 7),
        # K and V of one head in place of four; dK and dV of each query head are written and read, and their sums written
        ("torch-sdpa-flash", attention(4096, 128, 4, 1), BACKWARD, (2 + 2 / 4) * 2 + 7 + 2 + 2 / 4),
        # vLLM copies K and V of every token into its cache: read and written once more
        ("vllm-flash-attn", attention(4096, 128), FORWARD, 4 + 2 * 2),
    ],
)
def test_bytes_alone(implementation: str, w: Attention, direction: str, moved: float) -> None:
    """With all that computes at no cost, time is bytes, in tensors of the size of Q, at 4.8 TB/s."""
    p = {**dict.fromkeys(MODEL.starts(), 0.0), "dram": 1.0}
    tensor = 2 * 4 * 4096 * 128 * 2
    assert MODEL.seconds(Case(w, implementation, direction), H200, p) == pytest.approx(moved * tensor / 4.8e12)


# What the last cache lets through: the rules in the docstring of perfmodel.cache, with 60 MiB of L2 and one block per multiprocessor


def reads(blocks: int, groups: int, share: float, **options: Any) -> tuple[float, int]:
    """DRAM bytes read, and the bytes of one group, which every block of it scans; W is ``share`` of the L2."""
    launch = Launch(blocks=blocks, groups=groups, sram_bytes=200 << 10, threads=128, **options)
    slots = resident_blocks(launch, H200)
    assert slots == 132
    group = round(share * 60 * MIB / min(1 + slots * groups / blocks, groups))  # a wave meets the rest of a group, and what follows
    access = Access("K", READ, group * blocks, 1, group * groups, group * groups, reread=True)
    return dram_bytes(Kernel("streams", DTYPES["fp16"], (access,), launch=launch), H200, READ), group


@pytest.mark.parametrize(("share", "lost", "drifted"), [(0.1, 0, 0), (0.34, 0.5, 0), (0.9, 1, 0), (2, 1, 0.0025), (9, 1, 0.02), (500, 1, 1)])
def test_waves_in_lockstep_scan_once_each(share: float, lost: float, drifted: float) -> None:
    """528 blocks to a group are 4 waves: 16 in all, the 3 borders of groups fall inside of one: 19 scans of 4 groups, 15 are repeats."""
    found, group = reads(4 * 528, 4, share, lockstep=True)
    assert found == pytest.approx(group * (4 + 15 * lost + (4 * 528 - 19) * drifted), rel=1e-6)


@pytest.mark.parametrize(("share", "spread", "missed"), [(0.5, 1, 0), (1.1, 1, 0.25), (1.1, 0.5, 0), (2.2, 0.5, 0.25), (5.5, 1, 0.81)])
def test_blocks_out_of_step_read_alone(share: float, spread: float, missed: float) -> None:
    """With W' = W x spread, (1 - 0.55 L2 / W')^2 of all re-reads miss."""
    found, group = reads(4 * 528, 4, share, lockstep=False, spread=spread)
    assert found == pytest.approx(group * (4 + (4 * 528 - 4) * missed), rel=1e-6)


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.7, 0.9])
@pytest.mark.parametrize(("private", "low", "high"), [(False, 0.18, 0.5), (True, 0.53, 0.8)])
def test_scans_that_shrink_lose_the_mean_over_their_lengths(share: float, private: bool, low: float, high: float) -> None:
    """A scan of x of W is met with weight x, as it is so long; half of the re-reads shrink."""
    steps = [(i + 0.5) / 10000 for i in range(10000)]
    mean = sum(2 * x * min(max((share * x - low) / (high - low), 0), 1) for x in steps) / len(steps)
    whole = min(max((share - low) / (high - low), 0), 1)
    found, group = reads(4 * 528, 4, share, lockstep=True, private=private, shrinking=0.5)
    assert found == pytest.approx(group * (4 + 15 * (whole + mean) / 2), rel=1e-5)


# Training


@pytest.mark.parametrize(("zero", "shares"), [(0, 1), (1, 4), (2, 4), (3, 4)])
def test_copies_of_the_optimizer_are_of_its_own_share(zero: int, shares: int) -> None:
    """Square roots of Adam's second moments in fp32, of the parameters that a GPU updates."""
    gpt2 = find_model("gpt2")
    state = state_bytes(Training(gpt2, 8, 1024, parallel=Parallel(dp=4, zero=zero), fused_optimizer=False))
    assert state.temporary == 4 * -(-124439808 // shares)


def test_parts_of_a_sequence_have_1024_tokens_at_least() -> None:
    def parts(n: int, *, flash: bool = True) -> set[int]:
        return {t.parallel.cp for t in candidates(Training(find_model("llama-3-8b"), 8, n, flash=flash), 8, 8)}

    assert (parts(1023), parts(1024), parts(2048), parts(8192)) == ({1}, {1}, {1, 2}, {1, 2, 4, 8})
    assert parts(8192, flash=False) == {1}


# Words


def test_three_names_at_most_are_suggested() -> None:
    assert suggest("flash", ["flash1", "flash2", "flash3", "flash4"]).count("flash") == 3
