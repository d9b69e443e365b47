"""A data directory to damage, its content, and checks of what recovery finds in it.

`Specimen` is a disk image after a life with rolled segments, acks, deliveries and requeues, which was stopped or
killed. `examine` opens a damaged copy with the real recovery, reads everything, appends, kills and opens it again. It
checks that every body was published, that none is there twice, and that the order is right; the caller checks the rest.
"""

from __future__ import annotations

import random
from typing import Final, NamedTuple

from states_disk import Disk, Image
from states_ledger import Ledger, Message
from states_life import ROUTE, Life

from amqpd.storage.log.batch import HEADER_SIZE, BatchHeader

QUEUE: Final = "/data/vhosts/v/queues/q"


class Specimen:
    """messages: all published messages, by body. unsettled: bodies that must be there if nothing is damaged."""

    def __init__(
        self, *, clean: bool, segment_size_bytes: int, turns: int, size: int, settle: bool = True, seed: int = 1
    ) -> None:
        rng = random.Random(seed)
        self.segment_size_bytes = segment_size_bytes
        self.disk = Disk({"/data": None, "/data/vhosts": None, "/data/vhosts/v": None, "/data/vhosts/v/queues": None})
        ledger = Ledger()
        life = Life(self.disk, ledger, 1, segment_size_bytes=segment_size_bytes)
        life.create("q")
        for turn in range(turns):
            life.append("q", rng.randint(1, 3), rng.choice((size, size // 2, 20)))
            life.turn()
            if settle and turn % 3 == 2:
                live = life.live("q")
                life.deliver("q", live[:3])
                life.settle("q", live[1:3])
                life.give_back("q", live[:1])
                life.turn()
        life.storage.commits.flush()
        life.loop()
        if clean:
            life.stop()
        self.image = self.disk.image()
        self.messages = {message.body: message for message in ledger.queues["q"]}
        self.unsettled = [message.body for message in ledger.queues["q"] if not message.settled]

    def files(self) -> list[str]:
        return sorted(path for path, data in self.image.items() if data is not None)

    def logs(self) -> list[str]:
        return [path for path in self.files() if path.endswith(".log")]

    def data(self, path: str) -> bytes:
        data = self.image[path]
        assert data is not None
        return data

    def batches(self, path: str) -> list[tuple[int, int, int, int]]:
        """Return (position, end, first offset, last offset) of each batch in a log."""
        data = self.data(path)
        found = []
        position = 0
        while position + HEADER_SIZE <= len(data):
            header = BatchHeader(data, position)
            found.append((position, position + header.size, header.base_offset, header.last_offset))
            position += header.size
        return found

    def with_file(self, path: str, data: bytes | None) -> Image:
        """Return the image with other content at `path`, or without that file."""
        image = dict(self.image)
        if data is None:
            del image[path]
        else:
            image[path] = data
        return image


class Finding(NamedTuple):
    """bodies: in order. lost: offset ranges that the log reports as lost."""

    bodies: list[bytes]
    offsets: list[int]
    lost: list[tuple[int, int]]
    degraded: bool
    next_offset: int


def examine(specimen: Specimen, image: Image, *, reopen: bool = True) -> Finding:
    """Open a damaged copy, read, append, kill and open it again; return what was found. Raises: AssertionError."""
    finding = _open(specimen, Disk(image), b"")
    if reopen:
        disk = Disk(image)
        _open(specimen, disk, b"new")
        reopened = _open(specimen, disk.killed(), b"")
        appended = [body for body in reopened.bodies if body == b"new"]
        assert len(appended) == 1 and reopened.bodies[-1] == b"new", "a message appended after the damage is missing"
        assert set(finding.bodies) - set(reopened.bodies) == set(), (
            "a message found at the first start is missing at the second"
        )
        assert reopened.offsets[-1] >= finding.next_offset, "an offset was reused"
    return finding


def _open(specimen: Specimen, disk: Disk, new: bytes) -> Finding:
    ledger = Ledger()
    ledger.rows = [{"q": "live"}]
    life = Life(disk, ledger, 1, segment_size_bytes=specimen.segment_size_bytes)
    store = life.stores["q"]
    store.recover()
    records = store.cursor.read(0, 1 << 30).records
    last = -1
    for record in records:
        if record.body == b"new":
            continue
        message: Message | None = specimen.messages.get(record.body)
        assert message is not None, f"wrong bytes at offset {record.offset}: {record.body[:60]!r}"
        assert message.number > last, f"message {message.number} comes after {last}"
        last = message.number
    assert store.record_count == len(records), f"{store.record_count} are counted, {len(records)} are there"
    if new:
        ledger.queues["q"] = []
        store.append_parts(ROUTE, b"", new, True)
        life.turn()
    offsets = [record.offset for record in records]
    assert offsets == sorted(set(offsets))
    bodies = [record.body for record in records]
    return Finding(bodies, offsets, list(store.lost), store.has_lost_offsets, store.next_offset)
