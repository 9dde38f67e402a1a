"""Apache Kafka's own broker and tools, from Maven Central: for benchmarks and compatibility tests.

    jars()                                     folder with the jars; fetched on the first call only
    run_tool("org.apache.kafka.tools.TopicCommand", ["--list", ...])    one run of a tool class
    with KafkaBroker(folder) as kafka:         one KRaft node; `kafka.bootstrap`, `kafka.port`, `kafka.pid`

The jars are resolved by `mvn` from a pom written here into `.cache/kafka/<version>` of the repository,
or into the folder that MILLSTREAM_KAFKA_LIBS names. A marker file beside them makes later calls instant;
a lock file lets several processes ask at once. `KafkaUnavailable` says what is missing on the machine.
"""

from __future__ import annotations

import base64
import fcntl
import os
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from bench.process import wait_for_exit
from bench.wire import cluster_is_ready
from millstream.testing.ports import free_port

KAFKA_VERSION = "4.3.0"
LOGGING_VERSION = "2.25.1"
ARTIFACTS = (
    f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}",
    f"org.apache.kafka:kafka-server:{KAFKA_VERSION}",
    f"org.apache.kafka:kafka-tools:{KAFKA_VERSION}",
    f"org.apache.logging.log4j:log4j-slf4j-impl:{LOGGING_VERSION}",
    f"org.apache.logging.log4j:log4j-core:{LOGGING_VERSION}",
    f"org.apache.logging.log4j:log4j-1.2-api:{LOGGING_VERSION}",
)
BROKER_JVM = ("-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35")
TOOL_JVM = ("-XX:+UseSerialGC", "-XX:+IgnoreUnrecognizedVMOptions")
RESOLVE_SECONDS = 600

REPOSITORY = Path(__file__).resolve().parent.parent


class KafkaUnavailable(RuntimeError):
    """Apache Kafka cannot be run here; the message says what to install or set."""


def libs_folder() -> Path:
    """Where the jars are kept: MILLSTREAM_KAFKA_LIBS, else a folder that the repository ignores."""
    chosen = os.environ.get("MILLSTREAM_KAFKA_LIBS")
    return Path(chosen) if chosen else REPOSITORY / ".cache" / "kafka" / KAFKA_VERSION


def is_available() -> bool:
    """Whether the jars are here already, or the programs that fetch them are."""
    return shutil.which("java") is not None and (_is_complete(libs_folder()) or bool(shutil.which("mvn")))


def jars() -> Path:
    """The folder that holds the jars and `log4j2.properties`; fetches them if they are not there yet."""
    folder = libs_folder()
    if _is_complete(folder):
        return folder
    for program, package in (("java", "a Java runtime, 17 or newer"), ("mvn", "Apache Maven")):
        if shutil.which(program) is None:
            raise KafkaUnavailable(
                f"Apache Kafka {KAFKA_VERSION} is not fetched yet and `{program}` is missing: "
                f"install {package}, or let MILLSTREAM_KAFKA_LIBS name a folder with Kafka's jars"
            )
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _is_complete(folder):
            _resolve(folder)
    return folder


def _is_complete(folder: Path) -> bool:
    return (folder / "complete").exists() or (
        "MILLSTREAM_KAFKA_LIBS" in os.environ and any(folder.glob("kafka-clients-*.jar"))
    )


def _resolve(folder: Path) -> None:
    dependencies = "".join(
        "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>".format(
            *artifact.split(":")
        )
        for artifact in ARTIFACTS
    )
    (folder / "pom.xml").write_text(
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>bench</groupId><artifactId>kafka-jars</artifactId><version>1</version>"
        f"<packaging>pom</packaging><dependencies>{dependencies}</dependencies></project>\n"
    )
    command = [
        "mvn",
        "--batch-mode",
        "--quiet",
        "dependency:copy-dependencies",
        f"-DoutputDirectory={folder}",
    ]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=RESOLVE_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise KafkaUnavailable(f"mvn did not fetch Apache Kafka within {RESOLVE_SECONDS} s") from error
    if done.returncode != 0:
        raise KafkaUnavailable(f"mvn could not fetch Apache Kafka {KAFKA_VERSION}:\n{done.stdout[-3000:]}")
    (folder / "complete").write_text("\n".join(ARTIFACTS) + "\n")


def _logging_file(folder: Path) -> Path:
    path = folder / "log4j2.properties"
    if not path.exists():
        partial = folder / f"log4j2.{os.getpid()}.partial"
        partial.write_text(
            "rootLogger.level = ${sys:bench.log.level:-WARN}\n"
            "rootLogger.appenderRef.err.ref = err\n"
            "appender.err.type = Console\nappender.err.name = err\nappender.err.target = SYSTEM_ERR\n"
            "appender.err.layout.type = PatternLayout\n"
            "appender.err.layout.pattern = [%d] %p %m (%c)%n\n"
        )
        partial.rename(path)
    return path


