"""The registry that a configuration names."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from millstream.config.keys import ConfigError
from millstream.registry.choice import make_registry
from millstream.registry.memory import MemoryRegistry
from millstream.registry.zookeeper import ZookeeperRegistry, parse_address


def test_sqlite_keeps_its_file_in_the_folder_or_where_it_is_told(tmp_path: Path) -> None:
    async def story() -> None:
        for text in ("sqlite", f"sqlite:{tmp_path / 'elsewhere'}"):
            registry = make_registry(text, str(tmp_path / "here"), 6000)
            await registry.start()
            await registry.create("/a")
            await registry.close()

    asyncio.run(story())
    assert (tmp_path / "here" / "registry.db").exists()
    assert (tmp_path / "elsewhere" / "registry.db").exists()


def test_memory_is_one_tree_per_registry() -> None:
    assert isinstance(make_registry("memory", "", 6000), MemoryRegistry)


def test_zookeeper_has_servers_and_a_root() -> None:
    made = make_registry("zookeeper://one,two:2182/millstream", "", 6000)
    assert isinstance(made, ZookeeperRegistry)
    assert made._patience_s == 18, "three session time-outs: the servers may be starting at the same time"
    assert parse_address("zookeeper://one,two:2182/deep/tree") == ("one,two:2182", "/deep/tree")
    assert parse_address("zookeeper://one") == ("one", "")
    for bad in (
        "zookeeper:one",
        "zookeeper://",
        "zookeeper://one,/x",
        "zookeeper://one/x/",
        "zookeeper://one//x",
    ):
        with pytest.raises(ConfigError):
            make_registry(bad, "", 6000)


def test_what_is_not_there_is_said() -> None:
    with pytest.raises(ConfigError, match="etcd"):
        make_registry("etcd://localhost", "", 6000)
