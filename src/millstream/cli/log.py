"""`millstream log dump`: what a broker's files hold, without the broker."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any

import click

from millstream.cli.index_check import check_beside
from millstream.cli.log_files import BadFile, Entry, entries_of, files_in, kind_of
from millstream.cli.output import human_bytes, print_json, print_table
from millstream.cli.progress import Progress
from millstream.errors import MillstreamError


@click.group()
def log() -> None:
    """Look into a broker's files without the broker."""


@log.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(exists=True), metavar="PATH...")
@click.option("-r", "--records", "with_records", is_flag=True, help="Show the records of each batch.")
@click.option("--check", is_flag=True, help="Only check the files and say what they hold in a line each.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object for each entry, a line each.")
def dump(paths: tuple[str, ...], with_records: bool, check: bool, as_json: bool) -> int:
    """Show what files hold: segments, indexes, producer snapshots, checkpoints; of folders, all of them.

    Every batch's checksum and offsets are verified; with --check, indexes are held against the segment
    beside them. A file that is damaged is named, with the place,
    and the exit code is 1.

    \b
    Examples:
      millstream log dump millstream-data/orders-0/00000000000000000000.log --records
      millstream log dump millstream-data/orders-0
      millstream log dump millstream-data --check
    """
    files: list[str] = []
    for path in paths:
        files += files_in(path) if os.path.isdir(path) else [path]
    if not files:
        raise click.ClickException(f"there are none of a broker's files in {', '.join(paths)}")
    failures = _check(files, as_json) if check else _dump(files, with_records, as_json)
    for failure in failures:
        click.echo(f"{click.style('damaged:', fg='red')} {failure}", err=True)
    return 1 if failures else 0


def _dump(files: list[str], with_records: bool, as_json: bool) -> list[str]:
    failures = []
    for number, path in enumerate(files):
        if not as_json:
            click.echo(f"{'' if number == 0 else chr(10)}{path}")
        try:
            for entry in entries_of(path, with_records=with_records):
                if as_json:
                    click.echo(json.dumps({"file": path, **entry}, ensure_ascii=False))
                else:
                    _print_entry(entry)
        except MillstreamError as error:
            failures.append(_failure(path, error))
    return failures


def _failure(path: str, error: MillstreamError) -> str:
    return str(error) if isinstance(error, BadFile) else f"{path}: {error}"


def _print_entry(entry: Entry) -> None:
    records = entry.pop("records", [])
    click.echo("  " + "  ".join(f"{name}={_shown(value)}" for name, value in entry.items()))
    for record in records:
        click.echo("    " + "  ".join(f"{name}={_shown(value)}" for name, value in record.items()))


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return (
            "["
            + ", ".join(f"{item['key']}={item.get('value', item.get('value_base64'))!r}" for item in value)
            + "]"
        )
    return str(value) if isinstance(value, int) else json.dumps(value, ensure_ascii=False)


@dataclass(slots=True)
class _Summary:
    """What one file holds, in a line."""

    file: str
    size: int
    entries: int = 0
    records: int = 0
    first_offset: int | None = None
    last_offset: int | None = None
    error: str | None = None

    def add(self, entry: Entry) -> None:
        self.entries += 1
        if "base_offset" in entry:
            self.records += entry["count"]
            if self.first_offset is None:
                self.first_offset = entry["base_offset"]
            self.last_offset = entry["last_offset"]


def _check(files: list[str], as_json: bool) -> list[str]:
    summaries = []
    total = sum(os.path.getsize(path) for path in files)
    with Progress("checking", total, "bytes") as progress:
        for path in files:
            summary = _Summary(path, os.path.getsize(path))
            done = 0
            try:
                for entry in entries_of(path, check_records=True):
                    summary.add(entry)
                    step = entry.get("size", 0)
                    done += step
                    progress.advance(step)
                check_beside(path)
            except MillstreamError as error:
                summary.error = _failure(path, error)
            progress.advance(max(0, summary.size - done))
            summaries.append(summary)
    if as_json:
        print_json(
            [
                {
                    "file": s.file,
                    "size": s.size,
                    "entries": s.entries,
                    "records": s.records,
                    "first_offset": s.first_offset,
                    "last_offset": s.last_offset,
                    "error": s.error,
                }
                for s in summaries
            ]
        )
    else:
        print_table(
            ["file", "size", "entries", "records", "first", "last", "state"],
            [
                [
                    s.file,
                    human_bytes(s.size),
                    s.entries,
                    s.records if kind_of(s.file) == ".log" else None,
                    s.first_offset,
                    s.last_offset,
                    "damaged" if s.error else "good",
                ]
                for s in summaries
            ],
        )
    return [s.error for s in summaries if s.error]
