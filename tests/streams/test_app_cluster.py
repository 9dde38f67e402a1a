"""An app on a Spark standalone cluster: a master and two workers, to which the package is shipped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from millstream import Producer
from millstream.testing import Broker
from tests.processes import free_ports

pytestmark = pytest.mark.timeout(700)

WORKERS = 2
PATIENCE_S = 120
APP = """
from pyspark.sql import functions as F
from millstream.streams import App, join_table

app = App("clustered")
where = F.udf(lambda _: __import__("millstream").__file__)
orders = app.stream("orders", value="id INT, city STRING")
cities = app.table("cities", key="city", value="city STRING, people INT")
joined = join_table(orders, cities, on="city").withColumn("imported", where("id"))
app.to("sold", joined, key="id")
app.run(once=True)
"""


def spark_class(*words: str, folder: Path) -> subprocess.Popen[bytes]:
    home = Path(pyspark.__file__).parent
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment |= {
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_LOCAL_DIRS": str(folder),
    }
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            [str(home / "bin" / "spark-class"), *words], env=environment, stdout=log, stderr=log, cwd=folder
        )


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """The address of a master with all its workers."""
    port = free_ports(2)
    processes = []
    try:
        names = ["master", *(f"worker-{number}" for number in range(WORKERS))]
        for name in names:
            folder = tmp_path / name
            folder.mkdir()
            if name == "master":
                words = ["org.apache.spark.deploy.master.Master", "--port", str(port)]
                words += ["--webui-port", str(port + 1)]
            else:
                words = ["org.apache.spark.deploy.worker.Worker", f"spark://127.0.0.1:{port}"]
                words += ["--cores", "1", "--memory", "1g", "--work-dir", str(folder)]
            processes.append(spark_class(*words, "--host", "127.0.0.1", folder=folder))
        deadline = time.monotonic() + PATIENCE_S
        while alive(port + 1) < WORKERS:
            assert all(each.poll() is None for each in processes)
            assert time.monotonic() < deadline
            time.sleep(0.2)
        yield f"spark://127.0.0.1:{port}"
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            process.wait(PATIENCE_S)


def alive(port: int) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/", timeout=5) as answer:
            return int(json.load(answer)["aliveworkers"])
    except OSError:
        return 0


def send_orders(producer: Producer, numbers: range) -> None:
    for number in numbers:
        producer.send("orders", {"id": number, "city": "Oslo"}, key=b"%d" % number)
    producer.flush()


def run(command: list[str], folder: Path, **known: str) -> str:
    """What a program says that is to succeed. (Of a driver in Python, spark-submit has all on stdout.)"""
    ran = subprocess.run(
        command, capture_output=True, text=True, timeout=300, cwd=folder, env={**os.environ, **known}
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_an_app_on_a_cluster(master: str, tmp_path: Path) -> None:
    """By the command line, and then from where it was by spark-submit."""
    file, state = tmp_path / "app.py", tmp_path / "state"
    file.write_text(APP)
    conf = ["--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.executor.memory=512m"]
    conf += ["--conf", "spark.sql.shuffle.partitions=2"]
    with Broker({"num.partitions": "2"}) as broker:
        broker.create_topic("orders", 4)
        broker.create_topic("cities", 1)
        with Producer(broker.bootstrap, serializer="json") as producer:
            producer.send("cities", {"city": "Oslo", "people": 9}, key=b"Oslo")
            producer.flush()
            send_orders(producer, range(100))
            command = [sys.executable, "-m", "millstream.cli.main", "streams", "run", str(file), "--once"]
            command += ["--ship", "--master", master, *conf, "-b", broker.bootstrap, "--state", str(state)]
            run(command, tmp_path)
            send_orders(producer, range(100, 120))
            home = Path(pyspark.__file__).parent
            command = [str(home / "bin" / "spark-submit"), "--master", master, *conf]
            command += ["--total-executor-cores", "1", "--py-files", str(state / "clustered/millstream.zip")]
            known = {"MILLSTREAM_BOOTSTRAP": broker.bootstrap, "MILLSTREAM_STATE": str(state)}
            known |= {"PYSPARK_PYTHON": sys.executable, "SPARK_HOME": str(home)}
            said = run([*command, str(file)], tmp_path, **known)
            assert "clustered: batch 1, 20 rows in, 20 out" in said
        read = [sys.executable, "-m", "millstream.cli.main", "consume", "sold", "-o", "start", "--exit"]
        sold = subprocess.run(
            [*read, "-b", broker.bootstrap], capture_output=True, text=True, timeout=PATIENCE_S
        )
    rows = [json.loads(json.loads(line)["value"]) for line in sold.stdout.splitlines()]
    assert sorted(row["id"] for row in rows) == [*range(120)]
    assert {row["people"] for row in rows} == {9}
    assert all("millstream.zip" in row["imported"] for row in rows)
    executors = [path for path in tmp_path.glob("worker-*/app-*/*") if path.is_dir()]
    assert len({path.parent.parent for path in executors}) == WORKERS
