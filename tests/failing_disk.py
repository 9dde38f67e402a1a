"""A file system of its own on a real block device, which can be made to fail, and to come back."""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

SIZE_BYTES = 64 << 20
EXT4_SHUTDOWN = 0x8004587D
"""The ioctl after which ext4 answers everything with EIO, as when its device is gone."""


class FailingDisk:
    """An ext4 file system at `folder`, from an image beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._image = folder.with_suffix(".img")
        folder.mkdir(parents=True)
        with self._image.open("wb") as file:
            file.truncate(SIZE_BYTES)
        _run("mkfs.ext4", "-q", "-F", str(self._image))
        self._mount()

    def fail(self) -> None:
        """Nothing can be read or written any more."""
        folder = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.ioctl(folder, EXT4_SHUTDOWN, struct.pack("I", 0))
        finally:
            os.close(folder)

    def become_read_only(self) -> None:
        """What ext4 does by itself when it meets an error."""
        device = next(
            Path(line.split()[0]).name
            for line in Path("/proc/mounts").read_text().splitlines()
            if line.split()[1] == str(self.folder)
        )
        Path(f"/sys/fs/ext4/{device}/trigger_fs_error").write_text("a test\n")

    def remove(self) -> None:
        """Take it away; its folder is empty then. Who has its files open keeps them."""
        _run("umount", "--lazy", str(self.folder))

    def come_back(self) -> None:
        """Mend it and mount it, with all that was on it; from a copy, as the old one may still be in use."""
        mended = self._image.with_suffix(".mended.img")
        shutil.copy(self._image, mended)
        self._image = mended
        subprocess.run(["fsck.ext4", "-y", str(mended)], capture_output=True)
        self._mount()

    def _mount(self) -> None:
        _run("mount", "-o", "loop,errors=remount-ro", str(self._image), str(self.folder))


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"file systems cannot be made here: {done.stderr.strip()}")


@contextmanager
def failing_disk(folder: Path) -> Iterator[FailingDisk]:
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("there is no mkfs.ext4")
    try:
        yield FailingDisk(folder)
    finally:
        if os.path.ismount(folder):
            subprocess.run(["umount", "--lazy", str(folder)], check=True, capture_output=True)
