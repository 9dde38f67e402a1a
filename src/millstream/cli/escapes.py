r"""Backslash escapes in what a person types: `\n`, `\t`, `\r`, `\0`, `\\`, `\x1f`, `\u00e9`."""

from __future__ import annotations

import re

_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|.)", re.DOTALL)
_NAMED = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}


def unescape(text: str) -> bytes:
    """The bytes that `text` stands for; ValueError for an escape that is none."""
    out: list[bytes] = []
    position = 0
    for match in _ESCAPE.finditer(text):
        out.append(text[position : match.start()].encode())
        out.append(_one(match[1]))
        position = match.end()
    rest = text[position:]
    if rest.endswith("\\"):
        raise ValueError(f"{text!r} ends with a single backslash: write \\\\ for one")
    return b"".join([*out, rest.encode()])


def _one(escape: str) -> bytes:
    if escape[0] == "x" and len(escape) == 3:
        return bytes([int(escape[1:], 16)])
    if escape[0] == "u" and len(escape) == 5:
        return chr(int(escape[1:], 16)).encode()
    if escape in _NAMED:
        return _NAMED[escape]
    raise ValueError(f"\\{escape} is no escape: write \\n, \\t, \\r, \\0, \\\\, \\xHH or \\uHHHH")
