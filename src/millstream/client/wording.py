"""How numbers are said to people."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """`1 topic`, `2 topics`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
