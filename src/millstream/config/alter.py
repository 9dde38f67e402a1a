"""What IncrementalAlterConfigs asks for (KIP-339), as a pure function from old texts to new ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from typing import NamedTuple

from millstream.config.broker_keys import BROKER_KEYS, find_key
from millstream.config.checks import Value
from millstream.config.keys import ConfigKey, nearest
from millstream.config.topic import REMOVED
from millstream.errors import InvalidConfig, InvalidRequest


class Op(IntEnum):
    """What to do with a key, by the protocol's numbers."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class AlterOp(NamedTuple):
    """One change of one key. The value does not matter for DELETE."""

    name: str
    op: int
    value: str | None


def altered(
    texts: Mapping[str, str],
    ops: Iterable[AlterOp],
    keys: Mapping[str, ConfigKey],
    inherited: Callable[[str], Value],
) -> dict[str, str]:
    """The texts after all changes; InvalidRequest or InvalidConfig if one cannot be made.

    APPEND and SUBTRACT work on what holds now, and make it the resource's own: where the resource does not
    set a list, on what is `inherited`.
    Whether the new texts are valid is for `check_topic_overrides` and `set_dynamic` to say.
    """
    result = dict(texts)
    done: set[str] = set()
    for name, op, value in ops:
        if name in done:
            raise InvalidRequest(f"{name} is altered twice in one request")
        done.add(name)
        key = _key(name, keys)
        if op == Op.DELETE:
            result.pop(name, None)
            continue
        if value is None:
            raise InvalidRequest(f"{name} needs a value")
        if op == Op.SET:
            result[name] = value
        elif op in (Op.APPEND, Op.SUBTRACT):
            if key.kind != "list":
                raise InvalidConfig(f"{name} is not a list; set it instead of appending or subtracting")
            before = _members(result[name]) if name in result else _inherited_members(inherited(name))
            given = _members(value)
            if op == Op.APPEND:
                after = before + [member for member in given if member not in before]
            else:
                after = [member for member in before if member not in given]
            result[name] = ",".join(after)
        else:
            raise InvalidRequest(f"{op} is no way to alter a configuration")
    return result


def _members(text: str) -> list[str]:
    """The members of a list's text, not checked: what is taken away need not be valid."""
    return list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def _inherited_members(value: Value) -> list[str]:
    return list(value) if isinstance(value, tuple) else []


def _key(name: str, keys: Mapping[str, ConfigKey]) -> ConfigKey:
    key = find_key(name) if keys is BROKER_KEYS else keys.get(name)
    if key is None:
        hint = f": {REMOVED[name]}" if name in REMOVED else nearest(name, keys)
        raise InvalidConfig(f"unknown config {name}{hint}")
    return key
