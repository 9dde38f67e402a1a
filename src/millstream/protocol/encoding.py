"""Writes the source of an encoder (see `codegen`).

An encoder appends to a bytearray. Record batches of `CHUNK_BYTES` and more are not copied: the bytes
so far and the batches become chunks, and a new bytearray takes what follows.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from millstream.errors import ProtocolError
from millstream.protocol.codegen import SHORT, Source, layouts_by_count, uvarint

if TYPE_CHECKING:
    from millstream.protocol.codegen import Encoder
    from millstream.protocol.schema import Field, Message, StructType
    from millstream.protocol.types import WireType

CHUNK_BYTES = 4096
"""Copying fewer bytes than this costs less than one more buffer to send."""


class EncoderSource(Source):
    """Source of one encoder. `pending` holds values of a fixed size that are not written yet."""

    def __init__(self, version: int, is_flexible: bool) -> None:
        super().__init__()
        self.version = version
        self.is_flexible = is_flexible
        self.out = "out"
        self.pending: list[tuple[str, str]] = []
        self.names.update(uvarint=uvarint, pack_any=struct.pack, ProtocolError=ProtocolError)

    def function(self, cls: type[Message]) -> Encoder:
        self.line("try:")
        self.indent += 1
        self.struct(cls, "o")
        self.flush()
        self.line("return out")
        self.indent -= 1
        # What an encoder raises tells of a value that does not fit its field: too big, null, of a wrong type.
        self.names["failures"] = (struct.error, AttributeError, TypeError, ValueError)
        self.line("except failures as failure:")
        title = f"{cls.__name__} v{self.version}"
        self.line(f"    raise ProtocolError(f'cannot encode {title}: {{failure}}') from failure")
        function: Encoder = self.compile(
            "encode", "o, out, chunks", f"{cls.__qualname__}.encode v{self.version}"
        )
        return function

    # Values of a fixed size.

    def write(self, format_: str, expression: str) -> None:
        """Write the expression with the next group of values of a fixed size."""
        self.pending.append((format_, expression))

    def flush(self) -> None:
        """Write the packing of the pending group."""
        if not self.pending:
            return
        formats = "".join(format_ for format_, _ in self.pending)
        values = ", ".join(expression for _, expression in self.pending if expression)
        if formats in ("x", "B"):
            self.line(f"{self.out}.append({values or 0})")
        elif not values:
            self.line(f"{self.out} += {bytes(len(formats))!r}")
        else:
            self.line(f"{self.out} += {self.layout('pack', formats)}({values})")
        self.pending = []

    # Structs and fields.

    def struct(self, cls: StructType, instance: str) -> None:
        """Encode the fields of `instance`."""
        for field in cls.fields_at(self.version):
            if field.tag is None:
                self.value(field.type, f"{instance}.{field.name}", field.may_be_null(self.version))
        if self.is_flexible:
            self.tagged_fields(cls, instance)

    def value(self, type_: WireType, expression: str, nullable: bool) -> None:
        if type_.kind == "fixed":
            self.write(type_.format, expression)
        elif type_.kind == "uuid":
            self.write("16s", f"{expression}.int.to_bytes(16, 'big')")
        elif type_.kind == "struct" and not nullable:
            instance = self.local("o")
            self.line(f"{instance} = {expression}")
            self.struct(type_.item, instance)
        elif type_.kind == "struct":
            self.nullable_struct(type_.item, expression, 255)
        else:
            self.sized(type_, expression, nullable)

    def nullable_struct(self, cls: StructType, expression: str, null: int) -> None:
        """Encode a struct behind a byte: 1, or `null` where there is none."""
        self.flush()
        instance = self.local("o")
        self.line(f"{instance} = {expression}")
        self.line(f"if {instance} is None:")
        self.line(f"    {self.out}.append({null})")
        self.line("else:")
        self.indent += 1
        self.write("b", "1")
        self.struct(cls, instance)
        self.flush()
        self.indent -= 1

    def sized(self, type_: WireType, expression: str, nullable: bool) -> None:
        """Encode a value that starts with its length: str, bytes, records or array."""
        value = self.local("v")
        self.line(f"{value} = {expression}")
        if nullable:
            before = self.pending
            self.line(f"if {value} is None:")
            self.indent += 1
            self.pending = [*before, self.null(type_.kind)]
            self.flush()
            self.indent -= 1
            self.line("else:")
            self.indent += 1
            self.pending = before
        if type_.kind == "array" and type_.item.kind == "fixed":
            self.numbers(type_.item, value)
        else:
            self.sized_value(type_, value)
        if nullable:
            self.indent -= 1

    def sized_value(self, type_: WireType, value: str) -> None:
        """Encode the length and the content of a value that is not null."""
        if type_.kind == "str":
            self.line(f"{value} = {value}.encode()")
        self.length(type_.kind, value)
        if type_.kind == "array":
            self.elements(type_.item, value)
        elif type_.kind == "records":
            self.line(f"if len({value}) < {CHUNK_BYTES}:")
            self.line(f"    {self.out} += {value}")
            self.line("else:")
            self.line(f"    chunks.append({self.out})")
            self.line(f"    chunks.append({value})")
            self.line(f"    {self.out} = bytearray()")
        else:
            self.line(f"{self.out} += {value}")

    def null(self, kind: str) -> tuple[str, str]:
        """The length that means null."""
        if self.is_flexible:
            return ("x", "")
        return ("h" if kind == "str" else "i", "-1")

    def length(self, kind: str, value: str) -> None:
        """Encode a length, packed with the values before it as long as it is of a usual size."""
        if not self.is_flexible:
            self.write("h" if kind == "str" else "i", f"len({value})")
            self.flush()
            return
        length = self.local("n")
        self.line(f"{length} = len({value}) + 1")
        before = self.pending
        cases = {f"if {length} < 128:": [("B", length)]}
        if kind == "records":
            cases[f"elif 16384 <= {length} < 2097152:"] = [
                ("B", f"{length} & 127 | 128"),
                ("B", f"{length} >> 7 & 127 | 128"),
                ("B", f"{length} >> 14"),
            ]
        cases["else:"] = []
        for condition, varint in cases.items():
            self.line(condition)
            self.indent += 1
            self.pending = [*before, *varint]
            self.flush()
            if not varint:
                self.line(f"{self.out} += uvarint({length})")
            self.indent -= 1

    def elements(self, item: WireType, items: str) -> None:
        """Encode the elements of an array."""
        element = self.local("o")
        self.line(f"for {element} in {items}:")
        self.indent += 1
        if item.kind == "struct":
            self.struct(item.item, element)
        else:
            self.value(item, element, nullable=False)
        self.flush()
        self.indent -= 1

    def numbers(self, item: WireType, items: str) -> None:
        """Encode an array of numbers, by a layout made in advance if it is short."""
        self.flush()
        count = self.local("n")
        head, value = ("B", f"{count} + 1") if self.is_flexible else ("i", count)
        layouts = self.constant("packs", layouts_by_count(item.format, "pack", head))
        self.line(f"{count} = len({items})")
        self.line(f"if {count} < {SHORT}:")
        self.line(f"    {self.out} += {layouts}[{count}]({value}, *{items})")
        self.line("else:")
        self.indent += 1
        self.length("array", items)
        self.line(f"{self.out} += pack_any(f'>{{{count}}}{item.format}', *{items})")
        self.indent -= 1

    # Tagged fields.

    def tagged_fields(self, cls: StructType, instance: str) -> None:
        """Encode the tagged fields that end a struct of a flexible version: those that differ from their
        defaults, by ascending tag."""
        fields = sorted(
            (field for field in cls.fields_at(self.version) if field.tag is not None),
            key=lambda field: field.tag or 0,
        )
        if not fields:
            self.write("x", "")
            return
        self.flush()
        present = [self.is_given(field, f"{instance}.{field.name}") for field in fields]
        self.line(f"if not ({' or '.join(present)}):")
        self.line(f"    {self.out}.append(0)")
        self.line("else:")
        self.indent += 1
        outer, count, body = self.out, self.local("t"), self.local("body")
        self.line(f"{count} = 0")
        self.line(f"{body} = bytearray()")
        for field, condition in zip(fields, present, strict=True):
            self.out = self.local("out")
            self.line(f"if {condition}:")
            self.indent += 1
            self.line(f"{self.out} = bytearray()")
            if field.is_marked:
                self.nullable_struct(field.type.item, f"{instance}.{field.name}", 0)
            else:
                self.value(field.type, f"{instance}.{field.name}", field.may_be_null(self.version))
            self.flush()
            self.line(f"{count} += 1")
            self.line(f"{body} += uvarint({field.tag})")
            self.line(f"{body} += uvarint(len({self.out}))")
            self.line(f"{body} += {self.out}")
            self.indent -= 1
        self.out = outer
        self.line(f"{self.out}.append({count})")
        self.line(f"{self.out} += {body}")
        self.indent -= 1

    def is_given(self, field: Field, expression: str) -> str:
        """An expression for whether a tagged field has to be written."""
        if field.is_marked:
            return "True"
        if field.type.kind in ("fixed", "str", "bytes"):
            if field.default is None:
                return f"{expression} is not None"
            return f"{expression} != {self.literal(field)}"
        if field.type.kind == "array" and field.default is not None:
            return expression
        if field.type.kind == "uuid":
            default = self.literal(field)
            return f"({expression} is not {default} and {expression} != {default})"
        return f"{expression} is not None"
