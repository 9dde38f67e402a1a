"""Spark's official Kafka connector, from Maven Central: for benchmarks and compatibility tests.

    jars()      the paths of its jars, for `spark.jars`; fetched on the first call only

They are resolved one by one, without their dependencies (Spark has those, but for these four), into
`.cache/spark-kafka` of the repository, or taken from the folder that MILLSTREAM_SPARK_KAFKA_LIBS names.
`ConnectorUnavailable` says what is missing on the machine.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

from bench.apache_kafka import REPOSITORY, RESOLVE_SECONDS

CONNECTOR_VERSION = "4.2.0"
ARTIFACTS = (
    f"org.apache.spark:spark-sql-kafka-0-10_2.13:{CONNECTOR_VERSION}",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.1",
    "org.apache.commons:commons-pool2:2.12.1",
)


class ConnectorUnavailable(RuntimeError):
    """The connector cannot be run here; the message says what to install or set."""


def libs_folder() -> Path:
    """Where the jars are kept."""
    chosen = os.environ.get("MILLSTREAM_SPARK_KAFKA_LIBS")
    return Path(chosen) if chosen else REPOSITORY / ".cache" / "spark-kafka" / CONNECTOR_VERSION


def is_available() -> bool:
    """Whether the jars are here already, or the programs that fetch them are."""
    return shutil.which("java") is not None and (_is_complete(libs_folder()) or bool(shutil.which("mvn")))


def jars() -> list[Path]:
    """The jars; fetches them if they are not there yet."""
    folder = libs_folder()
    if not _is_complete(folder):
        if shutil.which("mvn") is None:
            raise ConnectorUnavailable(
                "Spark's Kafka connector is not fetched yet and `mvn` is missing: install Apache Maven, "
                "or let MILLSTREAM_SPARK_KAFKA_LIBS name a folder with its jars"
            )
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for artifact in ARTIFACTS:
                if not _jar(folder, artifact).exists():
                    _resolve(folder, artifact)
    return [_jar(folder, artifact) for artifact in ARTIFACTS]


def _jar(folder: Path, artifact: str) -> Path:
    _, name, version = artifact.split(":")
    return folder / f"{name}-{version}.jar"


def _is_complete(folder: Path) -> bool:
    return all(_jar(folder, artifact).exists() for artifact in ARTIFACTS)


def _resolve(folder: Path, artifact: str) -> None:
    for goal in (
        ["dependency:get", f"-Dartifact={artifact}", "-Dtransitive=false"],
        ["dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={folder}"],
    ):
        command = ["mvn", "--batch-mode", "--quiet", *goal]
        try:
            done = subprocess.run(
                command, cwd=folder, capture_output=True, text=True, timeout=RESOLVE_SECONDS
            )
        except subprocess.TimeoutExpired as error:
            raise ConnectorUnavailable(f"mvn did not fetch {artifact} within {RESOLVE_SECONDS} s") from error
        if done.returncode != 0:
            raise ConnectorUnavailable(f"mvn could not fetch {artifact}:\n{done.stdout[-3000:]}")
