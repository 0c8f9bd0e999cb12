"""Device profiles as text: a whole one, or calibrations put into one without touching its other lines."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import fields, is_dataclass

from perfmodel.core.errors import DataError
from perfmodel.core.hardware import Calibration, Device

SECTION = re.compile(r"^calibration:\n(?:[ \-#].*\n|\n)*", re.MULTILINE)
SOURCES = re.compile(r"^sources:\n", re.MULTILINE)
RECORDS = "perfmodel's measurement records, perfmodel/validation/measured"


def with_calibrations(text: str, blocks: Sequence[Calibration]) -> str:
    """The profile ``text`` with ``blocks`` for its calibration section; every other line stays as it is.

    DataError if the text has no ``sources:`` to name theirs in.
    """
    text = SECTION.sub("", text).rstrip() + "\n"
    if not SOURCES.search(text):
        raise DataError("the profile has no 'sources:' section", "give it one; calibrations name their source there")
    for key in sorted({block.source for block in blocks}):
        if not re.search(rf"^  {re.escape(key)}:", text, re.MULTILINE):
            text = SOURCES.sub(f"sources:\n  {key}: {json.dumps(RECORDS)}\n", text, count=1)
    if not blocks:
        return text
    return text + "\ncalibration:\n" + "".join(map(_block, blocks))


def _block(block: Calibration) -> str:
    """One list item in flow style, over a few lines."""
    head = ("implementation", "workload", "direction", "model", "dtypes")
    groups = [head, ("parameters",), tuple(f.name for f in fields(block) if f.name not in (*head, "parameters"))]
    lines = []
    for group in groups:
        pairs = [(name, getattr(block, name)) for name in group if getattr(block, name) is not None]
        lines.append(", ".join(f"{name}: {_flow(value)}" for name, value in pairs))
    return "  - {" + ",\n     ".join(lines) + "}\n"


def profile_text(device: Device) -> str:
    """``device`` as a profile that reads back to the same device: a key per line, its value in flow style."""
    lines = []
    for part in fields(device):
        value = getattr(device, part.name)
        if value is None or value in ([], {}):
            continue
        if isinstance(value, list) and part.name != "notes":
            lines += [f"{part.name}:", *(f"  - {_flow(item)}" for item in value)]
        elif isinstance(value, dict):
            lines += [f"{part.name}:", *(f"  {name}: {_flow(item)}" for name, item in value.items())]
        else:
            lines.append(f"{part.name}: {_flow(value)}")
    return "\n".join(lines) + "\n"


def _flow(value: object) -> str:
    """``value`` as YAML on one line. ``number`` of a quantity is left out: reading computes it."""
    if is_dataclass(value) and not isinstance(value, type):
        known = {f.name: getattr(value, f.name) for f in fields(value) if f.name != "number"}
        return _flow({name: item for name, item in known.items() if item is not None and item not in ([], {})})
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {_flow(item)}" for name, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_flow, value)) + "]"
    return _number(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)


def _number(value: float) -> str:
    """A float that YAML 1.1 reads as one: with a point and, in an exponent, a sign."""
    text = repr(value)
    mantissa, _, exponent = text.partition("e")
    if not exponent:
        return text
    return f"{mantissa if '.' in mantissa else mantissa + '.0'}e{exponent if exponent[0] in '+-' else '+' + exponent}"
