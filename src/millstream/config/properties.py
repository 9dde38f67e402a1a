"""Java's .properties files, which Kafka's configuration is written in.

A line is `key=value`, `key:value` or `key value`; `#` and `!` begin a comment; a backslash at the end
continues the line, and elsewhere escapes: `\\n`, `\\t`, `\\u0041`, or the character itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_ENTRY = re.compile(r"((?:\\.|[^\\=:\s])*)\s*[=:]?\s*(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|.)", re.DOTALL)
_NAMED = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}


def _logical_lines(text: str) -> Iterator[str]:
    pending: str | None = None
    for raw in re.split(r"\r\n|\n|\r", text):
        line = raw.lstrip(" \t\f")
        if pending is None and (not line or line[0] in "#!"):
            continue
        line = (pending or "") + line
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            pending = line[:-1]
        else:
            pending = None
            yield line
    if pending is not None:
        yield pending


def _unescape(text: str) -> str:
    def character(match: re.Match[str]) -> str:
        code = match[1]
        return chr(int(code[1:], 16)) if len(code) == 5 else _NAMED.get(code, code)

    return _ESCAPE.sub(character, text)


def read_properties(text: str) -> dict[str, str]:
    """The keys and values of a file's text; of a key given twice the last one counts."""
    entries = (_ENTRY.fullmatch(line) for line in _logical_lines(text))
    return {_unescape(entry[1]): _unescape(entry[2]) for entry in entries if entry is not None}
