"""The clock at which cards run whose driver lists a higher one than is advertised."""

from __future__ import annotations

from perfmodel.core.hardware import Device

BOOST, BOOST_FROM = 1.08, 1.17  # tuned
"""Clock at work over the advertised one, of cards whose highest clock is above that by the second factor: GeForce and RTX.

Chosen on matmuls of an RTX 3090. Datacenter cards list at most 1.16 times the clock of their peaks.
"""


def boost(device: Device) -> float:
    """Clock at which kernels run over that of the datasheet's peaks: 1 where these are of a clock that the card holds."""
    advertised, highest = device.clocks.tensor, device.clocks.max
    return BOOST if advertised and highest and highest.number > BOOST_FROM * advertised.number else 1.0
