"""Writes the source of a decoder (see `codegen`).

Bounds: a read by index or by `struct` beyond the frame raises by itself; a slice would not, so every
slice is checked first. The count of an array is checked against the bytes that remain, divided by the
least size of an element, before anything is allocated. An object takes far more memory than the two or
three bytes that the smallest struct has on the wire, so the elements of all arrays of a message together,
and its unknown tagged fields, are bounded too: FREE_ELEMENTS, and one for each ELEMENT_BYTES of the message.
Four numbers of two bytes or more count as one element. A class can set a limit of its own beside that
(`Message.max_elements`).
"""

from __future__ import annotations

import struct
from functools import lru_cache
from itertools import repeat
from typing import TYPE_CHECKING
from uuid import UUID

from millstream.errors import ProtocolError
from millstream.protocol.codegen import SHORT, Source, layouts_by_count, read_uvarint

if TYPE_CHECKING:
    from millstream.protocol.codegen import Decoder
    from millstream.protocol.schema import Field, Message, StructType
    from millstream.protocol.types import WireType

FREE_ELEMENTS = 65536
ELEMENT_BYTES = 16
SWEEP_ELEMENTS = 4
"""From how many structs of a fixed size on one sweep is faster than one by one."""


@lru_cache(maxsize=4096)
def uuid_of(data: bytes) -> UUID:
    # Making a UUID costs as much as decoding a whole partition, and topics' ids come again and again.
    return UUID(bytes=data)


def skip_tagged(data: memoryview, position: int, size: int, left: int) -> tuple[int, int]:
    """The position after tagged fields of which none is known; `position` is that of their count.

    There may be `left` of them; how many more there may be is told too.
    """
    count, position = read_uvarint(data, position)
    if count > left:
        raise ProtocolError(f"it has too many elements for its size: {count} are tagged fields")
    for _ in range(count):
        _, position = read_uvarint(data, position)
        length, position = read_uvarint(data, position)
        position += length
        if position > size:
            raise ProtocolError("a tagged field ends beyond the message")
    return position, left - count


