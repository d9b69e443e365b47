"""A writing process is killed; the messages reported as safe are in the log."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import amqpd
from amqpd.storage.storage import Storage

WRITER = """
import queue, sys
from amqpd.storage.log.record import RecordRoute
from amqpd.storage.storage import Storage
posted = queue.SimpleQueue()
post = lambda function, *arguments: posted.put((function, arguments))
storage = Storage(sys.argv[1], post=post, segment_size_bytes=200_000)
queue_id, store = storage.create_queue("v", "tasks", "/")
print("queue", queue_id, flush=True)
route = RecordRoute(b"", b"tasks")
ends = {}
def commit(generation, failed):
    print("safe", ends.get(generation, 0), settled, flush=True)
storage.commits.on_commit = commit
settled = 0
while True:
    for _ in range(20):
        offset = store.append_parts(route, b"", b"%d" % store.next_offset * 30, True)
    ends[storage.commits.generation] = offset + 1
    while settled < offset - 500:
        store.ack(settled)
        settled += 1
    storage.commits.end_of_turn()
    while not posted.empty():
        function, arguments = posted.get()
        function(*arguments)
"""


def test_messages_reported_as_safe_survive_sigkill(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(amqpd.__file__).parent.parent)}
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout is not None
    queue_id = process.stdout.readline().split()[1]
    for line in process.stdout:
        if int(line.split()[1]) > 5000:
            break
    process.send_signal(signal.SIGKILL)
    rest = [line for line in process.stdout if line.endswith("\n")]
    process.stdout.close()
    process.wait()
    _, safe, acked = [line, *rest][-1].split()
    posted: queue.SimpleQueue[tuple[Callable[..., object], tuple[Any, ...]]] = queue.SimpleQueue()
    storage = Storage(tmp_path, post=lambda function, *arguments: posted.put((function, arguments)))
    store = storage.open_queue("v", queue_id)
    records = store.cursor.read(0, 1 << 40).records
    offsets = [record.offset for record in records]
    assert offsets == list(range(offsets[0], store.next_offset))
    assert store.next_offset >= int(safe)
    assert offsets[0] <= store.next_offset - 500, "no younger offset was acked"
    assert offsets[0] >= int(acked) - 1000, "offsets acked long ago stay removed"
    assert all(record.body == b"%d" % record.offset * 30 for record in records)
    assert not store.has_lost_offsets
    assert not store.redelivered(offsets[0]), "nothing was ever delivered"
    while len(list((tmp_path / "vhosts" / "v" / "queues" / queue_id).glob("*.log"))) > 4:
        function, arguments = posted.get(timeout=60)  # the space is freed without further calls
        function(*arguments)
    storage.close(clean=False)
