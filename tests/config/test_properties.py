"""Java's .properties format."""

from __future__ import annotations

import pytest

from millstream.config.properties import read_properties


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=b", {"a": "b"}),
        ("a = b ", {"a": "b "}),
        ("a:b\nc d", {"a": "b", "c": "d"}),
        ("a=b=c:d", {"a": "b=c:d"}),
        ("  a  =  b", {"a": "b"}),
        ("# no\n! no\n\n a=b # kept", {"a": "b # kept"}),
        ("a=1\na=2", {"a": "2"}),
        ("a=b\\\n   c\\\r\n d\nx=y", {"a": "bcd", "x": "y"}),
        ("a=b\\\\\nc=d", {"a": "b\\", "c": "d"}),
        ("a\\ b=c\\=d", {"a b": "c=d"}),
        ("a\\:b=c", {"a:b": "c"}),
        ("a=\\u0041\\t\\n\\x", {"a": "A\t\nx"}),
        ("a", {"a": ""}),
        ("a=", {"a": ""}),
        ("=b", {"": "b"}),
        ("a=b\\", {"a": "b"}),
        ("", {}),
        ("\r\na=b\rc=d", {"a": "b", "c": "d"}),
        ("path=C:\\\\logs", {"path": "C:\\logs"}),
        ("# comment \\\na=b", {"a": "b"}),
    ],
)
def test_a_file_is_read_as_java_reads_it(text: str, expected: dict[str, str]) -> None:
    assert read_properties(text) == expected
