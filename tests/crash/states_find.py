"""The state that the next life finds: the real recovery on an image, as a client sees it, for `states_ledger.judge`."""

from __future__ import annotations

import re

from states_disk import Disk, Image
from states_ledger import Found, Ledger, Outcome, Rows, Violation
from states_life import QUEUES, Life, body_of

from amqpd.storage.acks.segment_removal import DELETED
from amqpd.storage.queue_json import DESCRIPTION, read_description, survey


def _stored(disk: Disk, queue: str) -> frozenset[int]:
    directory = f"{QUEUES}/{queue}"
    names = disk.listdir(directory)
    if not any(name.startswith("export-") for name in names):
        return frozenset()
    logs = b"".join(disk.read_file(f"{directory}/{name}") for name in names if name.endswith(".log"))
    return frozenset(int(number) for number in re.findall(rb"%s(\d+)\." % queue.encode(), logs))


def find(life: Life) -> Outcome:
    """Return what clients find in this life's queues."""
    outcome: Outcome = {}
    for queue, store in life.stores.items():
        store.recover()
        records = store.cursor.read(0, 1 << 30).records
        outcome[queue] = Found(
            [(body_of(record), store.redelivered(record.offset), record.delivery_count) for record in records],
            store.record_count,
            store.next_offset,
            records[-1].offset if records else -1,
            list(store.lost),
            _stored(life.disk, queue),
            tuple(record.offset for record in records),
        )
    return outcome


def look(image: Image, rows: Rows, boot: int, segment_size_bytes: int) -> Outcome:
    """Run the real recovery on an image. Raises: Violation if a deleted queue is still there."""
    disk = Disk(image)
    ledger = Ledger()
    ledger.rows = [rows]
    life = Life(disk, ledger, boot, segment_size_bytes=segment_size_bytes)
    outcome = find(life)
    for queue in disk.listdir(QUEUES):
        if rows.get(queue) != "live" and not queue.endswith(DELETED):
            raise Violation(f"the directory of {queue}, which is {rows.get(queue, 'unknown')}, is still there")
    life.forget()
    return outcome


def described(image: Image) -> Rows:
    """Return the rows that a start without metadata restores from the directories."""
    disk = Disk(image)
    found = survey(disk, "/data").queues.get("v", [])
    texts = {queue: disk.read_optional(f"{QUEUES}/{queue}/{DESCRIPTION}") for queue in found}
    return {queue: "live" for queue, text in texts.items() if read_description(text, queue) is not None}
