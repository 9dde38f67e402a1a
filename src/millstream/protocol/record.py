"""A record, as people see it."""

from __future__ import annotations

from typing import TypeAlias

from millstream.protocol.kernel import Record as Record

Header: TypeAlias = tuple[str, bytes | None]
"""A record's header: names may repeat, order is kept."""
