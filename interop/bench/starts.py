"""The time and memory of a start with many queues, vhosts or bindings: a curve.

    python -m interop.bench.starts [--counts 1000,10000,50000,100000] [--directory DIR]

For each count the broker's own storage and metadata write a data directory: one queue with a message, as after a clean
stop or a kill, whose directory is copied for all others. Then a broker is started on it. `ready` is the time in the
ready line; RSS and CPU are read when the HTTP API answers. No queue is opened by then.
100,000 queues need about 3 GB and a million inodes during the measurement.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from amqpd.auth.internal_backend import initial_rows
from amqpd.storage.log.record import RecordRoute
from amqpd.storage.metadata.rows import BindingRow, Put, QueueRow, Row, UserRow, VhostRow
from amqpd.storage.metadata.store import SqlMetadataStore, random_id
from amqpd.storage.queue_json import describe
from amqpd.storage.storage import Storage
from amqpd.testing import BrokerProcess

COUNTS: Final = "1000,10000,50000,100000"
ROWS_PER_COMMIT: Final = 10_000
START_S: Final = 300.0


class _Loop:
    """An event loop that calls what other threads post."""

    def __init__(self) -> None:
        self._calls: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self._lock = threading.Lock()

    def post(self, call: Callable[..., object], *arguments: object) -> None:
        with self._lock:
            self._calls.append((call, arguments))

    def run(self) -> None:
        with self._lock:
            calls, self._calls = self._calls, []
        for call, arguments in calls:
            call(*arguments)


def fill(data_dir: Path, kind: str, count: int, clean: bool) -> None:
    """Fill a data directory. kind: `queues` with a directory and a message each, or only rows: `vhosts`, `bindings`,
    `users`.
    """
    loop = _Loop()
    storage = Storage(data_dir, post=loop.post)
    metadata = SqlMetadataStore("", data_dir, loop.post)
    vhost = metadata.open(lambda: initial_rows("guest", "guest", "/")).vhosts[0]
    rows: list[Row] = []
    if kind == "vhosts":
        rows = [VhostRow(f"v{number}", random_id()) for number in range(count)]
    elif kind == "users":
        rows = [UserRow(f"u{number}", "", "argon2id") for number in range(count)]
    elif kind == "bindings":
        rows = [QueueRow("/", f"q{number}", random_id()) for number in range(100)]
        rows += [BindingRow("/", "amq.topic", f"q{each % 100}", "queue", f"a.{each}") for each in range(count)]
    else:
        first, store = storage.create_queue(vhost.id, "q0", "/")
        store.append_parts(RecordRoute(b"", b"q"), b"\x10\x00\x02", b"x" * 100, True)
        rows = [QueueRow("/", "q0", first)]
        rows += [QueueRow("/", f"q{number}", random_id()) for number in range(1, count)]
    for start in range(0, len(rows), ROWS_PER_COMMIT):
        metadata.submit([Put(row) for row in rows[start : start + ROWS_PER_COMMIT]], _done)
    metadata.close(600)
    storage.commits.flush()
    while storage.commits.unsynced_bytes:
        loop.run()
        time.sleep(0.001)
    if clean:
        storage.close(clean=True)
    if kind == "queues":
        _copy(data_dir / "vhosts" / vhost.id / "queues", rows)
    if not clean:
        os.kill(os.getpid(), signal.SIGKILL)


def _copy(directory: Path, rows: list[Row]) -> None:
    """Copy the first queue's files for all others, each with its own queue.json."""
    queues = [row for row in rows if isinstance(row, QueueRow)]
    files = {path.name: path.read_bytes() for path in (directory / queues[0].id).iterdir()}
    for row in queues[1:]:
        files["queue.json"] = describe(row.name, "/", False, b"", row.id)
        (directory / row.id).mkdir()
        for name, content in files.items():
            (directory / row.id / name).write_bytes(content)


def _done(error: BaseException | None) -> None:
    if error is not None:
        raise error


def measure(data_dir: Path, kind: str, count: int, clean: bool) -> tuple[int, int, float]:
    """Return milliseconds to ready, RSS in MB, and CPU seconds until the HTTP API answered."""
    command = [sys.executable, "-P", __file__, "--fill", str(data_dir), kind, str(count), str(int(clean))]
    made = subprocess.run(command, check=False)
    assert made.returncode == (0 if clean else -signal.SIGKILL), made.returncode
    with BrokerProcess(data_dir, start_timeout_s=START_S) as broker:
        broker.api("GET", "/api/whoami", timeout_s=60)
        status = Path(f"/proc/{broker.pid}/status").read_text("ascii")
        times = Path(f"/proc/{broker.pid}/stat").read_text("ascii").rpartition(")")[2].split()
        (rss,) = [int(line.split()[1]) // 1024 for line in status.splitlines() if line.startswith("VmRSS")]
        cpu_s = (int(times[11]) + int(times[12])) / os.sysconf("SC_CLK_TCK")
        assert broker.ready is not None
        took_ms = broker.ready.took_ms
        listed = broker.ctl("-q", "list_queues", "name", "--no-table-headers", timeout_s=START_S).stdout
        assert kind != "queues" or len(listed.splitlines()) == count, listed[-1000:]
        broker.kill()
    return took_ms, rss, cpu_s


def main() -> None:
    """Print a row of a Markdown table after each measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--counts", default=COUNTS, help=f"of queues (default: {COUNTS})")
    parser.add_argument("--others", action=argparse.BooleanOptionalAction, default=True, help="vhosts, bindings, users")
    parser.add_argument("--directory", type=Path, default=None, help="where the data goes (default: a temporary one)")
    parser.add_argument("--fill", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.fill:
        fill(Path(given.fill[0]), given.fill[1], int(given.fill[2]), given.fill[3] == "1")
        return
    cases = [("queues", int(count), clean) for count in given.counts.split(",") for clean in (True, False)]
    if given.others:
        cases += [("vhosts", 10_000, True), ("bindings", 100_000, True), ("users", 10_000, True)]
    print("| what | after | ready | CPU until the API answers | RSS |\n|---|---|---|---|---|", flush=True)
    for kind, count, clean in cases:
        with tempfile.TemporaryDirectory(dir=given.directory) as directory:
            took_ms, rss, cpu_s = measure(Path(directory) / "data", kind, count, clean)
            after = "a clean stop" if clean else "a kill"
            print(f"| {count:,} {kind} | {after} | {took_ms:,} ms | {cpu_s:.2f} s | {rss} MB |", flush=True)
            shutil.rmtree(Path(directory) / "data")


if __name__ == "__main__":
    main()
