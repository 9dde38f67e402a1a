"""How a message is declared: one class for all its versions.

    class HeartbeatRequest(Request, key=12, versions=(0, 4), flexible=4):
        group_id: str
        generation_id: i32
        member_id: str
        group_instance_id: str | None = since(3)

Fields stand in the order of the wire. A field without a version mark is in all versions; the marks
`since`, `until`, `tagged` and `null_since` say where it is not. The structs of a message are classes
inside it and name each other in full (`list[ProduceRequest.PartitionProduceData]`); annotations are
evaluated late, in their module. From version `flexible` on, strings and arrays have compact lengths
and every struct ends with tagged fields (KIP-482); unknown tagged fields are skipped.

Every field has a default: the one declared, else the zero of its type (0, "", False, [], NO_UUID, a
struct of defaults), and None where the type is `X | None`, except that `list[X] | None` is []. A tagged
struct is declared `X | None`; None means that it is not sent. At run time every argument of a
constructor may be left out; a type checker wants those that are in all versions and have no declared
default, because forgetting one, such as a partition's index, is a mistake.

Codecs are generated as Python source, one for each class and version, on first use (`codegen`).
Importing this module's users must stay cheap: nothing is generated when a class is made.
"""

from collections.abc import Callable
from typing import Any, ClassVar, Self, dataclass_transform

from millstream.errors import ProtocolError
from millstream.protocol import codegen
from millstream.protocol.types import Buffer, WireType, wire_type

UNSET: Any = codegen.UNSET
ALL_VERSIONS = 32767
MAX_REQUEST_ELEMENTS = 131_072
"""A request is decoded in one go while all other clients wait, so there is an end to what it may list."""


class Field:
    """One field of a struct: its type, its default, and the versions in which it is on the wire.

    `type` is read from the annotation when a codec first asks for it, and with it `is_nullable` and the
    `default` of a field that declares none.
    """

    __slots__ = (
        "_annotation",
        "_owner",
        "_type",
        "default",
        "is_marked",
        "is_nullable",
        "name",
        "null_since",
        "since",
        "tag",
        "until",
    )

    name: str
    _owner: type
    _annotation: Any

    def __init__(
        self,
        default: Any = UNSET,
        *,
        since: int = 0,
        until: int = ALL_VERSIONS,
        tag: int | None = None,
        null_since: int = 0,
        is_marked: bool = False,
    ) -> None:
        self.default = default
        self.since = since
        self.until = until
        self.tag = tag
        self.null_since = null_since
        self.is_marked = is_marked
        self.is_nullable = False
        self._type: WireType | None = None

    def bind(self, owner: type, name: str, annotation: Any) -> None:
        """Tell the field where it is declared."""
        self._owner = owner
        self._annotation = annotation
        self.name = name

    @property
    def type(self) -> WireType:
        if self._type is None:
            self._type, self.is_nullable = wire_type(self._annotation, self._owner)
            if self.default is UNSET:
                self.default = self._zero(self._type)
        return self._type

    def _zero(self, type_: WireType) -> Any:
        if type_.kind == "array":
            return []
        if self.is_nullable:
            return None
        return type_.item() if type_.kind == "struct" else type_.zero

    def is_in(self, version: int) -> bool:
        return self.since <= version <= self.until

    def may_be_null(self, version: int) -> bool:
        """Whether null can be on the wire. A tagged struct is left out instead, unless it is marked."""
        if self.type.kind == "struct" and self.tag is not None:
            return self.is_marked
        return self.is_nullable and version >= self.null_since


def since(version: int, default: Any = UNSET, *, until: int = ALL_VERSIONS, null_since: int = 0) -> Any:
    """A field that is on the wire from `version` on (to `until`)."""
    return Field(default, since=version, until=until, null_since=null_since)


def until(version: int, default: Any = UNSET, *, null_since: int = 0) -> Any:
    """A field that is on the wire up to `version`."""
    return Field(default, until=version, null_since=null_since)


def tagged(
    tag: int, default: Any = UNSET, *, since: int, until: int = ALL_VERSIONS, is_marked: bool = False
) -> Any:
    """A tagged field (KIP-482): written only where it differs from its default.

    A marked struct is always written, after a byte that says whether it is there (1) or null (0).
    """
    return Field(default, since=since, until=until, tag=tag, is_marked=is_marked)


def optional(default: Any = UNSET) -> Any:
    """A field of all versions that a constructor may leave out, for a type checker too."""
    return Field(default)


def null_since(version: int, default: Any = UNSET) -> Any:
    """A field of all versions that may be null from `version` on only."""
    return Field(default, null_since=version)


@dataclass_transform(kw_only_default=True, eq_default=True)
class StructType(type):
    """Makes slots and `Field`s of the annotations of a declaration."""

    fields: tuple[Field, ...]

    def __new__(
        mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **keywords: Any
    ) -> "StructType":
        if "__slots__" in namespace:
            return super().__new__(mcs, name, bases, namespace, **keywords)
        annotations = namespace.get("__annotations__", {})
        fields = []
        for attribute in annotations:
            if any(hasattr(base, attribute) for base in bases):
                raise TypeError(f"{name}.{attribute} hides an attribute that every struct has")
            declared = namespace.pop(attribute, UNSET)
            fields.append(declared if type(declared) is Field else Field(declared))
        namespace["__slots__"] = tuple(annotations)
        cls = super().__new__(mcs, name, bases, namespace, **keywords)
        for field, attribute in zip(fields, annotations, strict=True):
            field.bind(cls, attribute, annotations[attribute])
        cls.fields = tuple(fields)
        return cls

    def fields_at(cls, version: int) -> list[Field]:
        """The fields on the wire at `version`, tagged ones too."""
        return [field for field in cls.fields if field.is_in(version)]


