"""Where an app reads from and keeps its state, as people write it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from millstream.streams import App, StreamsError
from millstream.streams.feeds import _milliseconds
from millstream.streams.subscription import Subscription, subscription


def pattern_of(pattern: re.Pattern[str]) -> Subscription:
    return subscription(pattern, "earliest", is_committed=True, has_headers=False, options=None)


def test_the_flags_of_a_pattern_count() -> None:
    loose = pattern_of(re.compile("orders-.*", re.IGNORECASE | re.VERBOSE))
    assert loose.choice == {"subscribePattern": "(?ix)orders-.*"}
    assert loose.takes("ORDERS-1")
    assert pattern_of(re.compile("orders-.*")).choice == {"subscribePattern": "orders-.*"}
    assert pattern_of(re.compile("(?i)orders-.*")).choice == {"subscribePattern": "(?i)orders-.*"}
    both = pattern_of(re.compile("(?s)orders-.*", re.IGNORECASE))
    assert both.choice == {"subscribePattern": "(?i)(?s)orders-.*"}
    assert both.takes("ORDERS-1")


def test_a_time_before_all_records_is_their_first() -> None:
    assert _milliseconds("1960-01-01") == "0"
    assert _milliseconds("1970-01-01T01:00:01.5+01:00") == "1500"


def test_an_app_says_where_rows_go() -> None:
    for option in ("Topic", "outputName"):
        with pytest.raises(StreamsError, match="leave it out"):
            App("app", sink={option: "orders"})
    brokers = {"Kafka.Bootstrap.Servers": "there:1"}
    assert App("app", "here:1", sink=brokers).sink_bootstrap == "there:1"
    assert App("app", "here:1").sink_bootstrap == "here:1"


def test_state_is_a_folder_and_no_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for given in ("s3a://bucket/x", "hdfs:///x", Path("s3a://bucket/x")):
        with pytest.raises(StreamsError, match="it is a folder of this machine, not an address; mount it"):
            App("app", state=given)
    assert App("app", state=tmp_path / "a:b").folder.path == tmp_path / "a:b" / "app"
    monkeypatch.setenv("MILLSTREAM_STATE", "gs://bucket")
    with pytest.raises(StreamsError, match="state=gs://bucket"):
        App("app")
