"""Which GPU this is."""

from __future__ import annotations

from perfmodel.validation.cuda.gpu import profile_of
from perfmodel.validation.libraries import Torch


def current_profile(torch: Torch) -> str:
    """Id of the profile of the current CUDA device; UnavailableError where its name fits none, or several."""
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return profile_of(properties.name, properties.total_memory)
