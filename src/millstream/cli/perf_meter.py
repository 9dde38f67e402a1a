"""Counts records, shows a live line to people, and sums up."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

import click

from millstream.cli.output import print_json

SHOW_EVERY_SECONDS = 0.5


class Meter:
    """What was done since it was made. Times that are sampled are in seconds, shown in milliseconds."""

    def __init__(self, verb: str, unit_bytes: int | None = None) -> None:
        self.verb = verb
        self.records = 0
        self.total_bytes = 0
        self.samples: list[float] = []
        self._unit_bytes = unit_bytes
        self._started = time.perf_counter()
        self._shown_at = self._started
        self._shown = (0, 0)
        self._is_shown = sys.stderr.isatty()

    def restart(self) -> None:
        """Begin to count now."""
        self.records = self.total_bytes = 0
        self.samples.clear()
        self._started = self._shown_at = time.perf_counter()
        self._shown = (0, 0)

    def add(self, records: int, more_bytes: int) -> None:
        self.records += records
        self.total_bytes += more_bytes
        now = time.perf_counter()
        if self._is_shown and now - self._shown_at >= SHOW_EVERY_SECONDS:
            seconds = now - self._shown_at
            records_then, bytes_then = self._shown
            rate = (self.records - records_then) / seconds
            megabytes = (self.total_bytes - bytes_then) / seconds / 1e6
            line = f"{self.records:,} records  {rate:,.0f}/s  {megabytes:,.1f} MB/s{self._latency()}"
            click.echo(f"\r\x1b[K{line}", nl=False, err=True)
            self._shown_at, self._shown = now, (self.records, self.total_bytes)

    def _latency(self) -> str:
        if not self.samples:
            return ""
        recent = self.samples[-1000:]
        return f"  p50 {percentile(recent, 50) * 1e3:.2f} ms  p99 {percentile(recent, 99) * 1e3:.2f} ms"

    def clear_line(self) -> None:
        """Let the summary stand where the live line was."""
        if self._is_shown:
            click.echo("\r\x1b[K", nl=False, err=True)

    def finish(self, topic: str, as_json: bool, **more: Any) -> None:
        """Print the summary."""
        seconds = time.perf_counter() - self._started
        self.clear_line()
        figures: dict[str, Any] = {
            "topic": topic,
            "records": self.records,
            "bytes": self.total_bytes,
            "seconds": round(seconds, 3),
            "records_per_second": round(self.records / seconds) if seconds else 0,
            "mb_per_second": round(self.total_bytes / seconds / 1e6, 2) if seconds else 0,
            **more,
        }
        if self.samples:
            figures["latency_ms"] = summary_ms(self.samples)
        if as_json:
            print_json(figures)
            return
        click.echo(
            f"{self.verb} {self.records:,} records ({self.total_bytes / 1e6:,.1f} MB) in {seconds:.2f} s: "
            f"{figures['records_per_second']:,} records/s, {figures['mb_per_second']:,} MB/s"
        )
        if self.samples:
            shown = ", ".join(f"{name} {value:g}" for name, value in figures["latency_ms"].items())
            click.echo(f"latency in ms: {shown}")


def percentile(samples: Sequence[float], percent: float) -> float:
    """The smallest sample that at least so many per cent do not exceed."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, max(0, -int(-len(ordered) * percent // 100) - 1))]


def summary_ms(samples: Sequence[float]) -> dict[str, float]:
    names = {"p50": 50.0, "p95": 95.0, "p99": 99.0, "p99.9": 99.9, "max": 100.0}
    return {name: round(percentile(samples, percent) * 1e3, 3) for name, percent in names.items()}
