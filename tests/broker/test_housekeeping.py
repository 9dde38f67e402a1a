"""What a broker does time and again: what fails for one partition leaves the others alone."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from millstream.broker.housekeeping import Housekeeping
from millstream.storage.log import Log
from tests.cluster.brokers import Brokers, run


def test_an_index_that_cannot_be_read_costs_only_its_own_log_the_retention(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(brokers: Brokers) -> None:
        await brokers.create("t", 3, 1, retention_bytes="1000", internal_segment_bytes="2000")
        for index in range(3):
            for _ in range(10):
                await brokers.send("t", bytes(1000), index=index)
        logs = [brokers.replica(1, "t", index).log for index in range(3)]
        asked = Log.needs_confirmed_ages

        def unreadable(log: Log, now_ms: int) -> bool:
            if log is logs[0]:
                raise OSError(errno.EIO, "bad sector")
            return asked(log, now_ms)

        monkeypatch.setattr(Log, "needs_confirmed_ages", unreadable)
        await Housekeeping(brokers[1]).retain()
        assert [log.start_offset > 0 for log in logs] == [False, True, True]

    run(test, tmp_path, count=1)
    assert "retention of t-0" in caplog.text
