from __future__ import annotations

from pathlib import Path

import pytest

from millstream.model import TopicPartition
from millstream.storage.checkpoints import BadCheckpoint, read_offsets, write_offsets
from millstream.storage.os_disk import OsDisk


def test_the_file_is_kafkas(tmp_path: Path) -> None:
    path = tmp_path / "recovery-point-offset-checkpoint"
    offsets = {TopicPartition("orders", 0): 42, TopicPartition("a-b.c_d", 12): 1 << 40}
    write_offsets(OsDisk(), str(path), offsets)
    assert path.read_text() == f"0\n2\norders 0 42\na-b.c_d 12 {1 << 40}\n"
    assert read_offsets(OsDisk(), str(path)) == offsets


def test_a_file_that_is_missing_says_nothing(tmp_path: Path) -> None:
    assert read_offsets(OsDisk(), f"{tmp_path}/none") == {}


@pytest.mark.parametrize(
    "text",
    ["", "0\n", "1\n0\n", "0\n2\na 0 1\n", "0\n1\na 0\n", "0\n1\na x 1\n", "0\n1\na 0 1\nb 0 1\n", "\xff"],
)
def test_a_file_that_is_not_whole_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "c"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(BadCheckpoint):
        read_offsets(OsDisk(), str(path))
