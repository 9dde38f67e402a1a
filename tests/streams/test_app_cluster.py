"""An app on a Spark standalone cluster: a master and two workers, to which the package is shipped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from millstream import Producer
from millstream.testing import Broker
from tests.streams.standalone import StandaloneCluster

pytestmark = pytest.mark.timeout(700)

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


def test_an_app_on_a_cluster(cluster: StandaloneCluster, tmp_path: Path) -> None:
    """By the command line, and then from where it was by spark-submit."""
    master, others = cluster.master, set(cluster.executors)
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
    executors = set(cluster.executors) - others
    assert len({worker for worker, _ in executors}) == 2
    assert len({app for _, app in executors}) == 2
