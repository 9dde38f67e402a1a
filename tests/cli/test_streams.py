"""`millstream streams`: one app from a file, run, described, looked into and reset."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from millstream.testing import Broker
from tests.cli.conftest import CommandLine
from tests.streams.conftest import spark as spark

pytestmark = [pytest.mark.usefixtures("spark"), pytest.mark.timeout(400)]

APP = """
from pyspark.sql import functions as F
from millstream.streams import App, join_table

app = App("shop", bootstrap="wins-not:1")
orders = app.stream("cli-orders", value="id INT, city STRING")
cities = app.table("cli-cities", key="city", value="city STRING, people INT")
app.to("cli-sold", join_table(orders, cities, on="city"), key="id")
app.to("cli-counts", orders.groupBy("city").count(), key="city", mode="update")
timed = orders.withWatermark("_timestamp", "1 minute")
app.to("cli-minutes", timed.groupBy(F.window("_timestamp", "1 minute")).count())
app.run()
"""

PROGRAM = """
from __future__ import annotations
import argparse
import sys
from dataclasses import dataclass
from decimal import Decimal
from millstream.streams import App, run

@dataclass
class Order:
    price: Decimal

def priced(app):
    from prices import TOPIC
    app.to(TOPIC, app.stream("cli-orders", value=Order))

def main():
    argparse.ArgumentParser().parse_args()
    sys.path.insert(0, "elsewhere")
    app = App("program")
    app.pipeline(priced)
    run(app)

if __name__ == "__main__":
    sys.exit(main())
"""


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of apps stays the program that runs."""
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])


@pytest.fixture
def words(cli_broker: Broker, millstream: CommandLine, tmp_path: Path) -> list[str]:
    """The file, and the broker and the state folder that win over what it says."""
    for topic in ("cli-orders", "cli-cities"):
        millstream("topic", "create", topic, "--if-not-exists")
    file = tmp_path / "app.py"
    file.write_text(APP)
    return [str(file), "-b", cli_broker.bootstrap, "--state", str(tmp_path / "state")]


def test_an_app_from_a_file(millstream: CommandLine, words: list[str], cli_broker: Broker) -> None:
    described = millstream("streams", "describe", *words)
    assert "cli-orders  earliest  read_committed" in described.text
    assert "It has not run yet." in described.text
    assert "holds no state" in millstream("streams", "state", *words).err

    millstream("produce", "cli-cities", "-k", "Oslo", given=b'{"city": "Oslo", "people": 9}\n')
    ran = millstream("streams", "run", *words, "--once")
    assert "shop: cli-orders, cli-cities → cli-sold, cli-counts, cli-minutes, state in" in ran.err
    assert "shop: two queries, each with its own batches and decisions: cli-sold, cli-minutes and" in ran.err
    millstream("produce", "cli-orders", given=b'{"id": 1, "city": "Oslo"}\n')
    ran = millstream("streams", "run", *words, "--once", "--every", "1 second")
    assert "1 rows in, 1 out, lag 0" in ran.err
    sold = millstream("consume", "cli-sold", "-o", "start", "--exit")
    assert r"{\"id\":1,\"city\":\"Oslo\",\"people\":9}" in sold.text

    (progress, _) = millstream("streams", "describe", *words, "--json").json[0]["progress"]
    assert {"cli-orders": {"0": 1}} in progress["ends"]
    listed = millstream("streams", "state", *words, "--json").json
    (table,) = [each for each in listed if each["variable"] == "table"]
    number = str(table["operator"])
    (held,) = millstream(
        "streams", "state", *words, "--operator", number, "--variable", "table", "--json"
    ).json
    assert '"people":9' in held["value"]["row"]
    assert "checkpoint-update" in {each["checkpoint"] for each in listed}
    both = millstream.run("streams", "state", *words, "--operator", "0").err
    assert "several such states; there are: 0 " in both
    assert "of checkpoint-append; 0 stateStoreSave of checkpoint-update" in both
    (held,) = millstream(
        "streams", "state", *words, "--operator", "0", "--checkpoint", "checkpoint-update", "--json"
    ).json
    assert held == {"key": {"city": "Oslo"}, "value": {"count": 1}}
    assert "no such state; there are: 0 " in millstream.run("streams", "state", *words, "--operator", "7").err

    assert millstream.run("streams", "reset", *words, given=b"n\n").code == 130
    reset = millstream("streams", "reset", *words, "--yes")
    assert "shop starts over when it runs next" in reset.text
    assert "It has not run yet." in millstream("streams", "describe", *words).text


def test_a_file_is_loaded_as_it_would_run(millstream: CommandLine, words: list[str], tmp_path: Path) -> None:
    """But for its runs, however they are called; and its functions find later what they name."""
    (tmp_path / "prices.py").write_text("TOPIC = 'cli-priced'\n")
    file = Path(words[0])
    file.write_text(PROGRAM)
    described = millstream("streams", "describe", *words)
    assert "cli-priced  append" in described.text
    assert "It has not run yet." in described.text
    for code, said in (("no broker", "ended: no broker"), (2, "ended with exit code 2")):
        file.write_text(f"import sys\nsys.exit({code!r})\n")
        assert said in millstream.run("streams", "run", *words).err


def test_what_is_wrong_is_said(millstream: CommandLine, tmp_path: Path) -> None:
    assert millstream.run("streams", "run", "nowhere.py").err == "error: there is no file nowhere.py\n"
    file = tmp_path / "empty.py"
    file.write_text("")
    assert "makes no App" in millstream.run("streams", "run", str(file)).err
    file.write_text(APP.replace("id INT, city STRING", "id INT"))
    failed = millstream.run("streams", "run", str(file))
    assert failed.code == 1
    assert "join_table needs a column city" in failed.err
    file.write_text("from millstream.streams import App\nApp('x').stream('t').select('nothing')\n")
    failed = millstream.run("streams", "run", str(file))
    assert "nothing" in failed.err
    assert f"at {file}:2 in <module>" in failed.err
    assert millstream.run("streams", "run", str(file), "--conf", "x").code == 2
    assert "name it" in millstream.run("streams", "state", str(file), "--variable", "table").err


def test_a_missing_spark_is_one_line(
    millstream: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "app.py"
    file.write_text("from millstream.streams import App\nApp('x').spark\n")
    for name in ("pyspark.sql", "pyspark.errors", "py4j.protocol"):
        monkeypatch.setitem(sys.modules, name, None)
    failed = millstream.run("streams", "run", str(file))
    assert failed.err == "error: the Streams API runs on PySpark: pip install 'millstream[streams]'\n"
