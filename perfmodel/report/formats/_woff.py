"""A font as WOFF: the same tables, each compressed, for a page that carries its fonts.

Source: W3C, WOFF File Format 1.0, sections 3 to 5.
"""

from __future__ import annotations

import struct
import zlib

HEADER, ENTRY, SFNT_ENTRY = struct.Struct(">4sIIHHIHHIIIII"), struct.Struct(">4sIIII"), struct.Struct(">4sIII")
SFNT_HEAD = 12
"""Bytes before an OpenType font's table directory."""


def woff(sfnt: bytes) -> bytes:
    """The OpenType font ``sfnt`` as WOFF 1.0."""
    flavor, count = sfnt[:4], int.from_bytes(sfnt[4:6], "big")
    entries = [SFNT_ENTRY.unpack_from(sfnt, SFNT_HEAD + SFNT_ENTRY.size * place) for place in range(count)]
    at = HEADER.size + ENTRY.size * count
    directory, body = b"", b""
    whole = SFNT_HEAD + SFNT_ENTRY.size * count
    for tag, checksum, start, length in entries:
        raw = sfnt[start : start + length]
        packed = min(zlib.compress(raw, 9), raw, key=len)
        directory += ENTRY.pack(tag, at + len(body), len(packed), length, checksum)
        body += _padded(packed)
        whole += len(_padded(raw))
    head = HEADER.pack(b"wOFF", int.from_bytes(flavor, "big"), at + len(body), count, 0, whole, 1, 0, 0, 0, 0, 0, 0)
    return head + directory + body


def _padded(data: bytes) -> bytes:
    """To a multiple of four bytes."""
    return data + bytes(-len(data) % 4)
