"""Where a broker's SQLite registry is, or may be made."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.broker.own_registry import registry_folder
from millstream.storage.meta_properties import WrongLogDir


def folders(root: Path, *names: str) -> list[str]:
    for name in names:
        (root / name).mkdir(exist_ok=True)
    return [str(root / name) for name in names]


def test_a_new_one_is_made_in_the_first_dir_or_where_it_is_named(tmp_path: Path) -> None:
    dirs = folders(tmp_path, "a", "b")
    assert registry_folder(dirs) == dirs[0]
    assert registry_folder(dirs, "elsewhere") == "elsewhere"


def test_the_one_that_is_there_is_taken_though_another_dir_cannot_be_seen(tmp_path: Path) -> None:
    dirs = folders(tmp_path, "a", "b")
    (tmp_path / "b" / "registry.db").touch()
    (tmp_path / "b" / "meta.properties").touch()
    (tmp_path / "a").rmdir()
    (tmp_path / "a").symlink_to("a")  # a way that never ends is not the same as none
    assert registry_folder(dirs) == dirs[1]


def test_none_is_made_while_one_may_be_where_nothing_can_be_seen(tmp_path: Path) -> None:
    (new,) = folders(tmp_path, "new")
    (tmp_path / "failed").symlink_to("failed")
    with pytest.raises(WrongLogDir, match=f"cannot be seen: .*'{tmp_path}/failed/registry.db'"):
        registry_folder([new, str(tmp_path / "failed")])
    with pytest.raises(WrongLogDir, match="cannot be seen"):
        registry_folder([new], str(tmp_path / "failed"))
    assert registry_folder([new, str(tmp_path / "failed")], str(tmp_path / "else")) == str(tmp_path / "else")


def test_none_is_made_beside_logs(tmp_path: Path) -> None:
    dirs = folders(tmp_path, "a", "b")
    (tmp_path / "b" / "meta.properties").touch()
    with pytest.raises(WrongLogDir, match=f"{dirs[1]} belongs to a cluster whose registry is in none"):
        registry_folder(dirs)
    with pytest.raises(WrongLogDir, match=f"{dirs[1]} belongs to a cluster whose registry is not in else"):
        registry_folder(dirs, "elsewhere")
