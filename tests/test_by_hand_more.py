"""More constants, signs and edges worked out by hand: times of fused attention, training state, layouts, suggestions."""

from __future__ import annotations

import pytest

from perfmodel.catalog import find_device, find_model
from perfmodel.dtypes import DTYPES
from perfmodel.errors import suggest
from perfmodel.timing.base import Case
from perfmodel.timing.models.flash_prefill import MODEL
from perfmodel.transformer.training.question import Parallel, Training
from perfmodel.transformer.training.state import state_bytes
from perfmodel.transformer.training.step.search import candidates
from perfmodel.workload import BACKWARD, FORWARD, Attention

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
