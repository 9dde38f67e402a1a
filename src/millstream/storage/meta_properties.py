"""The identity of a log dir: whose cluster's and which broker's it is.

On disk (`meta.properties`, Java properties): `version=1`, `cluster.id`, `node.id`, `directory.id`, the
ids in Kafka's form (URL-safe base64 of 16 bytes without padding). A file of version 0 has
`broker.id` and no `directory.id`. `is.new=true`, which is Millstream's own, stands there from the making
of the dir until a start has found every log that it looked for: an empty dir that is not the one that was
expected (a volume that is not mounted) does not come to look like one that has always been there.
`other.dirs`, Millstream's own too, names the other log dirs of the broker, as ID:PATH with commas between
(a path's special characters as in a URL), so that one that is taken away is missed.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import NamedTuple
from urllib.parse import quote, unquote
from uuid import UUID

from millstream.errors import MillstreamError


class WrongLogDir(MillstreamError):
    """A log dir that belongs to another cluster or broker."""


def encode_uuid(value: UUID) -> str:
    """An id as Kafka writes it."""
    return urlsafe_b64encode(value.bytes).rstrip(b"=").decode()


def decode_uuid(text: str) -> UUID:
    """An id as Kafka writes it; ValueError if it is none."""
    return UUID(bytes=urlsafe_b64decode(text + "=="))


class OtherDir(NamedTuple):
    """What a log dir knows of another one of its broker."""

    directory_id: UUID
    path: str

    def __str__(self) -> str:
        return f"{self.path} (directory id {encode_uuid(self.directory_id)})"


class MetaProperties(NamedTuple):
    """What a log dir says of itself."""

    cluster_id: str
    node_id: int
    directory_id: UUID
    is_new: bool = False
    others: frozenset[OtherDir] = frozenset()

    def encode(self) -> bytes:
        others = ",".join(
            f"{encode_uuid(other.directory_id)}:{quote(other.path)}" for other in sorted(self.others)
        )
        return (
            f"#\nversion=1\ncluster.id={self.cluster_id}\nnode.id={self.node_id}\n"
            f"directory.id={encode_uuid(self.directory_id)}\n"
            + ("is.new=true\n" if self.is_new else "")
            + (f"other.dirs={others}\n" if others else "")
        ).encode()

    @classmethod
    def parse(cls, data: bytes, path: str, new_directory_id: UUID) -> MetaProperties:
        """Read a file's bytes. A file without a directory id, an old one, gets the new one."""
        lines = [line.strip() for line in data.decode(errors="replace").splitlines()]
        pairs = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
        try:
            node_id = int(pairs.get("node.id") or pairs["broker.id"])
            directory = pairs.get("directory.id")
            return cls(
                pairs["cluster.id"],
                node_id,
                decode_uuid(directory) if directory else new_directory_id,
                pairs.get("is.new") == "true",
                frozenset(map(_parse_other, filter(None, pairs.get("other.dirs", "").split(",")))),
            )
        except (KeyError, ValueError) as error:
            raise WrongLogDir(
                f"{path} does not say whose log dir it is in ({error!r}): put a copy of it back,"
                " or give the broker another data folder"
            ) from error

    def check(self, path: str, cluster_id: str, node_id: int) -> None:
        """Raise WrongLogDir unless the dir is that cluster's and that broker's."""
        if cluster_id and self.cluster_id != cluster_id:
            raise WrongLogDir(
                f"{path} belongs to the cluster {self.cluster_id}, this broker to {cluster_id}:"
                " give the broker its own data folder, or the registry that this one was made with"
            )
        if self.node_id != node_id:
            raise WrongLogDir(
                f"{path} belongs to the broker {self.node_id}, this one is {node_id}:"
                " set node.id, or give the broker its own data folder"
            )


def _parse_other(text: str) -> OtherDir:
    directory_id, _, path = text.partition(":")
    return OtherDir(decode_uuid(directory_id), unquote(path))
