"""The lines that apps say: of batches, and of what went wrong in Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from millstream.streams.failures import explain
from millstream.streams.progress import Batch, ends

PROGRESS: dict[str, Any] = {
    "name": "sales",
    "batchId": 12,
    "numInputRows": 3120,
    "batchDuration": 420,
    "observedMetrics": {"millstream_out": {"rows": 6}},
    "eventTime": {"watermark": "2026-01-01T00:00:00.000Z"},
    "sources": [
        {
            "endOffset": '{"orders": {"0": 10, "1": 5}}',
            "latestOffset": {"orders": {"0": 12, "1": 5, "2": 7}},
        },
        {"endOffset": '{"logOffset": 1}', "latestOffset": None},
    ],
}


def test_a_batch_is_a_line() -> None:
    batch = Batch.of(PROGRESS)
    assert batch.lag == 2
    assert batch.line == (
        "sales: batch 12, 3,120 rows in, 6 out, lag 2, 0.4 s, watermark 2026-01-01T00:00:00.000Z"
    )
    assert len([*ends(PROGRESS)]) == 2
    # The first batch of an app that starts at a time says where it began, too.
    first = '{"@start": {"orders": {"0": 3}}, "orders": {"0": 9}}'
    sources = [{"endOffset": first, "latestOffset": {"orders": {"0": 10}}}]
    assert Batch.of({**PROGRESS, "sources": sources}).lag == 1
    plain = Batch.of({**PROGRESS, "observedMetrics": {}, "eventTime": {}})
    assert plain.line == "sales: batch 12, 3,120 rows in, lag 2, 0.4 s"


TRACE = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: [PYTHON_EXCEPTION] Oh:
Traceback (most recent call last):
  File "/x/pyspark/worker.py", line 7, in main
    process()
  File "/home/me/app.py", line 3, in price
    return 1 / row
           ~~^~~~~
ZeroDivisionError: division by zero
 SQLSTATE: 38000 SQLSTATE: XXKST
=== Streaming Query ===
Identifier: sales
"""


def test_a_python_error_is_its_last_line_and_the_users_own(tmp_path: Path) -> None:
    assert explain(TRACE) == "ZeroDivisionError: division by zero\n  at /home/me/app.py:3 in price"
    log = tmp_path / "spark.log"
    log.touch()
    assert explain(TRACE, log).endswith(f"\n  more in {log}")
    silent = TRACE.replace("ZeroDivisionError: division by zero", "AssertionError")
    assert explain(silent) == "AssertionError\n  at /home/me/app.py:3 in price"


def test_an_error_of_spark_is_its_message() -> None:
    lost = (
        "[STREAM_FAILED] Query [id = 1] terminated with exception: Job aborted due to stage failure: Task 0 "
        "in stage 1.0 failed 1 times: Lost task 0.0 in stage 1.0 (TID 1) (h executor driver): "
        "org.apache.spark.SparkRuntimeException: [USER_RAISED_EXCEPTION] no good SQLSTATE: P0001\n"
        "\tat org.apache.spark.Some.thing(Some.scala:1)\n\nDriver stacktrace:\n=== Streaming Query ==="
    )
    assert explain(lost) == "no good"
    assert explain(
        "[UNRESOLVED_COLUMN] A column `x` cannot be found. SQLSTATE: 42703;\n'Project ['x]\n+- T"
    ) == ("A column `x` cannot be found.")
    changed = (
        "assertion failed: There are [2] sources in the checkpoint offsets and now there are [3] sources"
    )
    assert explain(changed).splitlines()[1:] == [
        "  the app does not fit its checkpoint any more: reset it, or give it another name"
    ]
    assert explain("") == "Spark gave no reason"
    assert len(explain("x" * 5000)) == 600
