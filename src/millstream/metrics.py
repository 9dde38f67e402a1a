"""Metrics: tiny counters on the hot path, turned into Prometheus' format only when somebody asks.

A counter is one attribute (`counter.value += n`). Those with labels are looked up once, through
`labels`, and kept by whoever counts. `Metrics` holds all of one broker; nothing is global.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Generic, Literal, TypeVar

if TYPE_CHECKING:
    from prometheus_client.core import Metric as PrometheusMetric

PREFIX = "millstream_"

SECONDS = (
    0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
    0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
"""Upper ends of the buckets of a time, in seconds."""


class Counter:
    """A number that only grows."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0


class Gauge:
    """A number that goes up and down."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0


class Histogram:
    """How often values fell into which bucket; a value equal to a bucket's end belongs to it."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...] = SECONDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        return sum(self.counts)


M = TypeVar("M", Counter, Gauge, Histogram)

Readings = float | Mapping[tuple[str, ...], float]
"""What a reading function answers: a number, or numbers by label values."""


class Family(Generic[M]):
    """The metrics of one name, one for each combination of label values."""

    __slots__ = ("_members", "doc", "kind", "label_names", "name")

    def __init__(self, kind: type[M], name: str, doc: str, label_names: Sequence[str]) -> None:
        self.kind: type[M] = kind
        self.name = PREFIX + name
        self.doc = doc
        self.label_names = tuple(label_names)
        self._members: dict[tuple[str, ...], M] = {}

    def labels(self, *values: str) -> M:
        """The metric with these label values, made at the first call."""
        member = self._members.get(values)
        if member is None:
            if len(values) != len(self.label_names):
                raise TypeError(f"{self.name} takes the labels {self.label_names}, not {values}")
            member = self._members[values] = self.kind()
        return member

    def remove(self, *values: str) -> None:
        """Stop to export the metric with these label values, such as that of a deleted topic."""
        self._members.pop(values, None)

    def members(self) -> list[tuple[tuple[str, ...], M]]:
        """What there is now; may be called from any thread."""
        return list(self._members.items())


class _Reading:
    __slots__ = ("doc", "is_counter", "label_names", "name", "read")

    def __init__(
        self, name: str, doc: str, label_names: Sequence[str], read: Callable[[], Readings], is_counter: bool
    ) -> None:
        self.name = PREFIX + name
        self.doc = doc
        self.label_names = tuple(label_names)
        self.read = read
        self.is_counter = is_counter


class TopicCounters:
    """What is counted of one topic, looked up once."""

    __slots__ = ("bytes_in", "bytes_out", "records_in", "records_out")

    def __init__(self, metrics: Metrics, topic: str) -> None:
        self.bytes_in = metrics.bytes_in.labels(topic)
        self.bytes_out = metrics.bytes_out.labels(topic)
        self.records_in = metrics.records_in.labels(topic)
        self.records_out = metrics.records_out.labels(topic)


class Metrics:
    """All metrics of one broker."""

    def __init__(self) -> None:
        self._numbers: list[Family[Counter] | Family[Gauge]] = []
        self._histograms: list[Family[Histogram]] = []
        self._readings: list[_Reading] = []
        self.bytes_in = self.counters(
            "topic_bytes_in", "Bytes of record batches written by producers.", "topic"
        )
        self.records_in = self.counters("topic_records_in", "Records written by producers.", "topic")
        self.bytes_out = self.counters("topic_bytes_out", "Bytes of record batches sent to readers.", "topic")
        self.records_out = self.counters("topic_records_out", "Records sent to readers.", "topic")
        self.produce_errors = self.counters(
            "produce_errors", "Partitions whose records were refused.", "error"
        )
        self.fetch_errors = self.counters("fetch_errors", "Partitions that could not be read.", "error")
        self.request_seconds = self.histograms(
            "request_seconds", "Time from a request's last byte to its answer.", "api"
        )
        self.request_errors = self.counters("request_errors", "Requests that failed as a whole.", "api")
        self.background_failures = self.counters(
            "background_failures", "Rounds of background work that failed."
        ).labels()

    def forget_topic(self, topic: str) -> None:
        """Export nothing more of a deleted topic."""
        for family in (self.bytes_in, self.bytes_out, self.records_in, self.records_out):
            family.remove(topic)

    def counters(self, name: str, doc: str, *label_names: str) -> Family[Counter]:
        """A family of counters; their exported name ends in _total."""
        family = Family(Counter, name, doc, label_names)
        self._numbers.append(family)
        return family

    def gauges(self, name: str, doc: str, *label_names: str) -> Family[Gauge]:
        family = Family(Gauge, name, doc, label_names)
        self._numbers.append(family)
        return family

    def histograms(self, name: str, doc: str, *label_names: str) -> Family[Histogram]:
        family = Family(Histogram, name, doc, label_names)
        self._histograms.append(family)
        return family

    def reading(
        self,
        name: str,
        doc: str,
        read: Callable[[], Readings],
        *label_names: str,
        kind: Literal["gauge", "counter"] = "gauge",
    ) -> None:
        """Export what `read` answers at the time of asking, for what is known elsewhere already."""
        self._readings.append(_Reading(name, doc, label_names, read, kind == "counter"))

    def exposition(self) -> bytes:
        """Everything in Prometheus' text format. Loads prometheus_client at the first call."""
        from prometheus_client import CollectorRegistry, generate_latest
        from prometheus_client.registry import Collector

        metrics = self

        class Everything(Collector):
            def collect(self) -> Iterator[PrometheusMetric]:
                return metrics.collect()

        registry = CollectorRegistry(auto_describe=False)
        registry.register(Everything())
        return generate_latest(registry)

    def collect(self) -> Iterator[PrometheusMetric]:
        """What a Prometheus collector yields."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        for histograms in self._histograms:
            exported = HistogramMetricFamily(histograms.name, histograms.doc, labels=histograms.label_names)
            for values, histogram in histograms.members():
                exported.add_metric(values, _buckets(histogram), histogram.sum)
            yield exported
        for family in self._numbers:
            make = CounterMetricFamily if family.kind is Counter else GaugeMetricFamily
            numbers = make(family.name, family.doc, labels=family.label_names)
            for values, number in family.members():
                numbers.add_metric(values, number.value)
            yield numbers
        for reading in self._readings:
            make = CounterMetricFamily if reading.is_counter else GaugeMetricFamily
            numbers = make(reading.name, reading.doc, labels=reading.label_names)
            readings = reading.read()
            if not isinstance(readings, Mapping):
                readings = {(): readings}
            for values, value in readings.items():
                numbers.add_metric(values, value)
            yield numbers


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    total, buckets = 0, []
    for bound, count in zip((*map(str, histogram.bounds), "+Inf"), histogram.counts, strict=True):
        total += count
        buckets.append((bound, float(total)))
    return buckets
