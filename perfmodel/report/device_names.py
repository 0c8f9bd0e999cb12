"""Names of devices in sentences, such as ``an H200`` for ``NVIDIA H200 SXM``."""

from __future__ import annotations

import re
from collections.abc import Iterable

_FAMILIES = frozenset(["NVIDIA", "AMD", "Intel", "Apple", "Google", "Amazon", "Instinct", "GeForce", "Tesla", "Xeon", "Platinum"])
"""Words that a short name leaves out."""
_SPOKEN_AN = re.compile(r"[AEFHILMNORSX][A-Z\d]|[AEIOU]|8")
"""Beginnings of names that are spoken with ``an``: letters such as H that begin with a vowel when spelled, vowels, and eight."""


def short_name(name: str) -> str:
    """The short form of a device's ``name``.

    >>> [short_name(name) for name in ("NVIDIA A100 SXM 80 GB", "NVIDIA GeForce RTX 4090", "Apple M3 Max, 40-core GPU", "Test device")]
    ['A100', 'RTX 4090', 'M3 Max', 'Test device']
    """
    words = [word for word in name.replace(",", "").split() if word not in _FAMILIES]
    with_digit = [place for place, word in enumerate(words) if any(map(str.isdigit, word))]
    if not with_digit:
        return name
    end = with_digit[0] + 1
    if end < len(words) and words[end] in ("Max", "Ultra", "Pro"):
        end += 1
    return " ".join(words[:end])


def short_names(names: Iterable[str]) -> dict[str, str]:
    """Short names by full names; full names stay where short ones would be equal."""
    short = {name: short_name(name) for name in names}
    return short if len(set(short.values())) == len(short) else {name: name for name in short}


def a_device(name: str) -> str:
    """The short name of a device with its article.

    >>> a_device("NVIDIA H200 SXM")
    'an H200'
    """
    return one_of(short_name(name))


def one_of(device: str) -> str:
    """A short name with its article; a full name or another word stays as it is.

    >>> one_of("H200"), one_of("TPU v5p"), one_of("NVIDIA H100 PCIe 80 GB"), one_of("Test device")
    ('an H200', 'a TPU v5p', 'NVIDIA H100 PCIe 80 GB', 'Test device')
    """
    if device != short_name(device) or not any(map(str.isdigit, device)):
        return device
    return f"{'an' if _SPOKEN_AN.match(device) else 'a'} {device}"
