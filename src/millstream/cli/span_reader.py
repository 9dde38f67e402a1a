"""Reads partitions from given offsets on, for a person who follows them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import click

from millstream.client.consumer import AsyncConsumer
from millstream.client.consumer_errors import LogTruncated, NoOffset
from millstream.client.record import ReadBatch
from millstream.model import TopicPartition


class SpanReader:
    """A consumer's partitions. `positions` holds for each that is still read the offset it is at.

    Records that were deleted before they were read are passed over, with a note. A consumer waits
    for brokers that are away as long as it takes; a person is told after the consumer's time-out.
    """

    def __init__(self, consumer: AsyncConsumer, starts: Mapping[TopicPartition, int]) -> None:
        self._consumer = consumer
        self.positions = dict(starts)
        consumer.assign(self.positions)
        for partition, start in starts.items():
            consumer.seek(partition, start)

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop reading partitions."""
        gone = set(partitions)
        if gone:
            self.positions = {each: at for each, at in self.positions.items() if each not in gone}
            self._consumer.assign(self.positions)

    async def poll(self, timeout: float) -> list[ReadBatch]:
        """The next records, batch by batch; nothing if none come in time."""
        try:
            batches = await self._consumer.poll_batches(timeout)
        except NoOffset as error:
            await self._pass_gaps(error)
            return []
        except LogTruncated as error:
            click.echo(f"note: {error}", err=True)
            self._consumer.seek(error.partition, error.diverging_offset)
            return []
        self.positions = {each: await self._consumer.position(each) for each in self.positions}
        if not batches and self.positions:
            await self._consumer.end_offsets(self.positions)  # is the cluster there, and the topic?
        return batches

    async def _pass_gaps(self, error: NoOffset) -> None:
        starts = await self._consumer.beginning_offsets(error.partitions)
        for partition, start in starts.items():
            position = self.positions[partition]
            if position >= start:
                raise error
            click.echo(
                f"note: records {position} to {start - 1} of {partition} were deleted before they were read",
                err=True,
            )
            self._consumer.seek(partition, start)
