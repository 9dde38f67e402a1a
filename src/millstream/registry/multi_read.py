"""ZooKeeper's request for several nodes as they are at one moment, which kazoo does not have."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from kazoo.exceptions import EXCEPTIONS, NoNodeError
from kazoo.protocol.serialization import GetData, MultiHeader, int_struct, multiheader_struct

_HEADER_BYTES = 9
_ERROR = -1


class MultiRead:
    """A request of type 22 (ZooKeeper 3.6): a list of GetData, answered from one state of the tree.

    The answer is a (data, stat) for each path, None where there is no such node.
    """

    type = 22

    def __init__(self, paths: Sequence[str]) -> None:
        self._reads = [GetData(path, None) for path in paths]

    @staticmethod
    def size(path: str) -> int:
        """The bytes that a path takes in a request."""
        return _HEADER_BYTES + 5 + len(path.encode())

    def send(self, client: Any) -> Any:
        """Have kazoo send it."""
        result = client.handler.async_result()
        client._call(self, result)
        return result

    def serialize(self) -> bytearray:
        out = bytearray()
        for read in self._reads:
            out += MultiHeader(read.type, False, -1).serialize()
            out += read.serialize()
        out += multiheader_struct.pack(-1, True, -1)
        return out

    def deserialize(self, data: bytes, offset: int) -> list[tuple[bytes, Any] | None]:
        found: list[tuple[bytes, Any] | None] = []
        while True:
            header, offset = MultiHeader.deserialize(data, offset)
            if header.done:
                return found
            if header.type == _ERROR:
                code = int_struct.unpack_from(data, offset)[0]
                offset += int_struct.size
                if code != NoNodeError.code:
                    raise EXCEPTIONS[code]()
                found.append(None)
                continue
            value, stat = GetData.deserialize(data, offset)
            found.append((value, stat))
            offset += int_struct.size + len(value or b"") + _STAT_BYTES


_STAT_BYTES = struct.calcsize("!qqqqiiiqiiq")
