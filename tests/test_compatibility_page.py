"""docs/compatibility.md lists exactly the APIs and versions that the broker answers ApiVersions with."""

from __future__ import annotations

import re
from pathlib import Path

from millstream.broker.server import Broker
from millstream.config.broker import BrokerConfig
from millstream.protocol.messages import REQUESTS

PAGE = Path(__file__).resolve().parent.parent / "docs" / "compatibility.md"


def served() -> list[tuple[int, str, str]]:
    broker = Broker(BrokerConfig({"registry": "memory"}))
    return [
        (
            api.api_key,
            REQUESTS[api.api_key].__name__.removesuffix("Request"),
            f"{api.min_version}–{api.max_version}",  # noqa: RUF001 (as it is written in the page)
        )
        for api in broker.api_keys
    ]


def test_the_table_is_what_is_served() -> None:
    rows = re.findall(r"^\| (\d+) \| (\w+) \| (\d+–\d+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)  # noqa: RUF001
    assert [(int(key), name, versions) for key, name, versions in rows] == served()