class Struct(metaclass=StructType):
    """A group of fields: mutable, compared by value, without versions of its own."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]

    fields: ClassVar[tuple[Field, ...]] = ()

    def __init__(self, **values: Any) -> None:
        # The constructor is generated when the first object is made and takes this one's place.
        cls = type(self)
        cls.__init__ = codegen.constructor(cls)  # type: ignore[method-assign]
        cls.__init__(self, **values)

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return all(getattr(self, field.name) == getattr(other, field.name) for field in self.fields)

    def __repr__(self) -> str:
        """The fields that differ from their defaults; record batches by their size alone."""
        shown = []
        for field in self.fields:
            kind, value = field.type.kind, getattr(self, field.name)
            if kind == "records" and value is not None:
                shown.append(f"{field.name}=<{len(value)} bytes>")
            elif value != field.default:
                shown.append(f"{field.name}={value!r}")
        return f"{type(self).__name__}({', '.join(shown)})"


class Message(Struct):
    """A struct with versions, that is encoded and decoded by itself."""

    __slots__ = ()

    versions: ClassVar[tuple[int, int]]
    """The first and the last version that are declared."""
    flexible: ClassVar[int | None]
    """The first version with compact lengths and tagged fields; None if there is none."""
    may_be_followed: ClassVar[bool] = False
    """Whether bytes behind the message are passed over; else they make it invalid."""
    max_elements: ClassVar[int | None] = None
    """The most elements that all its arrays have together (see `decoding`), however large it is."""
    _decoders: ClassVar[dict[int, Callable[[Buffer, int], Any]]]
    _encoders: ClassVar[dict[int, codegen.Encoder]]

    def __init_subclass__(
        cls, *, versions: tuple[int, int] | None = None, flexible: int | None = None, **keywords: Any
    ) -> None:
        super().__init_subclass__(**keywords)
        if versions is not None:
            cls.versions = versions
            cls.flexible = flexible
        cls._decoders = {}
        cls._encoders = {}

    @classmethod
    def decode(cls, data: Buffer, version: int, offset: int = 0) -> Self:
        """The message that lies in `data` from `offset` on; ProtocolError if none does."""
        decoder = cls._decoders.get(version)
        if decoder is None:
            decoder = cls.decoder(version)
        return decoder(data, offset)

    def encode(self, version: int) -> bytes:
        """The message's bytes at `version`; fields that the version lacks are left out."""
        return b"".join(self.encode_chunks(version))

    def encode_chunks(self, version: int) -> list[Buffer]:
        """Like `encode`, with big record batches left as chunks of their own, not copied."""
        chunks: list[Buffer] = []
        last = self.encoder(version)(self, bytearray(), chunks)
        chunks.append(last)
        return chunks

    @classmethod
    def decoder(cls, version: int) -> Callable[[Buffer, int], Self]:
        """The generated function (data, offset) -> message."""
        try:
            return cls._decoders[version]
        except KeyError:
            cls._check_version(version)
            cls._decoders[version] = decoder = codegen.decoder(cls, version, cls.is_flexible(version))
            return decoder

    @classmethod
    def encoder(cls, version: int) -> codegen.Encoder:
        """The generated function (message, out, chunks) -> the bytearray to go on writing to."""
        try:
            return cls._encoders[version]
        except KeyError:
            cls._check_version(version)
            cls._encoders[version] = encoder = codegen.encoder(cls, version, cls.is_flexible(version))
            return encoder

    @classmethod
    def is_flexible(cls, version: int) -> bool:
        return cls.flexible is not None and version >= cls.flexible

    @classmethod
    def _check_version(cls, version: int) -> None:
        if not cls.versions[0] <= version <= cls.versions[1]:
            first, last = cls.versions
            raise ProtocolError(f"{cls.__name__} has versions {first} to {last}, not {version}")


class Request(Message):
    """What a client asks: `key` is its API, `response` the class of its answer.

    Bytes behind a request are passed over, as Kafka does: librdkafka 2.16 sends some with Metadata.
    """

    __slots__ = ()

    may_be_followed = True
    max_elements: ClassVar[int | None] = MAX_REQUEST_ELEMENTS

    key: ClassVar[int]
    response: ClassVar[type["Response"]]
    advertised: ClassVar[tuple[int, int]]
    """The versions that ApiVersions tells clients of; the declared ones unless said otherwise."""

    def __init_subclass__(
        cls,
        *,
        key: int,
        versions: tuple[int, int],
        flexible: int | None,
        advertised: tuple[int, int] | None = None,
    ) -> None:
        super().__init_subclass__(versions=versions, flexible=flexible)
        cls.key = key
        cls.advertised = advertised or versions


class Response(Message):
    """What the broker answers to the request class `to`, in the version of the request."""

    __slots__ = ()

    key: ClassVar[int]
    request: ClassVar[type[Request]]

    def __init_subclass__(cls, *, to: type[Request]) -> None:
        super().__init_subclass__(versions=to.versions, flexible=to.flexible)
        cls.key = to.key
        cls.request = to
        to.response = cls
