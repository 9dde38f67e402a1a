"""The pages of docs/api about consumers and admins: their programs run, their tables are complete."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

import millstream
from millstream import Admin, AsyncAdmin, AsyncConsumer, Consumer, Producer
from millstream.client.admin_views import ActiveProducer, ClusterView, LogDir
from millstream.client.configs import Config
from millstream.client.consumer_options import ConsumerArguments
from millstream.client.group_offsets import Committed
from millstream.client.groups import Group, GroupMember, ListedGroup
from millstream.client.metadata import Node, Partition, Topic
from millstream.client.offsets import Found
from millstream.client.replicas import Reassignment
from millstream.client.topics import Created
from millstream.client.transactions import ListedTransaction, OpenTransaction, Transaction

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
        methods = {each for each in vars(kind) if not each.startswith("_")}
        missing = {each for each in methods if f"`{each}" not in page(name)}
        assert missing == set()


def test_the_page_of_admins_names_every_argument() -> None:
    rows = dict(re.findall(r"^\| `(\w+)\((.*?)\)`", page("admin.md"), re.MULTILINE))
    for name, member in vars(Admin).items():
        if not name.startswith("_") and name != "close":
            arguments = [
                each for each in inspect.signature(member).parameters if each not in ("self", "timeout")
            ]
            assert re.findall(r"\w+", rows.pop(name)) == arguments, name
    assert rows == {}, "calls that do not exist"


@pytest.mark.parametrize(
    "kind",
    [
        ActiveProducer,
        ClusterView,
        Committed,
        Config,
        Created,
        Found,
        Group,
        GroupMember,
        ListedGroup,
        ListedTransaction,
        LogDir,
        Node,
        OpenTransaction,
        Partition,
        Reassignment,
        Topic,
        Transaction,
    ],
)
def test_the_page_of_admins_shows_what_results_have(kind: type) -> None:
    shown = re.findall(rf"`{kind.__name__}\((.*?)\)`", page("admin.md"))
    assert shown == [", ".join(each.name for each in fields(kind))]


def test_the_options_of_admins() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", page("admin.md").partition("## Options")[2], re.MULTILINE)
    assert rows == list(inspect.signature(Admin).parameters) == list(inspect.signature(AsyncAdmin).parameters)


def test_every_public_name_is_described() -> None:
    pages = "".join(page(f"{name}.md") for name in ("admin", "consumer", "producer"))
    assert [name for name in millstream.__all__ if not re.search(rf"\b{name}\b", pages)] == []


def test_the_blocking_consumer_has_every_method_of_the_other() -> None:
    names = {name for name in dir(AsyncConsumer) if not name.startswith("_")}
    assert names == {name for name in vars(Consumer) if not name.startswith("_")}
