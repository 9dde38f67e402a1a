"""Which topic a log's folder belongs to, by id: topics of one name come and go.

On disk (`partition.metadata`): `version: 0` and `topic_id: ` with the id in Kafka's form. A file that
is missing or empty, as a crash between its making and its writing leaves it, says nothing.
"""

from __future__ import annotations

from uuid import UUID

from millstream.model import NO_UUID
from millstream.storage import names
from millstream.storage.disk import Disk
from millstream.storage.files import write_file
from millstream.storage.meta_properties import decode_uuid, encode_uuid


def read_topic_id(disk: Disk, folder: str) -> UUID:
    """The topic id of a folder; zero if it has none."""
    try:
        text = disk.read_file(f"{folder}/{names.METADATA_FILE}").decode()
        fields = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
        return decode_uuid(fields["topic_id"])
    except (FileNotFoundError, KeyError, ValueError):
        return NO_UUID


def write_topic_id(disk: Disk, folder: str, topic_id: UUID) -> None:
    """Write the topic id of a new folder; durable with the log's first flush."""
    text = f"version: 0\ntopic_id: {encode_uuid(topic_id)}"
    write_file(disk, f"{folder}/{names.METADATA_FILE}", text.encode())
