"""Reading and writing values as Kafka does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.config.checks import Value
from millstream.config.keys import MAX_DOUBLE, BadValue, ConfigKey, Kind, by_name, nearest

KEYS: dict[Kind, ConfigKey] = {
    kind: ConfigKey(f"a.{kind}", kind, None, "A key.")
    for kind in ("boolean", "string", "int", "short", "long", "double", "list", "class", "password")
}


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("boolean", "true", True),
        ("boolean", " FALSE ", False),
        ("int", "-2147483648", -(2**31)),
        ("int", " +7 ", 7),
        ("short", "32767", 32767),
        ("long", "9223372036854775807", 2**63 - 1),
        ("double", "0.5", 0.5),
        ("double", "1", 1.0),
        ("double", "1E3", 1000.0),
        ("string", " text ", "text"),
        ("string", "", ""),
        ("list", "a, b ,c", ("a", "b", "c")),
        ("list", "a,b,a", ("a", "b")),
        ("list", "", ()),
        ("password", "secret", "secret"),
    ],
)
def test_text_is_read(kind: Kind, text: str, value: Value) -> None:
    assert KEYS[kind].parse(text) == value


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("boolean", "yes"),
        ("boolean", ""),
        ("int", "2147483648"),
        ("int", "1.5"),
        ("int", "1_000"),
        ("int", ""),
        ("int", "٣"),
        ("short", "32768"),
        ("long", "9223372036854775808"),
        ("long", "9" * 5000),
        ("double", "NaN"),
        ("double", "half"),
    ],
)
def test_bad_text_is_refused_and_the_key_named(kind: Kind, text: str) -> None:
    with pytest.raises(BadValue, match=rf"a\.{kind} takes"):
        KEYS[kind].parse(text)


@given(st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.booleans())
def test_what_is_written_reads_the_same(whole: int, real: float, truth: bool) -> None:
    for kind, value in (("long", whole), ("double", real), ("boolean", truth)):
        key = KEYS[kind]  # type: ignore[index]
        text = key.render(value)
        assert text is not None
        assert key.parse(text) == value


def test_values_are_written_as_kafka_prints_them() -> None:
    assert KEYS["double"].render(MAX_DOUBLE) == "1.7976931348623157E308"
    assert KEYS["double"].render(0.5) == "0.5"
    assert KEYS["boolean"].render(True) == "true"
    assert KEYS["list"].render(("a", "b")) == "a,b"
    assert KEYS["int"].render(None) is None


def test_a_name_declared_twice_is_a_mistake() -> None:
    with pytest.raises(TypeError, match=r"a\.int"):
        by_name([KEYS["int"], KEYS["int"]])


def test_the_nearest_name_is_proposed() -> None:
    assert nearest("num.partitons", ["num.partitions", "node.id"]) == "; did you mean num.partitions?"
    assert nearest("something.else", ["num.partitions"]) == ""
