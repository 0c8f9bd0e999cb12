"""A step whose kernels the host enqueues one by one: the device waits for the host, or the host waits until the step ends.

The host begins a step with nothing enqueued, as the step before ends in a wait for the device. A kernel starts once it is enqueued
and the one before it has ended. So a step takes the longest of all ways to go with the host up to some kernel and with the device
from there on; between phases of one pace each, the turn is at a boundary.
Source: two machines in a row, Johnson 1954; the events of measured steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

US = 1e-6
TENSOR_US = 5.6
"""Host time per parameter tensor in the optimizer's step: median over the host-bound steps of an H200 that fits may see."""
TUNED = ("TENSOR_US",)


def longest_way(phases: Sequence[tuple[float, float]]) -> float:
    """Seconds of phases in order, each (host, device) seconds.

    >>> longest_way([(1.0, 3.0), (1.0, 3.0)]), longest_way([(4.0, 1.0), (4.0, 2.0)])
    (6.0, 8.0)
    """
    found, device = 0.0, 0.0
    hosts = [0.0]
    for host, _ in phases:
        hosts.append(hosts[-1] + host)
    for index in range(len(phases) - 1, -1, -1):
        # the last kernel of a phase is enqueued at its end, the first as it begins
        found = max(found, hosts[index + 1] + device)
        device += phases[index][1]
        found = max(found, hosts[index] + device)
    return found


def host_phases(parameters: Mapping[str, float], layers: int, tensors: int, *, again: bool) -> tuple[float, float, float]:
    """Seconds of the host for the forward pass of ``layers``, for the backward pass, and for the optimizer. ``again``: checkpointed."""
    p = parameters
    forward = p["host_forward_us"] + (p["host_checkpoint_us"] if again else 0.0)
    backward = p["host_backward_us"] + (p["host_forward_us"] + p["host_again_us"] if again else 0.0)
    return layers * forward * US, layers * backward * US, tensors * TENSOR_US * US


def waiting(host: tuple[float, float, float], forward_s: float, backward_s: float, micro_batches: int, optimizer_s: float) -> float:
    """By how much a step is longer than its kernels. The head counts to the backward pass: few kernels, long ones."""
    phases = [(host[0], forward_s), (host[1], backward_s)] * micro_batches
    phases += [(host[2], 0.0), (0.0, optimizer_s)]  # the host goes over all tensors before it enqueues the first update
    return max(longest_way(phases) - sum(device for _, device in phases), 0.0)
