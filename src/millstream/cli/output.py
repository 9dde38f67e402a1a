"""How results reach a person or a program.

A terminal gets tables drawn by rich; a pipe gets aligned columns without colour or truncation, so
that `grep` and `awk` see whole lines; `--json` gives one JSON document whose keys are stable.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Any, TypeAlias

import click

Cell: TypeAlias = str | int | float | bool | None


def print_json(value: Any) -> None:
    """One document, indented for a terminal, on one line for a pipe."""
    click.echo(json.dumps(value, indent=2 if sys.stdout.isatty() else None, ensure_ascii=False))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Cell]], *, title: str | None = None) -> None:
    """Columns whose cells are all numbers are set to the right."""
    cells = [[_text(cell) for cell in row] for row in rows]
    is_number = [
        bool(rows) and all(isinstance(row[i], int | float) or row[i] is None for row in rows)
        for i in range(len(columns))
    ]
    if sys.stdout.isatty():
        _print_rich(columns, cells, is_number, title)
    else:
        _print_plain(columns, cells, is_number)


def _text(cell: Cell) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    return str(cell)


def _print_rich(
    columns: Sequence[str], cells: list[list[str]], is_number: list[bool], title: str | None
) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False)
    for name, right in zip(columns, is_number, strict=True):
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for row in cells:
        table.add_row(*(Text(cell) for cell in row))
    Console().print(table)


def _print_plain(columns: Sequence[str], cells: list[list[str]], is_number: list[bool]) -> None:
    table = [[name.upper().replace(" ", "-") for name in columns], *cells]
    widths = [max(len(row[i]) for row in table) for i in range(len(columns))]
    for row in table:
        aligned = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, is_number, strict=True)
        ]
        click.echo("  ".join(aligned).rstrip())


def forget_stdout() -> None:
    """What reads our output has left, as `head` does: leave nothing for the interpreter to flush."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def human_bytes(size: int) -> str:
    """1536 as `1.5 KB`."""
    amount = float(size)
    for unit in ("B", "KB", "MB", "GB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TB"