def java_command(
    main_class: str,
    arguments: Iterable[str],
    *,
    heap: str,
    jvm_options: Sequence[str] = (),
    level: str = "WARN",
) -> list[str]:
    """The command line that runs one of Kafka's classes, its log on standard error."""
    folder = jars()
    return [
        "java",
        f"-Xmx{heap}",
        f"-Xms{heap}",
        *jvm_options,
        f"-Dlog4j2.configurationFile={_logging_file(folder)}",
        f"-Dbench.log.level={level}",
        "-cp",
        f"{folder}/*",
        main_class,
        *arguments,
    ]


def run_tool(
    main_class: str,
    arguments: Iterable[str],
    *,
    stdin: str | bytes | None = None,
    timeout_seconds: float = 120,
    heap: str = "256m",
    check: bool = False,
) -> subprocess.CompletedProcess[bytes]:
    """Run one of Kafka's command-line classes to its end; output as bytes in `stdout` and `stderr`.

    `check=True` raises CalledProcessError on a non-zero exit; a run over its time limit is killed and
    raises TimeoutExpired.
    """
    given = stdin.encode() if isinstance(stdin, str) else stdin
    return subprocess.run(
        java_command(main_class, arguments, heap=heap, jvm_options=TOOL_JVM),
        input=b"" if given is None else given,
        capture_output=True,
        timeout=timeout_seconds,
        check=check,
    )


class KafkaBroker:
    """One Apache Kafka node, broker and controller at once (KRaft), with its data and log in a folder.

    `settings` are further server properties (they win over the ones written here). A stopped broker may be
    started again with its data: the folder is formatted only while it is new. `stop()` is a clean shutdown
    by SIGTERM, `kill()` is SIGKILL; both end only the process that `start()` started.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        port: int | None = None,
        heap: str = "1g",
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = Path(folder)
        self.data = self.folder / "data"
        self.log_path = self.folder / "broker.log"
        self.port = port or free_port()
        self.controller_port = free_port()
        self.heap = heap
        self.settings = dict(settings or {})
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        if self.process is None:
            raise RuntimeError("Apache Kafka is not running: start() it first")
        return self.process.pid

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def format(self) -> None:
        """Write server.properties and, if the folder is new, format its storage."""
        self.data.mkdir(parents=True, exist_ok=True)
        properties = self.folder / "server.properties"
        properties.write_text("".join(f"{key}={value}\n" for key, value in self._properties().items()))
        if (self.data / "meta.properties").exists():
            return
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if cluster_id.startswith("-"):
            cluster_id = "A" + cluster_id[1:]
        done = run_tool(
            "kafka.tools.StorageTool",
            ["format", "--standalone", "-t", cluster_id, "-c", str(properties)],
        )
        if done.returncode != 0:
            raise RuntimeError(f"formatting Apache Kafka's storage failed:\n{done.stderr.decode()[-3000:]}")

    def _properties(self) -> dict[str, str]:
        return {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{self.controller_port}",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{self.controller_port}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "inter.broker.listener.name": "PLAINTEXT",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": str(self.data),
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "5",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "5",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            **self.settings,
        }

    def launch(self) -> subprocess.Popen[bytes]:
        """Start the process and return at once; `wait_until_ready()` or a client's own tries follow."""
        if self.process is not None:
            raise RuntimeError("Apache Kafka is running already")
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                java_command(
                    "kafka.Kafka",
                    [str(self.folder / "server.properties")],
                    heap=self.heap,
                    jvm_options=BROKER_JVM,
                ),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self.process

    def start(self, timeout_seconds: float = 60) -> None:
        """Format if new, start, and wait until the broker answers for itself."""
        self.format()
        self.launch()
        try:
            self.wait_until_ready(timeout_seconds)
        except BaseException:
            self.kill()
            raise

    def wait_until_ready(self, timeout_seconds: float = 60) -> None:
        deadline = time.monotonic() + timeout_seconds
        while not cluster_is_ready(self.port):
            if self.process is None or self.process.poll() is not None:
                raise RuntimeError(f"Apache Kafka ended while starting:\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"Apache Kafka not ready after {timeout_seconds} s:\n{self.log_tail()}")
            time.sleep(0.05)

    def log_tail(self, characters: int = 3000) -> str:
        return self.log_path.read_text(errors="replace")[-characters:] if self.log_path.exists() else ""

    def stop(self, timeout_seconds: float = 30) -> None:
        """A clean shutdown; kills the process if it does not end in time."""
        self._end(signal.SIGTERM, timeout_seconds)

    def kill(self) -> None:
        self._end(signal.SIGKILL, 10)

    def _end(self, with_signal: signal.Signals, timeout_seconds: float) -> None:
        process, self.process = self.process, None
        if process is not None:
            wait_for_exit(process, with_signal, timeout_seconds)
