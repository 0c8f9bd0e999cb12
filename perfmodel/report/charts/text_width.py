"""How wide a text is, without a font at hand: the widest of the fonts that a reader is likely to have.

Widths are in thousandths of the font size, rounded up to 20: the largest advance among Inter, DejaVu Sans and Liberation Sans
(whose widths are Arial's and Helvetica's), so that a label that was placed in its box stays in it whichever of them draws it.
"""

from __future__ import annotations

_WIDTHS = {
    280: "\"'ijl",
    300: "I",
    320: " ,.·",
    340: ":;|",
    360: "/\\",
    380: "f",
    400: "()[]t",
    420: "!r²",
    440: "³",
    460: '"-',
    500: "*`",
    540: "s",
    560: "?J_cz–",
    580: "Lk",
    600: "vxy",
    620: "Faeo",
    640: "$012356789bdghnpqu{}µ",
    660: "4Tα",
    680: "EKPSY",
    700: "ABVXZ",
    740: "CR",
    760: "HNU",
    780: "&DG",
    800: "OQ",
    820: "w",
    840: "#+<=>^~±×≤≥",
    900: "M",
    960: "%",
    980: "m",
    1000: "W—…→",
    1020: "@▲▼",
}
_BY_CHARACTER = {character: width for width, characters in _WIDTHS.items() for character in characters}
_OTHER, _WIDE, _FIRST_WIDE = 760, 1040, 0x1100
_BOLD = 1.12
"""Semibold Inter and bold DejaVu Sans over the regular widths, for words."""
HEIGHT = 1.18
"""Of a line of capitals, digits and descenders, in font sizes."""


def text_width(text: str, size: float, bold: bool = False) -> float:
    """Pixels of ``text`` at font size ``size``.

    >>> text_width("12", 10)
    12.8
    """
    total = sum(_BY_CHARACTER.get(character, _WIDE if ord(character) >= _FIRST_WIDE else _OTHER) for character in text)
    return round(total * size / 1000 * (_BOLD if bold else 1), 3)


def shortened(text: str, size: float, width: float, bold: bool = False) -> str:
    """``text``, or as much of it as fits in ``width`` with an ellipsis."""
    if text_width(text, size, bold) <= width:
        return text
    while text and text_width(text + "…", size, bold) > width:
        text = text[:-1]
    return text.rstrip() + "…"
