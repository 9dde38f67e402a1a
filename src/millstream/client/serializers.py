"""From Python values to a record's bytes and back.

A serialiser is any function from a value to bytes or None, a deserialiser the way back; `None` stands for a
null key or value (a tombstone) and is never handed to either.

    Producer("localhost:9092", serializer="json")
    Producer("localhost:9092", key_serializer=str.encode, serializer=my_type_to_bytes)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import msgspec

Serializer: TypeAlias = Callable[[Any], bytes | None]
Deserializer: TypeAlias = Callable[[bytes], Any]
Format: TypeAlias = Literal["bytes", "str", "json"]

_encode_json = msgspec.json.Encoder().encode
_decode_json = msgspec.json.Decoder().decode


def encode_str(value: str) -> bytes:
    """A text in UTF-8."""
    return value.encode()


def decode_str(data: bytes) -> str:
    """The text that UTF-8 bytes stand for."""
    return data.decode()


def encode_json(value: Any) -> bytes:
    """A value as JSON: what msgspec takes, which is the plain types, dataclasses, dates, UUIDs and more."""
    return _encode_json(value)


def decode_json(data: bytes) -> Any:
    """The plain value that a JSON text stands for."""
    return _decode_json(data)


def json_decoder(kind: type[Any]) -> Deserializer:
    """A deserialiser from JSON to one type (a dataclass, a msgspec Struct, ...), which it checks."""
    return msgspec.json.Decoder(kind).decode


_SERIALIZERS: dict[str, Serializer | None] = {"bytes": None, "str": encode_str, "json": encode_json}
_DESERIALIZERS: dict[str, Deserializer | None] = {"bytes": None, "str": decode_str, "json": decode_json}


def serializer_of(choice: Format | Serializer | None) -> Serializer | None:
    """The function that was asked for by name, or was given; None for bytes as they are."""
    if choice is None or callable(choice):
        return choice
    function: Serializer | None = _named(choice, _SERIALIZERS)
    return function


def deserializer_of(choice: Format | Deserializer | None) -> Deserializer | None:
    """The function that was asked for by name, or was given; None for bytes as they are."""
    if choice is None or callable(choice):
        return choice
    function: Deserializer | None = _named(choice, _DESERIALIZERS)
    return function


def _named(choice: str, known: dict[str, Any]) -> Any:
    try:
        return known[choice]
    except KeyError:
        raise ValueError(f"{choice!r} is not one of {', '.join(known)}, nor a function") from None
