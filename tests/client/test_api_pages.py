"""The pages of docs/api about consumers and admins: their programs run, their tables are complete."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from millstream import Admin, AsyncConsumer, Consumer, Producer
from millstream.client.consumer_options import ConsumerArguments

PAGES = Path(__file__).resolve().parents[2] / "docs" / "api"


def page(name: str) -> str:
    return (PAGES / name).read_text(encoding="utf-8")


def programs(name: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page(name), re.DOTALL)


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("consumer.md", 0),
        ("consumer.md", 1),
        ("admin.md", 0),
        ("producer.md", 0),
        ("producer.md", 1),
        ("producer.md", 2),
    ],
)
def test_the_programs_run(own_bootstrap: str, name: str, number: int) -> None:
    with Producer(own_bootstrap) as producer:
        producer.send("orders", b"tea").result(30)
    program = programs(name)[number].replace("localhost:9092", own_bootstrap)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_every_program_is_run() -> None:
    counts = [len(programs(f"{name}.md")) for name in ("consumer", "admin", "producer")]
    assert counts == [2, 1, 3]


def test_the_table_of_options_names_all_of_them_and_their_defaults() -> None:
    table = page("consumer.md").partition("## Options")[2]
    rows = dict(re.findall(r"^\| (`.*?`) \| (.*?) \|", table, re.MULTILINE))
    named = {option for key in rows for option in re.findall(r"`(\w+)`", key)}
    parameters = inspect.signature(AsyncConsumer).parameters
    options = set(parameters) - {"bootstrap", "random"}  # the latter is for simulations
    assert named == options == set(ConsumerArguments.__annotations__)
    for option, parameter in parameters.items():
        shown = rows.get(f"`{option}`", "")
        if isinstance(parameter.default, int) and parameter.default >= 1024 * 1024:
            assert shown == f"{parameter.default // 1024 // 1024} MB"
        elif isinstance(parameter.default, int) and not isinstance(parameter.default, bool):
            assert shown == f"{parameter.default:,}"


def test_the_pages_name_every_method() -> None:
    for kind, name in ((Consumer, "consumer.md"), (Admin, "admin.md")):
        methods = {each for each in vars(kind) if not each.startswith("_")} - {
            "close",
            "topics",
            "partitions_of",
        }
        missing = {each for each in methods if f"`{each}" not in page(name)}
        assert missing == set()


def test_the_blocking_consumer_has_every_method_of_the_other() -> None:
    names = {name for name in dir(AsyncConsumer) if not name.startswith("_")}
    assert names == {name for name in vars(Consumer) if not name.startswith("_")}
