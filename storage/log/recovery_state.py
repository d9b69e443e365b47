"""What recovery knows of one log so far; its steps hand it on.

`recovery.begin` goes through them: what the small files tell (recovery_told.py), what a scan finds (recovery_scan.py),
what the medium has lost (damage.py), and in the end what has to be written for it (recovery_rest.py).
"""

from __future__ import annotations

from typing import Final

from amqpd.storage.filesystem import Clock, FileSystem
from amqpd.storage.log.log import Log
from amqpd.storage.log.producer_state import Producers
from amqpd.storage.log.segment import Segment
from amqpd.storage.acks.settled_reader import Entry

# Of entries, before it may be somebody else's turn: some ms.
PIECE_COUNT: Final = 2048


class Recovery:
    """One log's. clean: the clean-shutdown mark, None when there is none to be trusted. entries: of `.settled`, by base
    offset of the segment. scanned, rewrite: segments that were read, and whose `.settled` is to be written anew.
    aborted: (first, last, bytes of bodies) of transactions that are not whole. delivered_mark, returned: the delivery
    mark and the delivery counts, as told. lost: offset ranges. cut: the directory has to be synced; cut_paths: and
    these logs. outdated: files that go when the rest is synced. doubtful: base offsets of segments of whose
    `.settled` something could not be read. snapshot: of the producers, and its offset; snapshot_below: one of what is
    below the last segment, and where it goes. power_cut: this log has not been opened since the machine went.
    """

    def __init__(self, log: Log, strict: bool, clock: Clock, power_cut: bool) -> None:
        self.log = log
        self.power_cut = power_cut
        self.clock = clock
        self.strict = strict
        self.filesystem: FileSystem = log.filesystem
        self.clean: tuple[int, int, int, int] | None = None
        self.last_boot: tuple[int, int] | None = None
        self.scanned: list[Segment] = []
        self.aborted: list[tuple[int, int, int]] = []
        self.delivered_mark = -1
        self.returned: dict[int, int] = {}
        self.lost: list[tuple[int, int]] = []
        self.torn_bytes = 0
        self.started_s = clock.monotonic()
        self.rewrite: list[Segment] = []
        self.cut = False
        self.cut_paths: list[str] = []
        self.outdated: list[str] = []
        self.entries: dict[int, list[Entry]] = {}
        self.doubtful: set[int] = set()
        self.snapshot: tuple[Producers, int] | None = None
        self.snapshot_damaged = False
        self.snapshot_below: tuple[str, bytes] | None = None
