"""What the machine itself can do, measured in the same run: the ceilings of every figure beside them."""

from __future__ import annotations

import multiprocessing
import os
import platform
import socket
import struct
import subprocess
import time
from pathlib import Path
from typing import Any

from crc32c import crc32c

from bench.batches import batch_of_size
from bench.frames import ProduceAnswer, produce_frame
from bench.raw import Loader

CHUNK = 1 << 20


def describe() -> dict[str, Any]:
    java = subprocess.run(
        ["java", "-version"], capture_output=True, text=True, check=False
    ).stderr.splitlines()
    model = next(
        (line.split(":", 1)[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        "",
    )
    memory = next((line.split()[1] for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), "0")
    return {
        "cores": os.cpu_count(),
        "processor": model,
        "memory_gb": round(int(memory) / 1e6, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "java": java[0] if java else "",
        "load_average_at_start": os.getloadavg()[0],
    }


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []


QUIET_SECONDS = 1.0
QUIET_SECTORS = 256
LONGEST_SETTLING_SECONDS = 60.0


def settle() -> None:
    """Wait until the disks have nothing to do any more.

    What was measured before left pages to write, and deleted files whose blocks are still being given back.
    """
    os.sync()
    deadline = time.monotonic() + LONGEST_SETTLING_SECONDS
    sectors, since = _sectors_moved(), time.monotonic()
    while time.monotonic() < min(deadline, since + QUIET_SECONDS):
        time.sleep(QUIET_SECONDS / 4)
        moved = _sectors_moved()
        if moved - sectors > QUIET_SECTORS:
            since = time.monotonic()
        sectors = moved


def _sectors_moved() -> int:
    """Sectors read, written and discarded since the machine started; zero where the system does not say."""
    lines = [line.split() for line in _lines("/proc/diskstats")]
    return sum(int(line[column]) for line in lines for column in (5, 9, 16) if column < len(line))


def limits(folder: Path, total_bytes: int) -> dict[str, float]:
    """MB/s of each ceiling."""
    return {
        "loopback TCP": loopback(total_bytes * 4),
        "raw loader against a process that only answers (16 KB batches)": loader_limit(16_000, total_bytes),
        "raw loader against a process that only answers (128 KB batches)": loader_limit(
            128_000, total_bytes * 2
        ),
        "sequential write to the page cache": sequential_write(folder, total_bytes, is_flushed=False),
        "sequential write, flushed to the device": sequential_write(folder, total_bytes, is_flushed=True),
        "fsync of 4 KB, per second": fsync_rate(folder),
        "CRC-32C": checksum(total_bytes * 4),
    }


def _answer_blindly(listener: socket.socket, request_bytes: int, answer: bytes) -> None:
    """Read whole requests of a known size and answer each with fixed bytes, the correlation id counted up."""
    link, _ = listener.accept()
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    buffer = bytearray(CHUNK)
    received = correlation_id = 0
    while count := _receive(link, buffer):
        received += count
        done, received = divmod(received, request_bytes)
        if done:
            answers = bytearray(answer * done)
            for index in range(done) if answer else ():
                struct.pack_into(">i", answers, index * len(answer) + 4, correlation_id)
                correlation_id += 1
            link.sendall(answers)
    link.close()


def _receive(link: socket.socket, buffer: bytearray) -> int:
    """As recv_into; a client that leaves before it has read every answer is at its end too."""
    try:
        return link.recv_into(buffer)
    except ConnectionResetError:
        return 0


def _serve(request_bytes: int, answer: bytes) -> tuple[multiprocessing.Process, int]:
    listener = socket.create_server(("127.0.0.1", 0))
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_answer_blindly, args=(listener, request_bytes, answer))
    process.start()
    port = int(listener.getsockname()[1])
    listener.close()
    return process, port  # type: ignore[return-value]


def loopback(total_bytes: int) -> float:
    """One sender, one receiver, 1 MB at a time; the last byte is confirmed."""
    chunks = max(1, total_bytes // CHUNK)
    process, port = _serve(chunks * CHUNK, b"!" * 8)
    with socket.create_connection(("127.0.0.1", port)) as link:
        data = bytes(CHUNK)
        started = time.perf_counter()
        for _ in range(chunks):
            link.sendall(data)
        link.recv(1)
        seconds = time.perf_counter() - started
    process.join()
    return chunks * CHUNK / seconds / 1e6


def loader_limit(batch_bytes: int, total_bytes: int) -> float:
    """The measuring client against a process that reads, counts and answers, and does nothing else."""
    topic = "bench-00000"
    made = batch_of_size(100, batch_bytes)
    frames = [produce_frame(topic, {index: made.data}, acks=1) for index in range(12)]
    layout = ProduceAnswer(topic)
    answer = struct.pack(">i", layout.size - 4) + bytes(layout.size - 4)
    process, port = _serve(len(frames[0]), answer)
    loader = Loader(port, frames, layout, depth=24)
    try:
        sent = loader.run(total_bytes // len(frames[0]))
    finally:
        loader.close()
        process.join()
    return sent.sent_bytes / sent.seconds / 1e6


def sequential_write(folder: Path, total_bytes: int, *, is_flushed: bool) -> float:
    path = folder / "sequential-write"
    data = os.urandom(CHUNK)
    try:
        with path.open("wb", buffering=0) as file:
            started = time.perf_counter()
            for _ in range(max(1, total_bytes // CHUNK)):
                file.write(data)
            if is_flushed:
                os.fsync(file.fileno())
            return total_bytes / (time.perf_counter() - started) / 1e6
    finally:
        path.unlink(missing_ok=True)


def fsync_rate(folder: Path, count: int = 300) -> float:
    path = folder / "fsync"
    data = bytes(4096)
    try:
        with path.open("wb", buffering=0) as file:
            started = time.perf_counter()
            for _ in range(count):
                file.write(data)
                os.fdatasync(file.fileno())
            return count / (time.perf_counter() - started)
    finally:
        path.unlink(missing_ok=True)


def checksum(total_bytes: int) -> float:
    data = bytes(64 << 10)
    rounds = max(1, total_bytes // len(data))
    started = time.perf_counter()
    for _ in range(rounds):
        crc32c(data)
    return rounds * len(data) / (time.perf_counter() - started) / 1e6
