from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tests.storage.logs import World


def test_files_are_renamed_at_once_and_removed_when_due(world: World) -> None:
    root = Path(world.path)
    for name in ("a.log", "b.log", "c.log"):
        (root / name).write_bytes(b"x")
    world.trash.put_files([f"{root}/a.log", f"{root}/missing.log", f"{root}/b.log"], 1000)
    world.trash.put_files([f"{root}/c.log"], 500)
    assert sorted(path.name for path in root.iterdir()) == ["a.log.deleted", "b.log.deleted", "c.log.deleted"]
    assert world.trash.empty() == 0
    world.clock.ms += 500
    assert world.trash.empty() == 1
    assert len(world.trash) == 2
    world.clock.ms += 500
    assert world.trash.empty() == 2
    assert list(root.iterdir()) == []


def test_all_can_be_removed_before_it_is_due(world: World) -> None:
    folder = Path(world.path, "folder")
    folder.mkdir()
    (folder / "file").write_bytes(b"x")
    world.trash.put_folder(str(folder), 60_000)
    assert world.trash.empty() == 0
    assert world.trash.empty(is_due_only=False) == 1
    assert not folder.exists()


def test_what_is_gone_already_does_no_harm(world: World) -> None:
    path = Path(world.path, "a.log")
    path.write_bytes(b"x")
    world.trash.put_files([str(path)], 0)
    Path(f"{path}.deleted").unlink()
    world.trash.put_folder(f"{world.path}/none", 0)
    assert world.trash.empty() == 2


def test_what_cannot_be_removed_is_tried_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(world.path)
    for name in ("a.log", "b.log"):
        (root / name).write_bytes(b"x")
    world.trash.put_files([f"{root}/a.log", f"{root}/b.log"], 0)
    remove = world.disk.remove

    def refuse(path: str) -> None:
        if path.endswith("/a.log.deleted"):
            raise PermissionError(errno.EPERM, "refused", path)
        remove(path)

    with monkeypatch.context() as patch:
        patch.setattr(world.disk, "remove", refuse)
        assert world.trash.empty() == 1
        assert world.trash.empty(is_due_only=False) == 0
    assert [path.name for path in root.iterdir()] == ["a.log.deleted"]
    world.clock.ms += 60_000
    assert world.trash.empty() == 1
    assert list(root.iterdir()) == []
