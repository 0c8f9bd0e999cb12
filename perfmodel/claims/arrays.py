"""Claims about arrays in memory."""

from __future__ import annotations

from perfmodel.arith import Number
from perfmodel.claims.base import NOT_CHECKABLE, RELABELLED, Claim, Figure
from perfmodel.dtypes import DTYPES

NOTES = "lecture notes on the memory of autograd"
_FP64 = 8


def array_bytes(rows: Number, columns: Number, size: Number) -> Number:
    """Bytes of the elements of an array.

    >>> array_bytes(4000, 1000, 8)
    32000000
    """
    return rows * columns * size


def kept_bytes(rows: Number, columns: Number, size: Number, arrays: Number) -> Number:
    """Bytes of ``arrays`` equal arrays."""
    return arrays * array_bytes(rows, columns, size)


_SQUARE = {"rows": 1000, "columns": 1000, "size": _FP64}
_LAYER = {"rows": 4000, "columns": 1000, "size": _FP64}

CLAIMS = (
    Claim(
        "S038",
        NOTES,
        "A 1000 x 1000 float64 NumPy array takes 8,000,128 B.",
        why="8,000,000 B of data and 128 B of object header.",
        inputs={**_SQUARE, "header": 128},
        figures=(
            Figure("data and header", lambda rows, columns, size, header: array_bytes(rows, columns, size) + header, "8000128 B", "B"),
        ),
        uses=(array_bytes,),
    ),
    Claim(
        "S039",
        NOTES,
        "That is about 8 Mb of memory.",
        claimed="8 Mb",
        declared=RELABELLED,
        why="8 MB, or 7.63 MiB: Mb are megabits.",
        inputs=_SQUARE,
        figures=(Figure("read as MB", array_bytes, "8 MB", "B"),),
        uses=(array_bytes,),
    ),
    Claim(
        "S040",
        NOTES,
        "The storage of a 1000 x 1000 float32 PyTorch tensor takes 4,000,072 B.",
        claimed="4000072 B",
        declared=NOT_CHECKABLE,
        why="4,000,000 B are data; the 72 B of the object depend on PyTorch's version, which is not installed here.",
        inputs={**_SQUARE, "size": DTYPES["fp32"].size},
        figures=(Figure("data", array_bytes, unit="B"),),
        uses=(array_bytes,),
    ),
    Claim(
        "S041",
        NOTES,
        "Memory is 8 MB with a alone, 16.008 MB with a, b and c, 8 MB once b is dropped.",
        why="Fits two arrays of 8 MB and one of 8 KB: memory goes with the last reference.",
        inputs=_SQUARE,
        figures=(
            Figure("a", array_bytes, "8 MB", "B"),
            Figure(
                "a, b, c",
                lambda rows, columns, size: 2 * array_bytes(rows, columns, size) + array_bytes(1, columns, size),
                "16.008 MB",
                "B",
            ),
            Figure("a, c", lambda rows, columns, size: array_bytes(rows, columns, size) + array_bytes(1, columns, size), "8 MB", "B"),
        ),
        uses=(array_bytes,),
    ),
    Claim(
        "S042",
        NOTES,
        "z1 of shape 4000 x 1000 takes 32 MB.",
        why="float64.",
        inputs=_LAYER,
        figures=(Figure("z1", array_bytes, "32 MB", "B"),),
        uses=(array_bytes,),
    ),
    Claim(
        "S043",
        NOTES,
        "Value and gradient of one layer take 64 MB.",
        inputs={**_LAYER, "arrays": 2},
        figures=(Figure("Z2 and its gradient", kept_bytes, "64 MB", "B"),),
        uses=(kept_bytes,),
    ),
    Claim(
        "S045",
        NOTES,
        "After the fix, layers 0 to 4 take 32, 65, 98, 131 and 163 MB in all.",
        claimed="32, 65, 98, 131, 163 MB",
        why="32 MB per layer of 4000 x 1000: 32, 64, 96, 128, 160. The printed run had 4,096,000 elements per activation.",
        inputs=_LAYER,
        figures=tuple(
            Figure(f"layer {layer}", kept_bytes, f"{printed} MB", "B", at={"arrays": layer + 1})
            for layer, printed in enumerate((32, 65, 98, 131, 163))
        ),
        uses=(kept_bytes,),
    ),
)
