"""A few bytes of a committed record that change on one disk."""

from __future__ import annotations

from random import Random

from millstream.cluster.partition import Partition
from millstream.errors import KafkaError
from millstream.model import TopicPartition
from millstream.protocol.batch import HEADER_SIZE, read_header
from millstream.storage.reading import locate
from tests.simulation.disk import SimDisk
from tests.simulation.host import ProcessDied
from tests.simulation.node import Node

LENGTH = 8


class Damage:
    """Where bytes changed, and whether they still are as they should not be."""

    def __init__(
        self, disk: SimDisk, path: str, position: int, partition: TopicPartition, offset: int
    ) -> None:
        self._disk = disk
        self._path = path
        self._position = position
        self._partition = partition
        self._offset = offset
        inode = disk.inode(path)
        self._bad = bytes(byte ^ 0xA5 for byte in inode.data[position : position + LENGTH])
        inode.rot(self._bad, position)

    def __str__(self) -> str:
        return f"{self._path} at byte {self._position}, in the batch with offset {self._offset}"

    @property
    def is_there(self) -> bool:
        try:
            data = self._disk.inode(self._path).data
        except FileNotFoundError:
            return False
        return bytes(data[self._position : self._position + LENGTH]) == self._bad

    async def meet(self, node: Node) -> None:
        """Read there, if the broker serves: that it is damaged is noticed by that."""
        process, broker = node.process, node.broker
        if process is None or broker is None:
            return

        async def read() -> None:
            held = broker.replicas.topic(self._partition.topic).get(self._partition.partition)
            if held is not None and held.failure is None:
                try:
                    held.log.read(self._offset, 1)
                except KafkaError:
                    pass

        try:
            await process.call(read())
        except ProcessDied:
            pass


def damage(node: Node, random: Random) -> Damage | None:
    """Change bytes of a record that all replicas have, which its batch's checksum covers; None if none is."""
    if node.broker is None:
        return None
    partitions = [each for each in node.broker.replicas if each.high_watermark > each.log.start_offset]
    if not partitions:
        return None
    held: Partition = random.choice(partitions)
    offset = random.randrange(held.log.start_offset, held.high_watermark)
    disk = node.host.disk
    if disk.kill_after or disk.is_faulty():
        return None
    found = locate(held.log.segments, offset, 0)
    if found is None:
        return None
    header = read_header(found.data, found.start)
    start = found.position + found.start
    if header.size < HEADER_SIZE + LENGTH or not header.base_offset <= offset <= header.last_offset:
        return None
    position = start + random.randrange(HEADER_SIZE, header.size - LENGTH + 1)
    return Damage(disk, found.segment.path, position, held.name, offset)
