"""A device profile as YAML that reads back to the same device."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass

from perfmodel.core.hardware import Device, whole


def profile_text(device: Device) -> str:
    """``device`` as a profile that reads back to the same device: a key per line, its value in flow style."""
    lines, device = [], whole(device)
    for part in fields(device):
        value = getattr(device, part.name)
        if value is None or value in ([], {}):
            continue
        if isinstance(value, list) and part.name != "notes":
            lines += [f"{part.name}:", *(f"  - {flow(item)}" for item in value)]
        elif isinstance(value, dict):
            lines += [f"{part.name}:", *(f"  {name}: {flow(item)}" for name, item in value.items())]
        else:
            lines.append(f"{part.name}: {flow(value)}")
    return "\n".join(lines) + "\n"


def flow(value: object) -> str:
    """``value`` as YAML on one line. ``number`` of a quantity is left out: reading computes it."""
    if is_dataclass(value) and not isinstance(value, type):
        values = {f.name: getattr(value, f.name) for f in fields(value) if f.name != "number"}
        return flow({name: item for name, item in values.items() if item is not None and item not in ([], {})})
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {flow(item)}" for name, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(flow, value)) + "]"
    return _number(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)


def _number(value: float) -> str:
    """A float that YAML 1.1 reads as one: with a point and, in an exponent, a sign."""
    text = repr(value)
    mantissa, _, exponent = text.partition("e")
    if not exponent:
        return text
    return f"{mantissa if '.' in mantissa else mantissa + '.0'}e{exponent if exponent[0] in '+-' else '+' + exponent}"
