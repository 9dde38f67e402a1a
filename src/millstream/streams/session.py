"""The Spark session of an app: the one that is there, or one made for this machine.

If Spark runs already (in a notebook, under spark-submit, for another app of this program), the app takes a
session of its own in it. Else it starts one, quietly: what the JVM and the workers print goes to a log
file, and the JVM is in a process group of its own, so that Ctrl-C reaches this program alone and it can stop
its queries cleanly.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millstream.streams.failures import explained
from millstream.streams.java import check_java
from millstream.streams.problems import StreamsError
from millstream.streams.shipping import write_package

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MASTER_VARIABLE = "MILLSTREAM_SPARK_MASTER"

SQL = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.metricsEnabled": "false",
}
"""What each app's session sets. Shuffle partitions are frozen into a checkpoint by its first batch."""

LOCAL = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
}
CORE = {
    "spark.python.worker.reuse": "true",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.ui.showConsoleProgress": "false",
    "spark.task.maxFailures": "4",
}
"""Over TCP, Spark and a Python worker wait 40 ms for each other when a task begins that reads and writes."""

STATE_SERVER = "org.apache.spark.sql.execution.python.streaming.TransformWithStateInPySparkStateServer"


def session_for(
    name: str,
    *,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    log: Path | None = None,
    has_ui: bool = False,
    ship_from: Path | None = None,
) -> SparkSession:
    """A session of its own for the app called `name`."""
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise StreamsError("the Streams API runs on PySpark: pip install 'millstream[streams]'") from None
    from pyspark import SparkContext

    given = dict(conf or {})
    if SparkContext._active_spark_context is None:
        with explained(log):
            _start(name, master, given, log, has_ui)
    base = SparkSession.builder.getOrCreate()
    session = base.newSession()
    is_local = str(base.sparkContext.master).startswith("local")
    if ship_from is not None and not is_local:
        base.sparkContext.addPyFile(str(write_package(ship_from)))  # executors fetch it when they need it
    for key, value in SQL.items():
        is_ours = key != "spark.sql.shuffle.partitions" or is_local
        if is_ours and not base.sparkContext.getConf().contains(key):
            session.conf.set(key, value)
    for key, value in given.items():
        if key.startswith("spark.sql.") and session.conf.isModifiable(key):
            session.conf.set(key, value)
    return session


def _start(name: str, master: str | None, conf: dict[str, str], log: Path | None, has_ui: bool) -> None:
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    under_submit = "PYSPARK_GATEWAY_PORT" in os.environ
    if under_submit:
        SparkContext._ensure_initialized()  # from then on a SparkConf knows what spark-submit was told
    wanted = SparkConf()
    if under_submit:
        for key, value in conf.items():
            wanted.setIfMissing(key, value)
    else:
        check_java()
        where = master or os.environ.get(MASTER_VARIABLE) or conf.get("spark.master") or "local[*]"
        wanted.setMaster(where)
        for key, value in {
            **CORE,
            **(LOCAL if where.startswith("local") else {}),
            "spark.ui.enabled": str(has_ui).lower(),
            **conf,
        }.items():
            wanted.set(key, value)
    wanted.setAppName(name)
    # PySpark logs each failed analysis as JSON with the JVM's trace, though it raises the error too.
    logging.getLogger("DataFrameQueryContextLogger").disabled = True
    logging.getLogger("SQLQueryContextLogger").disabled = True
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        if under_submit or log is None or SparkContext._gateway is not None:  # a JVM is there
            SparkContext(conf=wanted)
            return
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as printed:
            try:
                gateway = launch_gateway(  # type: ignore[no-untyped-call]
                    wanted, {"stderr": printed, "start_new_session": True}
                )
            except Exception as error:
                raise StreamsError(f"Spark did not start: {error}; see {log}") from None
        SparkContext(conf=wanted, gateway=gateway)
        _hush(gateway.jvm)


def _hush(jvm: Any) -> None:
    """Spark warns of each key for which a verb on tables holds nothing yet: the log would have all keys."""
    logging_of = jvm.org.apache.logging.log4j
    logging_of.core.config.Configurator.setLevel(STATE_SERVER, logging_of.Level.ERROR)
