"""What values a key takes: a check accepts or refuses, and describes what it would accept."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

Value = bool | int | float | str | tuple[str, ...] | None
"""A parsed value: lists are tuples, passwords and class names are strings, None is Kafka's null."""


@dataclass(frozen=True, slots=True)
class Range:
    """A number from `low` up to `high`, both included; without `high` there is no upper end."""

    low: float
    high: float = math.inf
    also: float | None = None
    """One value outside the range that is taken too, such as -1 for "the codec's own"."""

    def accepts(self, value: Value) -> bool:
        if not isinstance(value, int | float):
            return False
        return self.low <= value <= self.high or value == self.also

    def __str__(self) -> str:
        text = f"at least {self.low}" if self.high == math.inf else f"{self.low} to {self.high}"
        return text if self.also is None else f"{self.also}, or {text}"


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of the listed strings."""

    values: tuple[str, ...]
    ignores_case: bool = False

    def accepts(self, value: Value) -> bool:
        if not isinstance(value, str):
            return False
        return value in self.values or (self.ignores_case and value.lower() in map(str.lower, self.values))

    def __str__(self) -> str:
        return "one of " + ", ".join(self.values)


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list whose members are among the listed strings."""

    values: tuple[str, ...]

    def accepts(self, value: Value) -> bool:
        return isinstance(value, tuple) and all(member in self.values for member in value)

    def __str__(self) -> str:
        return "a list of " + ", ".join(self.values)


@dataclass(frozen=True, slots=True)
class Matches:
    """A string, or a list as one comma-separated string, that matches a pattern as a whole."""

    pattern: re.Pattern[str]
    description: str

    def accepts(self, value: Value) -> bool:
        text = ",".join(value) if isinstance(value, tuple) else value
        return isinstance(text, str) and self.pattern.fullmatch(text) is not None

    def __str__(self) -> str:
        return self.description


Check = Range | OneOf | ListOf | Matches


def at_least(low: float) -> Range:
    return Range(low)


def between(low: float, high: float) -> Range:
    return Range(low, high)


def one_of(*values: str) -> OneOf:
    return OneOf(values)