class DecoderSource(Source):
    """Source of one decoder. `pending` holds values of a fixed size that are not read yet."""

    def __init__(self, version: int, is_flexible: bool) -> None:
        super().__init__()
        self.version = version
        self.is_flexible = is_flexible
        self.pending: list[tuple[str, int, str]] = []
        self.after: list[str] = []
        self.names.update(
            new=object.__new__, read_uvarint=read_uvarint, uuid_of=uuid_of, ProtocolError=ProtocolError
        )

    def function(self, cls: type[Message]) -> Decoder:
        self.line("if type(buf) is not memoryview:")
        self.line("    buf = memoryview(buf)")
        self.line("size = len(buf)")
        self.line(f"left = {FREE_ELEMENTS} + size // {ELEMENT_BYTES}")
        if cls.max_elements is not None:
            self.line(f"if left > {cls.max_elements}:")
            self.line(f"    left = {cls.max_elements}")
        self.line("try:")
        self.indent += 1
        result = self.struct(cls)
        self.flush()
        if not cls.may_be_followed:
            self.line("if pos != size:")
            self.line("    raise ProtocolError(f'{size - pos} bytes follow its end')")
        self.line(f"return {result}")
        self.indent -= 1
        self.names["failures"] = (IndexError, struct.error, UnicodeDecodeError, ProtocolError)
        self.line("except failures as failure:")
        self.line(f"    raise ProtocolError(f'not a {cls.__name__} v{self.version}: {{failure}}') from None")
        function: Decoder = self.compile("decode", "buf, pos", f"{cls.__qualname__}.decode v{self.version}")
        return function

    # Values of a fixed size.

    def read(self, format_: str, size: int, target: str) -> None:
        """Read `target` with the next group of values of a fixed size."""
        self.pending.append((format_, size, target))

    def flush(self) -> None:
        """Write the reading of the pending group."""
        if not self.pending:
            return
        targets = [target for _, _, target in self.pending]
        if len(self.pending) == 1 and self.pending[0][0] == "B":
            self.line(f"{targets[0]} = buf[pos]")
            self.line("pos += 1")
        else:
            layout = self.layout("unpack_from", "".join(f for f, _, _ in self.pending))
            self.line(f"{', '.join(targets)}, = {layout}(buf, pos)")
            self.line(f"pos += {sum(size for _, size, _ in self.pending)}")
        self.pending = []
        for text in self.after:
            self.line(text)
        self.after = []

    # Structs and fields.

    def struct(self, cls: StructType) -> str:
        """Decode a new object of `cls`; its name."""
        instance = self.local("o")
        self.line(f"{instance} = new({self.constant('Cls', cls)})")
        self.defaults(cls, instance)
        for field in cls.fields_at(self.version):
            if field.tag is None:
                self.value(
                    field.type, f"{instance}.{field.name}", field.name, field.may_be_null(self.version)
                )
        if self.is_flexible:
            self.tagged_fields(cls, instance)
        return instance

    def defaults(self, cls: StructType, instance: str) -> None:
        """Set the fields that this version lacks, or may leave out, to their defaults."""
        by_literal: dict[str, list[str]] = {}
        for field in cls.fields:
            if not field.is_in(self.version) or field.tag is not None:
                if field.type.kind in ("array", "struct") and field.default is not None:
                    self.line(f"{instance}.{field.name} = {self.literal(field)}")
                else:
                    by_literal.setdefault(self.literal(field), []).append(f"{instance}.{field.name}")
        for literal, targets in by_literal.items():
            self.line(f"{' = '.join(targets)} = {literal}")

    def value(self, type_: WireType, target: str, name: str, nullable: bool) -> None:
        """Decode one value into `target`; `name` is told in errors."""
        if type_.kind == "fixed":
            self.read(type_.format, type_.size, target)
        elif type_.kind == "uuid":
            raw = self.local("u")
            self.read("16s", 16, raw)
            self.after.append(f"{target} = uuid_of({raw})")
        elif type_.kind == "struct" and not nullable:
            self.flush()
            self.line(f"{target} = {self.struct(type_.item)}")
        elif type_.kind == "struct":
            self.nullable_struct(type_, target, 0)
        else:
            self.sized(type_, target, name, nullable)

    def nullable_struct(self, type_: WireType, target: str, least: int) -> None:
        """Decode a struct behind a byte; less than `least` says that there is none."""
        is_present = self.local("n")
        self.read("b", 1, is_present)
        self.flush()
        self.line(f"if {is_present} < {least}:")
        self.line(f"    {target} = None")
        self.line("else:")
        self.indent += 1
        instance = self.struct(type_.item)
        self.flush()
        self.line(f"{target} = {instance}")
        self.indent -= 1

    def sized(self, type_: WireType, target: str, name: str, nullable: bool) -> None:
        """Decode a value that starts with its length: str, bytes, records or array."""
        length = self.length(type_.kind)
        self.line(f"if {length} < 0:")
        if nullable:
            self.line(f"    {target} = None")
            self.line("else:")
            self.indent += 1
        else:
            self.line(f"    raise ProtocolError('{name} is null')")
        if type_.kind == "array":
            self.array(type_.item, target, name, length)
        else:
            end = self.local("e")
            self.line(f"{end} = pos + {length}")
            self.line(f"if {end} > size:")
            self.line(f"    raise ProtocolError('{name} ends beyond the message')")
            piece = {
                "str": f"buf[pos:{end}].tobytes().decode()",
                "bytes": f"buf[pos:{end}].tobytes()",
                "records": f"buf[pos:{end}]",
            }[type_.kind]
            self.line(f"{target} = {piece}")
            self.line(f"pos = {end}")
        if nullable:
            self.indent -= 1

    def length(self, kind: str) -> str:
        """Read a length, negative for null; the name of the variable that holds it."""
        length = self.local("n")
        if self.is_flexible:
            self.read("B", 1, length)
            self.flush()
            self.rest_of_varint(length)
            self.line(f"{length} -= 1")
        else:
            self.read(*(("h", 2) if kind == "str" else ("i", 4)), length)
            self.flush()
        return length

    def rest_of_varint(self, target: str) -> None:
        """Read a varint again, of which the first byte says that it has more."""
        self.line(f"if {target} > 127:")
        self.line(f"    {target}, pos = read_uvarint(buf, pos - 1)")

    # Arrays.

    def array(self, item: WireType, target: str, name: str, count: str) -> None:
        """Decode `count` elements."""
        self.line(f"if {count} > (size - pos) // {self.least_size(item)}:")
        self.line(f"    raise ProtocolError(f'{name} cannot have {{{count}}} elements')")
        self.take_elements(count if item.size < 2 else f"{count} // 4")
        if item.kind == "fixed":
            layouts = self.constant("unpacks", layouts_by_count(item.format, "unpack_from"))
            self.names["unpack_any"] = struct.unpack_from
            self.line(f"{target} = list({layouts}[{count}](buf, pos) if {count} < {SHORT}")
            self.line(f"    else unpack_any(f'>{{{count}}}{item.format}', buf, pos))")
            self.line(f"pos += {count} * {item.size}")
            return
        items = self.local("items")
        if item.kind == "struct" and self.has_fixed_size(item.item):
            self.array_of_fixed(item.item, target, items, count)
            self.line("else:")
            self.indent += 1
            self.elements(item, target, items, name, count)
            self.indent -= 1
        else:
            self.elements(item, target, items, name, count)

    def take_elements(self, count: str) -> None:
        """Refuse the message if it has more elements than it may."""
        self.line(f"left -= {count}")
        self.line("if left < 0:")
        self.line("    raise ProtocolError('it has too many elements for its size')")

    def elements(self, item: WireType, target: str, items: str, name: str, count: str) -> None:
        """Decode elements one by one."""
        self.line(f"{target} = {items} = []")
        self.line(f"for _ in range({count}):")
        self.indent += 1
        if item.kind == "struct":
            element = self.struct(item.item)
        else:
            element = self.local("v")
            self.value(item, element, name, nullable=False)
        self.flush()
        self.line(f"{items}.append({element})")
        self.indent -= 1

    def array_of_fixed(self, cls: StructType, target: str, items: str, count: str) -> None:
        """Under a condition, decode structs that all take the same bytes in one sweep. The condition is
        that they are enough to be worth it and, in flexible versions, that none has tagged fields."""
        self.names["repeat"] = repeat
        instance, end = self.local("o"), self.local("e")
        fields = [field for field in cls.fields_at(self.version) if field.tag is None]
        formats = "".join(field.type.format for field in fields) + ("x" if self.is_flexible else "")
        size = struct.calcsize(f">{formats}")
        layout = self.layout("iter_unpack", formats)
        targets = []
        for field in fields:
            if field.type.kind == "uuid":
                targets.append(self.local("u"))
                self.after.append(f"{instance}.{field.name} = uuid_of({targets[-1]})")
            else:
                targets.append(f"{instance}.{field.name}")
        self.line(f"{end} = pos + {count} * {size}")
        condition = f"{count} >= {SWEEP_ELEMENTS}"
        if self.is_flexible:
            condition += f" and buf[pos + {size - 1}:{end}:{size}].tobytes().count(0) == {count}"
        self.line(f"if {condition}:")
        self.indent += 1
        self.line(f"{target} = {items} = list(map(new, repeat({self.constant('Cls', cls)}, {count})))")
        self.line(f"for {instance}, ({', '.join(targets)},) in zip({items}, {layout}(buf[pos:{end}])):")
        self.indent += 1
        self.defaults(cls, instance)
        for text in self.after:
            self.line(text)
        self.after = []
        self.line("pass")
        self.indent -= 1
        self.line(f"pos = {end}")
        self.indent -= 1

    def has_fixed_size(self, cls: StructType) -> bool:
        """Whether the struct takes the same bytes each time, tagged fields aside."""
        fields = [field for field in cls.fields_at(self.version) if field.tag is None]
        return bool(fields) and all(field.type.kind in ("fixed", "uuid") for field in fields)

    def least_size(self, type_: WireType) -> int:
        """The fewest bytes that a value can take: what bounds the count of an array."""
        if type_.kind in ("fixed", "uuid"):
            return type_.size
        if type_.kind == "struct":
            least = 1 if self.is_flexible else 0
            for field in type_.item.fields_at(self.version):
                if field.tag is None:
                    is_marked = field.type.kind == "struct" and field.may_be_null(self.version)
                    least += 1 if is_marked else self.least_size(field.type)
            if not least:
                raise TypeError(f"{type_.item.__qualname__} takes no bytes in version {self.version}")
            return least
        if self.is_flexible:
            return 1
        return 2 if type_.kind == "str" else 4

    # Tagged fields.

    def tagged_fields(self, cls: StructType, instance: str) -> None:
        """Decode the tagged fields that end a struct of a flexible version."""
        count = self.local("t")
        self.read("B", 1, count)
        self.flush()
        self.line(f"if {count}:")
        fields = [field for field in cls.fields_at(self.version) if field.tag is not None]
        if not fields:
            self.names["skip_tagged"] = skip_tagged
            self.line("    pos, left = skip_tagged(buf, pos - 1, size, left)")
            return
        tag, length, end = (self.local(prefix) for prefix in ("tag", "n", "e"))
        self.indent += 1
        self.rest_of_varint(count)
        self.take_elements(count)
        self.line(f"for _ in range({count}):")
        self.indent += 1
        for part in (tag, length):
            self.read("B", 1, part)
            self.flush()
            self.rest_of_varint(part)
        self.line(f"{end} = pos + {length}")
        self.line(f"if {end} > size:")
        self.line("    raise ProtocolError('a tagged field ends beyond the message')")
        for field in fields:
            self.tagged_field(field, instance, tag, end)
        self.line(f"pos = {end}")
        self.indent -= 2

    def tagged_field(self, field: Field, instance: str, tag: str, end: str) -> None:
        self.line(f"if {tag} == {field.tag}:")
        self.indent += 1
        if field.is_marked:
            self.nullable_struct(field.type, f"{instance}.{field.name}", 1)
        else:
            self.value(field.type, f"{instance}.{field.name}", field.name, field.may_be_null(self.version))
        self.flush()
        self.line(f"if pos != {end}:")
        self.line(f"    raise ProtocolError('{field.name} does not fill its tagged field')")
        self.indent -= 1
