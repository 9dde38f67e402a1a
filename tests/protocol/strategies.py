"""Hypothesis strategies for every message at every version, and its translation to and from kio."""

import dataclasses
import datetime
import importlib
import io
import re
from collections.abc import Callable
from typing import Any
from uuid import UUID

from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from millstream.model import NO_UUID
from millstream.protocol.messages import REQUESTS, ConsumerProtocolAssignment, ConsumerProtocolSubscription
from millstream.protocol.schema import Field, Message, Struct, StructType
from millstream.protocol.types import WireType

MESSAGES: list[type[Message]] = [
    *(message for request in REQUESTS.values() for message in (request, request.response)),
    ConsumerProtocolSubscription,
    ConsumerProtocolAssignment,
]
CASES = [
    (message, version)
    for message in MESSAGES
    for version in range(message.versions[0], message.versions[1] + 1)
]
CASE_IDS = [f"{message.__name__}-v{version}" for message, version in CASES]

INTEGERS = {"b": 8, "h": 16, "i": 32, "q": 64}
ERROR_CODES = [int(code) for code in ErrorCode]
texts = st.text(max_size=6) | st.sampled_from(["", "topic", "é✓", "x" * 127, "x" * 200])
blobs = st.binary(max_size=6) | st.sampled_from([b"", b"\0" * 130])
uuids = st.just(NO_UUID) | st.uuids()


def values(type_: WireType, field: Field, version: int) -> st.SearchStrategy[Any]:
    """Values of a wire type; `field` bounds those that kio holds in narrower types."""
    if type_.kind == "fixed":
        return numbers(type_, field.name)
    if type_.kind == "struct":
        return structs(type_.item, version)
    if type_.kind == "array":
        return st.lists(values(type_.item, field, version), max_size=3)
    return {"uuid": uuids, "str": texts, "bytes": blobs, "records": blobs}[type_.kind]


def numbers(type_: WireType, name: str) -> st.SearchStrategy[Any]:
    if type_.format == "?":
        return st.booleans()
    if name.endswith("error_code"):
        return st.sampled_from(ERROR_CODES)
    bits = INTEGERS[type_.format]
    if name.endswith("_ms") and bits == 64:
        return st.integers(0, 2**41).map(lambda seconds: seconds // 1000 * 1000)
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


OWN_TAGS = 30000


def structs(cls: StructType, version: int) -> st.SearchStrategy[Any]:
    """Structs with any values in the fields that `version` has and defaults in the others."""
    fields: dict[str, st.SearchStrategy[Any]] = {}
    for field in cls.fields_at(version):
        if field.tag is not None and field.tag >= OWN_TAGS:
            continue  # Millstream's own; kio knows Kafka's
        strategy = values(field.type, field, version)
        if field.tag is not None and field.type.kind == "struct":
            # None and a struct of defaults both mean that nothing is sent; kio knows only the latter.
            strategy = st.none() | strategy.filter(differs_from(field.type.item()))
        elif field.may_be_null(version):
            strategy = st.none() | strategy
        fields[field.name] = strategy
    return st.builds(cls, **fields)


def differs_from(empty: Struct) -> Callable[[Any], bool]:
    return lambda value: bool(value != empty)


# Translation to and from kio, whose classes are made for one version each.


def kio_class(message: type[Message], version: int) -> Any:
    kinds = ("request", "response")
    kind = next((kind for kind in kinds if message.__name__.endswith(kind.title())), "data")
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", message.__name__.removesuffix(kind.title())).lower()
    module = importlib.import_module(f"kio.schema.{name}.v{version}.{kind}")
    return getattr(module, message.__name__)


def kio_encode(entity: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


def kio_decode(cls: Any, data: bytes) -> Any:
    entity, size = entity_reader(cls)(data, 0)
    assert size == len(data)
    return entity


def our_name(field: Any, cls: Any) -> str:
    """Our name of a kio field: kio drops the unit of times, and we keep `key` for the API's key."""
    if field.name == "key" and cls.__name__ == "FindCoordinatorRequest":
        return "coordinator_key"
    is_time = re.match(r"timedelta|datetime", field.metadata.get("kafka_type", ""))
    return f"{field.name}_ms" if is_time else str(field.name)


def to_kio(struct: Struct, cls: Any) -> Any:
    """The kio entity of class `cls` with the values of `struct`."""
    return cls(
        **{
            field.name: kio_value(getattr(struct, our_name(field, cls)), field)
            for field in dataclasses.fields(cls)
        }
    )


def element_class(field: Any) -> Any:
    """The entity class in a kio field's type, if there is one."""
    pending = [field.type]
    while pending:
        type_ = pending.pop()
        if dataclasses.is_dataclass(type_):
            return type_
        pending.extend(getattr(type_, "__args__", ()))
    return None


def kio_value(value: Any, field: Any) -> Any:
    kafka_type = field.metadata.get("kafka_type", "")
    if isinstance(value, list):
        inner = element_class(field)
        return tuple(
            to_kio(element, inner) if inner else kio_scalar(element, kafka_type) for element in value
        )
    if isinstance(value, Struct):
        return to_kio(value, element_class(field))
    if value is None and "tag" in field.metadata:
        return field.default
    return kio_scalar(value, kafka_type)


def kio_scalar(value: Any, kafka_type: str) -> Any:
    if kafka_type == "error_code":
        return ErrorCode(value)
    if kafka_type.startswith("timedelta"):
        return datetime.timedelta(milliseconds=value)
    if kafka_type.startswith("datetime"):
        return None if value == -1 else datetime.datetime.fromtimestamp(value / 1000, datetime.UTC)
    if isinstance(value, UUID) and value == NO_UUID:
        return None
    return value
