"""The wire types that message declarations are written in.

A declaration annotates its fields with these aliases. To a type checker they are plain `int`,
`float` and buffers; the `WireType` inside says how a value lies on the wire. `str`, `bytes`, `bool`,
`UUID`, `list[...]`, a `Struct` class, and each of them `| None`, are the other annotations allowed.
"""

import sys
from types import UnionType
from typing import Annotated, Any, NamedTuple, TypeAlias, Union, get_args, get_origin
from uuid import UUID

from millstream.model import NO_UUID

Buffer: TypeAlias = bytes | bytearray | memoryview


class WireType(NamedTuple):
    """How one kind of value lies on the wire."""

    kind: str
    """fixed, uuid, str, bytes, records, array or struct."""
    zero: Any = None
    """The value of a field that declares no default; None where each object needs its own."""
    format: str = ""
    """The letter of the `struct` module, for kinds of a fixed size."""
    size: int = 0
    """Bytes on the wire, for kinds of a fixed size."""
    item: Any = None
    """The WireType of an array's elements, or the Struct class of a struct."""


i8 = Annotated[int, WireType("fixed", 0, "b", 1)]
i16 = Annotated[int, WireType("fixed", 0, "h", 2)]
i32 = Annotated[int, WireType("fixed", 0, "i", 4)]
i64 = Annotated[int, WireType("fixed", 0, "q", 8)]
u16 = Annotated[int, WireType("fixed", 0, "H", 2)]
f64 = Annotated[float, WireType("fixed", 0.0, "d", 8)]
Records = Annotated[Buffer, WireType("records")]
"""Record batches: decoded as a memoryview into the frame, encoded from any buffer."""

_PLAIN: dict[Any, WireType] = {
    bool: WireType("fixed", False, "?", 1),
    UUID: WireType("uuid", NO_UUID, "16s", 16),
    str: WireType("str", ""),
    bytes: WireType("bytes", b""),
}


def evaluate(annotation: str, owner: type) -> Any:
    """The object that a postponed annotation in the body of the class `owner` names."""
    structs = {name: value for name, value in vars(owner).items() if isinstance(value, type)}
    return eval(annotation, vars(sys.modules[owner.__module__]), structs)  # noqa: S307


def wire_type(annotation: Any, owner: type) -> tuple[WireType, bool]:
    """The wire type of a field's annotation, and whether the field may be null."""
    if isinstance(annotation, str):
        annotation = evaluate(annotation, owner)
    is_nullable = False
    if get_origin(annotation) in (UnionType, Union):
        annotation, null = get_args(annotation)
        if null is not type(None):
            raise TypeError(f"a field is of one type, or of one type and None, not {annotation} | {null}")
        is_nullable = True
    if get_origin(annotation) is Annotated:
        return annotation.__metadata__[0], is_nullable
    if get_origin(annotation) is list:
        item, item_is_nullable = wire_type(get_args(annotation)[0], owner)
        if item_is_nullable:
            raise TypeError(f"elements of {annotation} cannot be null")
        return WireType("array", item=item), is_nullable
    if annotation in _PLAIN:
        return _PLAIN[annotation], is_nullable
    if isinstance(annotation, type) and hasattr(annotation, "fields_at"):
        return WireType("struct", item=annotation), is_nullable
    raise TypeError(f"{annotation} is not a type of the wire")
