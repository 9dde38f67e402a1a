"""Compiles the generated source of constructors, decoders and encoders.

A codec is one flat function for one message class at one version: nested structs and arrays are
loops inside it, neighbouring values of a fixed size are read and written by one `struct.Struct`, and
nothing is looked up by name but the fields themselves. What the source refers to (classes, layouts,
helpers) are its globals, in a namespace of its own.
`decoding` and `encoding` write the source; `source_of` shows it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

from millstream.errors import ProtocolError

if TYPE_CHECKING:
    from millstream.protocol.schema import Field, Message, Struct
    from millstream.protocol.types import Buffer

    Decoder: TypeAlias = Callable[[Buffer, int], Any]
Encoder: TypeAlias = "Callable[[Message, bytearray, list[Buffer]], bytearray]"


class _Unset:
    """The mark of an argument that was not given."""

    def __repr__(self) -> str:
        return "<default>"


UNSET: Any = _Unset()
SHORT = 16
"""Arrays of numbers below this length have layouts made in advance."""


class Source:
    """Lines of a function being written, and the objects they refer to by name."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.indent = 1
        self.names: dict[str, Any] = {}
        self._counter = 0

    def line(self, text: str) -> None:
        self.lines.append("    " * self.indent + text)

    def local(self, prefix: str) -> str:
        """A new name for a local variable."""
        self._counter += 1
        return f"{prefix}{self._counter}"

    def constant(self, prefix: str, value: Any) -> str:
        """The name under which the function knows `value`."""
        for name, known in self.names.items():
            if known is value and name.startswith(prefix):
                return name
        name = self.local(f"{prefix}_")
        self.names[name] = value
        return name

    def layout(self, method: str, format_: str) -> str:
        """The name of a method of the Struct of big-endian `format_`."""
        return self.constant(method, layout(format_, method))

    def literal(self, field: Field) -> str:
        """An expression for the default of a field: a new list or struct for each object."""
        if field.type.kind == "array" and field.default is not None:
            return "[]"
        if field.type.kind == "struct" and field.default is not None:
            return f"{self.constant('Cls', field.type.item)}()"
        if field.type.kind == "uuid":
            return self.constant("uuid", field.default)
        return repr(field.default)

    def compile(self, name: str, arguments: str, title: str) -> Any:
        """The function, made from its source."""
        text = f"def {name}({arguments}):\n" + "\n".join(self.lines) + "\n"
        namespace = dict(self.names)
        exec(compile(text, f"<{title}>", "exec"), namespace)  # noqa: S102
        function = namespace[name]
        function.__source__ = text
        return function


@cache
def layout(format_: str, method: str) -> Any:
    """A method of the Struct of big-endian `format_`."""
    return getattr(struct.Struct(f">{format_}"), method)


@cache
def layouts_by_count(format_: str, method: str, head: str = "") -> list[Any]:
    """A method of the Structs of 0, 1, 2 and so on to SHORT - 1 values of one format."""
    return [layout(f"{head}{count}{format_}", method) for count in range(SHORT)]


def source_of(function: Any) -> str:
    """The generated source of a codec or constructor."""
    return str(function.__source__)


def constructor(cls: type[Struct]) -> Callable[..., None]:
    """`__init__` with one keyword argument for each field."""
    source = Source()
    source.names["unset"] = UNSET
    arguments = []
    for field in cls.fields:
        name, default = field.name, source.literal(field)
        if field.type.kind in ("array", "struct") and field.default is not None:
            source.line(f"self.{name} = {default} if {name} is unset else {name}")
            default = "unset"
        else:
            source.line(f"self.{name} = {name}")
        arguments.append(f"{name}={default}")
    source.line("return None")
    if arguments:
        arguments.insert(0, "*")
    function: Callable[..., None] = source.compile(
        "__init__", ", ".join(["self", *arguments]), f"{cls.__qualname__}.__init__"
    )
    return function


def decoder(cls: type[Message], version: int, is_flexible: bool) -> Decoder:
    """The function (data, offset) -> message."""
    from millstream.protocol.decoding import DecoderSource

    return DecoderSource(version, is_flexible).function(cls)


def encoder(cls: type[Message], version: int, is_flexible: bool) -> Encoder:
    """The function (message, out, chunks) -> out."""
    from millstream.protocol.encoding import EncoderSource

    return EncoderSource(version, is_flexible).function(cls)


def read_uvarint(data: memoryview, position: int) -> tuple[int, int]:
    """An unsigned varint of up to five bytes at `position`, and the position after it."""
    value = shift = 0
    for index in range(position, position + 5):
        byte = data[index]
        value |= (byte & 127) << shift
        if byte < 128:
            return value, index + 1
        shift += 7
    raise ProtocolError("a varint is longer than five bytes")


def uvarint(value: int) -> bytes:
    """The unsigned varint of `value`, which has at most five bytes."""
    if value < 128:
        return bytes((value,))
    if value < 16384:
        return bytes((value & 127 | 128, value >> 7))
    if value < 2097152:
        return bytes((value & 127 | 128, value >> 7 & 127 | 128, value >> 14))
    if value < 268435456:
        return bytes((value & 127 | 128, value >> 7 & 127 | 128, value >> 14 & 127 | 128, value >> 21))
    return bytes(
        (
            value & 127 | 128,
            value >> 7 & 127 | 128,
            value >> 14 & 127 | 128,
            value >> 21 & 127 | 128,
            value >> 28,
        )
    )
