"""As `tests.crash.copier`, in transaction version 2 and without a client library.

    python -m tests.crash.new_copier BOOTSTRAP GROUP TRANSACTIONAL_ID SOURCE SINK PARTITION...

It has the partitions that it is given, copies a batch at a time, and ends as soon as anything goes wrong.
"""

from __future__ import annotations

import sys
import time

from millstream.protocol.batch import read_header
from tests.crash.copier import GAVE_UP, PAUSE_S
from tests.transactional import (
    NEW_END,
    NEW_PRODUCE,
    TransactionalProducer,
    find_coordinator,
    read_committed,
    stable_offset,
)
from tests.wire import Wire, batches, values

OFFSETS_VERSION = 5
UNSTABLE = 88


class Refused(Exception):
    """The broker answered with an error."""


def checked(code: int, what: str) -> None:
    if code:
        raise Refused(f"{what}: error {code}")


class Copier:
    """One group's way through some partitions, whole batches at a time: positions lie between them."""

    def __init__(self, wire: Wire, group: str, transactional_id: str, source: str, sink: str) -> None:
        self.wire = wire
        self.group = group
        self.source = source
        self.producer = TransactionalProducer(wire, transactional_id, sink)
        checked(self.producer.init().error_code, "InitProducerId")
        find_coordinator(wire, group, 0)

    def position(self, partition: int) -> int:
        while True:
            offset, code = stable_offset(self.wire, self.group, self.source, partition)
            if code != UNSTABLE:
                checked(code, "OffsetFetch")
                return max(offset, 0)
            time.sleep(0.02)

    def copy(self, partition: int, offset: int) -> int:
        """Copy the batch at an offset, if there is one; where to go on."""
        found = read_committed(self.wire, self.source, offset, partition, partition_max_bytes=1)
        checked(found.error_code, "Fetch")
        whole = batches(found.records)
        if not whole:
            return offset
        producer, following = self.producer, read_header(whole[0]).next_offset
        for value in values(whole[0]):
            answer = producer.send(value or b"", partition=partition, version=NEW_PRODUCE)
            checked(answer.error_code, "Produce")
        time.sleep(PAUSE_S)
        code = producer.commit_offset(
            self.group, following, OFFSETS_VERSION, topic=self.source, partition=partition
        )
        checked(code, "TxnOffsetCommit")
        checked(producer.end(is_commit=True, version=NEW_END).error_code, "EndTxn")
        return following


def main(bootstrap: str, group: str, transactional_id: str, source: str, sink: str, *mine: str) -> None:
    with Wire(bootstrap) as wire:
        copier = Copier(wire, group, transactional_id, source, sink)
        positions = {int(partition): copier.position(int(partition)) for partition in mine}
        while True:
            before = dict(positions)
            for partition, offset in before.items():
                positions[partition] = copier.copy(partition, offset)
            if positions == before:
                time.sleep(PAUSE_S)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except (Refused, OSError, AssertionError) as error:
        print(f"{sys.argv[3]}: {error!r}", file=sys.stderr)
        sys.exit(GAVE_UP)
