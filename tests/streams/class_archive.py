"""The classes that Spark loads, kept in a file that later starts of it map: they take half the time.

Tests start Spark dozens of times, and it would read and check the same classes each time. The file holds
those of one run of the selling app. A virtual machine that the file does not fit starts without it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pyspark

from millstream import Producer
from millstream.testing import Broker
from tests.streams.selling_app import CITIES, ORDERS, SOLD, TOTALS

FOLDER = Path(__file__).parents[2] / ".cache" / "spark-classes"
TIMEOUT_S = 300.0


def java_options() -> str:
    """What tells a virtual machine to use the file, which is written if it is not there yet."""
    archive = FOLDER / f"{_fingerprint()}.jsa"
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one worker of a parallel run writes it, the others wait
        if not archive.exists():
            _write(archive)
    return f"-XX:SharedArchiveFile={archive} -Xshare:auto -Xlog:cds=off -Xlog:cds+dynamic=off"


def _fingerprint() -> str:
    """Changes with all that makes such a file useless."""
    java = subprocess.run(["java", "-version"], capture_output=True, timeout=TIMEOUT_S, check=True).stderr
    jars = sorted((Path(pyspark.__file__).parent / "jars").iterdir())
    seen = [java.decode(), *(f"{jar} {jar.stat().st_mtime_ns}" for jar in jars)]
    return hashlib.sha256("\n".join(seen).encode()).hexdigest()[:16]


def _write(archive: Path) -> None:
    unfinished = archive.with_suffix(".new")
    with Broker() as broker, tempfile.TemporaryDirectory() as folder:
        for topic in (ORDERS, CITIES, SOLD, TOTALS):
            broker.create_topic(topic, 1)
        with Producer(broker.bootstrap, serializer="json") as producer:
            producer.send(CITIES, {"city": "a city", "region": "a region"}, key=b"a city").result(TIMEOUT_S)
            producer.send(ORDERS, {"id": 1, "city": "a city"}).result(TIMEOUT_S)
        done = subprocess.run(
            [sys.executable, "-m", "tests.streams.selling_app", broker.bootstrap, folder, "1"],
            env={
                **os.environ,
                "PYSPARK_PYTHON": sys.executable,
                "SPARK_SUBMIT_OPTS": f"-XX:ArchiveClassesAtExit={unfinished}",
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=TIMEOUT_S,
            text=True,
        )
    assert done.returncode == 0, done.stdout[-3000:]
    unfinished.touch()  # a virtual machine that keeps no classes does without them from now on
    unfinished.rename(archive)
