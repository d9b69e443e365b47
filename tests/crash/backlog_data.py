"""Write a data directory with many messages, as a killed broker leaves it. The program ends itself with SIGKILL.

python backlog_data.py DIRECTORY QUEUES RECORDS [BODY_SIZE_BYTES [WRITTEN_QUEUES]]

It declares queues `q0`, `q1` ... in vhost `/` and distributes RECORDS messages over them; none is acked. It uses
`Storage` and the metadata store as the broker does, so the files are those of a broker, at millions of messages a
second. With WRITTEN_QUEUES only so many queues are written. Each COPY_STEPth queue and the last one have copies of
their files; the others have hard links to them, so a test must not use those.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from amqpd.auth.internal_backend import initial_rows
from amqpd.storage.local_log import LocalLog
from amqpd.storage.log.record import RecordRoute
from amqpd.storage.metadata.rows import Put, QueueRow
from amqpd.storage.metadata.store import SqlMetadataStore
from amqpd.storage.storage import Storage

TURN = 500
COPY_STEP = 1000
PROPERTIES = b"\x10\x00\x02"  # delivery mode 2


class PostedCalls:
    """A minimal event loop: `run` calls what was posted."""

    def __init__(self) -> None:
        self._calls: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._changed = threading.Condition()

    def post(self, function: Callable[..., object], *arguments: Any) -> None:
        with self._changed:
            self._calls.append((function, arguments))
            self._changed.notify()

    def run(self, wait_s: float = 0.0) -> None:
        with self._changed:
            if not self._calls and wait_s:
                self._changed.wait(wait_s)
        while self._calls:
            function, arguments = self._calls.popleft()
            function(*arguments)


def body_of(queue: int, number: int, size: int) -> bytes:
    """Return the body of message `number` of a queue, unique so that a test recognizes it."""
    return b"%d.%d." % (queue, number) + b"x" * (size - len(b"%d.%d." % (queue, number)))


def declare(data_dir: Path, storage: Storage, queue_count: int, arguments: bytes, loop: PostedCalls) -> list[LocalLog]:
    metadata = SqlMetadataStore("", data_dir, loop.post)
    state = metadata.open(lambda: initial_rows("guest", "guest", "/"))
    vhost = state.vhosts[0]
    stores = []
    rows = []
    for number in range(queue_count):
        queue_id, store = storage.create_queue(vhost.id, f"q{number}", vhost.name, arguments=arguments)
        stores.append(store)
        rows.append(Put(QueueRow(vhost.name, f"q{number}", queue_id, arguments=arguments)))
    metadata.submit(rows, lambda error: None)
    metadata.close()
    return stores


def fill(
    data_dir: Path,
    queue_count: int,
    record_count: int,
    body_size: int = 100,
    written_count: int = 0,
    arguments: bytes = b"",
) -> None:
    """Declare the queues and append the messages evenly. arguments: of every queue, as an encoded field table."""
    loop = PostedCalls()
    storage = Storage(data_dir, post=loop.post)
    declared = declare(data_dir, storage, queue_count, arguments, loop)
    stores = declared[: written_count or queue_count]
    queue_length = record_count // queue_count
    routes = [RecordRoute(b"", f"q{number}".encode()) for number in range(queue_count)]
    for first in range(0, queue_length, TURN):
        for number, store in enumerate(stores):
            for index in range(first, min(first + TURN, queue_length)):
                store.append_parts(routes[number], PROPERTIES, body_of(number, index, body_size), True)
            if number % 16 == 15 or number == len(stores) - 1:
                storage.commits.end_of_turn()
                while storage.commits.unsynced_bytes > 64 << 20:
                    loop.run(0.1)
                loop.run()
    storage.commits.flush()
    while storage.commits.unsynced_bytes:
        loop.run(0.1)
    for number in range(len(stores), queue_count):
        store = declared[number]
        Path(store.log.directory).mkdir()
        source = stores[number % len(stores)].log.directory
        put = shutil.copyfile if number % COPY_STEP == 0 or number == queue_count - 1 else os.link
        for entry in os.scandir(source):
            put(entry.path, f"{store.log.directory}/{entry.name}")


if __name__ == "__main__":
    fill(Path(sys.argv[1]), *map(int, sys.argv[2:]))
    os.kill(os.getpid(), signal.SIGKILL)
