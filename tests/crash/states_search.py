"""Walks through the states that crashes may leave: at each step of a workload, at each step of the recovery from one of
them, and at each step of the life that follows.

Every image that a power cut (or a kill) may leave is opened by the real recovery and judged; some are lived in: the
recovery itself is watched, then messages are appended, delivered and settled, the life stops or goes on, and each step
of that is crashed and recovered in turn (a double crash; `depth_max` 3 makes it a triple one). States are counted once,
however often they are met: a state is every byte of the disk and the rows of the metadata. What a state opens to is
remembered for a while and judged against each ledger that it is met with.

One seed, one search, in the same order.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Final

from states_disk import Disk, Image, key_of
from states_ledger import Ledger, Message, Outcome, Rows, Violation, judge
from states_life import Life, find, look

from amqpd.storage.cleaner import CleanerPolicy
from amqpd.storage.retention import RetentionPolicy

REMEMBERED_MAX: Final = 30_000


class Search:
    """seen: keys of the states met, shared by searches that are counted together.

    draws: images by lot at each step. share: of the images that power cuts may leave, how many are looked at.
    lived_in: share of the new states that are lived in; twenty times that where a cleaning is half done. states_max:
    enough.
    """

    def __init__(
        self,
        seed: int,
        seen: set[int],
        *,
        draws: int = 6,
        share: float = 1.0,
        lived_in: float = 0.02,
        depth_max: int = 2,
        states_max: int = 1 << 60,
    ) -> None:
        self.chance = random.Random(seed)
        self.seen = seen
        self.judged = 0
        self.lives = 0
        self.doubles = 0  # states first met behind a first crash
        self._draws = draws
        self._share = share
        self._lived_in = lived_in
        self._depth_max = depth_max
        self._states_max = len(seen) + states_max
        self._remembered: dict[tuple[int, int, int], Outcome] = {}
        self._last: tuple[Ledger, int] = (Ledger(), -1)
        self._judged: set[tuple[int, int, str]] = set()  # with the last ledger, as it stood
        self._segment_size_bytes = 0

    def run(self, workload: Workload) -> None:
        """Raises: AssertionError."""
        try:
            self._run(workload)
        except Violation as violation:
            raise AssertionError(f"{workload.name}: {violation}") from violation

    def _run(self, workload: Workload) -> None:
        self._segment_size_bytes = workload.segment_size_bytes
        self._remembered.clear()
        ledger = Ledger()
        disk = Disk({"/data": None, "/data/vhosts": None, "/data/vhosts/v": None, "/data/vhosts/v/queues": None})
        life = self._life(disk, ledger, 1)
        for now in workload.lives(self, disk, ledger, life):
            self._crash_now(now.disk, ledger, life_boot(now), 1)
        disk.watch = None

    def _life(self, disk: Disk, ledger: Ledger, boot: int, depth: int = 1) -> Life:
        disk.watch = lambda: self._crash_now(disk, ledger, boot, depth)
        return Life(disk, ledger, boot, segment_size_bytes=self._segment_size_bytes)

    def again(self, disk: Disk, ledger: Ledger, boot: int, *, safe: bool) -> Life:
        """The next life of a workload that stops or is killed by itself."""
        disk.watch = None
        outcome = None
        disk.watch = lambda: self._crash_now(disk, ledger, boot, 1)
        life = Life(disk, ledger, boot, segment_size_bytes=self._segment_size_bytes)
        outcome = find(life)
        judge(outcome, ledger, "kill")
        life.adopt(outcome, safe=safe)
        return life

    def _crash_now(self, disk: Disk, ledger: Ledger, boot: int, depth: int) -> None:
        if len(self.seen) >= self._states_max:
            return
        for rows in ledger.rows:
            for image in disk.images(self.chance, self._draws if depth == 1 else 2):
                if self.chance.random() >= self._share:
                    continue
                self._examine(image, rows, ledger, "cut", boot + 1, depth)
            self._examine(disk.image(), rows, ledger, "kill", boot, depth)
            half_done = any(path.endswith(".log.swap") for path in disk.entries)
            if depth < self._depth_max and self.chance.random() < self._lived_in * (20 if half_done else 1):
                self._live_on(disk.killed(), rows, ledger, boot, depth + 1, "kill")

    def _examine(self, image: Image, rows: Rows, ledger: Ledger, kind: str, boot: int, depth: int) -> None:
        state = key_of(image)
        names = hash(frozenset(rows.items()))
        key = state ^ names
        known = (state, names, boot)
        new = key not in self.seen
        if self._last != (ledger, ledger.version):
            self._last = (ledger, ledger.version)
            self._judged = set()
        if (state, names, kind) in self._judged:
            return
        self._judged.add((state, names, kind))
        try:
            outcome = self._remembered.get(known)
            if outcome is None:
                outcome = look(image, rows, boot, self._segment_size_bytes)
                if len(self._remembered) >= REMEMBERED_MAX:
                    self._remembered.clear()
                self._remembered[known] = outcome
            self.judged += 1
            judge(outcome, ledger, kind)
        except Violation as violation:
            where = f"depth {depth}, boot {boot}, rows {rows}"
            raise Violation(f"{violation}\n{where}\n{_describe(image)}") from violation
        if new:
            self.seen.add(key)
            self.doubles += depth > 1
            if depth < self._depth_max and self.chance.random() < self._lived_in:
                self._live_on(Disk(image), rows, ledger, boot, depth + 1, kind)

    def _live_on(self, disk: Disk, rows: Rows, ledger: Ledger, boot: int, depth: int, kind: str) -> None:
        """A start on this disk, watched, and some messages more."""
        self.lives += 1
        ledger = ledger.copy()
        ledger.rows = [rows]
        if kind == "cut":
            ledger.power_cut()
        life = self._life(disk, ledger, boot, depth)
        outcome = find(life)
        judge(outcome, ledger, kind)
        life.adopt(outcome, safe=kind == "cut")
        life.loop()
        chance = self.chance
        for queue in list(life.stores):
            if chance.random() < 0.7:
                life.append(queue, chance.randint(1, 3), chance.choice((10, 300, 900)))
            if queue in ledger.policies and chance.random() < 0.5:
                life.maintain()
            live = [each for each in life.live(queue) if each.offset >= 0]
            if live and chance.random() < 0.5:
                life.write()
                life.settle(queue, live[: chance.randint(1, 3)])
            if chance.random() < 0.5:
                life.write()
                life.deliver(queue, life.live(queue)[:2])
        life.turn()
        if chance.random() < 0.3:
            life.flush()
        if chance.random() < 0.3:
            life.stop()
        disk.watch = None


def life_boot(life: Life) -> int:
    return int(life.storage.boot_id, 16)


def _describe(image: Image) -> str:
    lines = []
    for path, data in sorted(image.items()):
        if data is not None:
            lines.append(f"  {path}: {len(data)} bytes")
    return "\n".join(lines)


Steps = Callable[[Life, random.Random], Iterator[None]]


class Workload:
    """A script that yields after each step; `restart` steps are written by `lives`. name: for reports."""

    def __init__(self, name: str, script: Steps, segment_size_bytes: int = 2000, ends: tuple[str, ...] = ()) -> None:
        self.name = name
        self.segment_size_bytes = segment_size_bytes
        self._script = script
        self._ends = ends  # how the lives end that are followed by another: "stop" or "kill"

    def lives(self, search: Search, disk: Disk, ledger: Ledger, life: Life) -> Iterator[Life]:
        """Yields the life after each step."""
        boot = 1
        for end in (*self._ends, ""):
            for _ in self._script(life, search.chance):
                yield life
            if end == "stop":
                life.stop()
                yield life
                life = search.again(disk, ledger, boot, safe=True)
            elif end == "kill":
                killed = disk.killed()
                disk.watch = None
                disk = killed
                life = search.again(disk, ledger, boot, safe=False)
                life.flush()  # what only the page cache knew is safe from here on
                yield life


# -- the workloads


def append_and_confirm(life: Life, chance: random.Random) -> Iterator[None]:
    if "q" not in life.stores:
        life.create("q")
    for _ in range(5):
        life.append("q", chance.randint(1, 3), chance.choice((10, 100, 700)))
        life.write()
        yield
        life.loop()
        yield
    life.append("q", 2, 1400)
    life.append("q", 2, 10, persistent=False)
    life.append("q", 1, 10)
    life.turn()
    yield


def segment_roll(life: Life, chance: random.Random) -> Iterator[None]:
    if "q" not in life.stores:
        life.create("q")
    for _ in range(4):
        life.append("q", 3, chance.choice((300, 650)))
        life.turn()
        yield
        if chance.random() < 0.5:
            life.settle("q", life.live("q")[:2])
            life.write()
    live = life.live("q")
    life.settle("q", live[2 : len(live) - 1])  # a drained segment in the middle, then the head
    life.turn()
    yield
    life.settle("q", life.live("q"))
    life.turn()
    life.flush()
    yield
    life.append("q", 2, 650)
    life.turn()
    yield
    for _ in range(3):
        life.append("q", 1, 1200)
        life.turn()
    life.flush()
    life.settle("q", life.live("q")[:1])  # in a segment that is sealed; the kill comes before the sync
    life.write()
    yield


def settle_and_requeue(life: Life, chance: random.Random) -> Iterator[None]:
    life.create("q")
    life.append("q", 8, 40)
    life.append("q", 2, 40, persistent=False)
    life.turn()
    yield
    live = life.live("q")
    life.deliver("q", live[:5])
    life.settle("q", live[0:4:2])
    life.write()
    life.give_back("q", live[1:4:2])
    life.turn()
    yield
    life.flush()
    life.deliver("q", live[1:4:2])
    life.give_back("q", live[1:2])
    life.append("q", 2, 500)
    life.turn()
    yield
    life.deliver("q", life.live("q"))
    life.settle("q", life.live("q"))
    life.append("q", 1, 40)
    life.turn()
    yield


def purge(life: Life, chance: random.Random) -> Iterator[None]:
    life.create("q")
    for _ in range(2):
        life.append("q", chance.randint(5, 9), 300)
        life.turn()
        life.append("q", 2, 40)
        life.purge("q")
        life.write()
        yield
        life.loop()
        life.flush()
        yield
        life.append("q", 1, 30)
        life.turn()
    yield


def delete_and_redeclare(life: Life, chance: random.Random) -> Iterator[None]:
    for number in range(4):
        queue = f"q{number}"
        life.create(queue)
        life.append(queue, chance.randint(1, 4), chance.choice((20, 800)))
        life.write()
        if number % 2 == 0:
            life.loop()
            life.settle(queue, life.live(queue)[:1])
            life.write()
        yield
        life.delete(queue, row_first=number > 1)  # the same name, another id
        life.loop()
        yield
    life.create("q9")
    life.append("q9", 2)
    life.turn()
    yield


def metadata_with_creation(life: Life, chance: random.Random) -> Iterator[None]:
    for number in range(5):
        life.create(f"q{number}")
        if number:
            life.append(f"q{number - 1}", 1, chance.choice((10, 600)))
        if number % 2:
            life.turn()
        yield
    life.append("q4", 1)
    life.turn()
    yield


def transactions(life: Life, chance: random.Random) -> Iterator[None]:
    if "q" not in life.stores:
        life.create("q")
        life.create("r")
    life.append("q", 1)
    life.transaction("q", 3, 30)
    life.transaction("r", 2, 600)
    life.turn()
    yield
    life.transaction("q", 70, 12)  # two batches and a marker
    life.append("q", 1)
    life.write()
    yield
    life.loop()
    life.transaction("q", 66, chance.choice((10, 60)))
    life.settle("q", life.live("q")[:20])
    life.turn()
    yield
    life.transaction("r", 65, 30)
    life.turn()
    yield


def index_rebuild(life: Life, chance: random.Random) -> Iterator[None]:
    if "q" not in life.stores:
        life.create("q")
    for _ in range(3):
        for _ in range(2):
            life.append("q", 1, chance.choice((1500, 2600)))
            life.write()
        life.loop()
        yield
    life.settle("q", life.live("q")[1:4])
    life.turn()
    yield


def clean_shutdown(life: Life, chance: random.Random) -> Iterator[None]:
    if "q" not in life.stores:
        life.create("q")
        life.create("idle")
    life.append("q", chance.randint(1, 3), chance.choice((30, 900)))
    life.append("q", 1, 30, persistent=False)
    life.turn()
    yield
    life.deliver("q", life.live("q")[:2])
    life.settle("q", life.live("q")[:1])
    life.write()
    yield


def settled_written_anew(life: Life, chance: random.Random) -> Iterator[None]:
    life.create("q")
    life.append("q", 30, 10)
    life.turn()
    for _ in range(5):
        for segment in life.stores["q"].log.segments:
            segment.rewrite_from = min(segment.rewrite_from, 250)
        life.settle("q", life.live("q")[: chance.randint(2, 9) : 2])
        life.append("q", 1, 10)
        life.turn()
        yield


def turns_during_sync(life: Life, chance: random.Random) -> Iterator[None]:
    if "q" not in life.stores:
        life.create("q")
        life.create("r")

    def meanwhile() -> None:
        life.append("q", 1, chance.choice((20, 700)))
        for segment in life.stores["q"].log.segments:
            segment.rewrite_from = min(segment.rewrite_from, 250)  # `.settled` is written anew, too
        live = [each for each in life.live("q") if each.written]
        if live:
            life.settle("q", live[:1])
        life.write()

    for _ in range(3):
        life.append("q", 2, chance.choice((20, 600)))
        life.append("r", 1, 20)
        life.disk.during_sync = meanwhile
        life.write()
        life.disk.during_sync = None
        yield
        life.loop()
        yield


def many_queues(life: Life, chance: random.Random) -> Iterator[None]:
    names = [f"q{number}" for number in range(6)]
    for name in names:
        life.create(name)
    for _ in range(2):
        for name in names:
            life.append(name, 1, 40)  # two files each: one syncfs for all
        life.turn()
        yield
    for name in names:
        life.settle(name, life.live(name)[:1])
    life.turn()
    yield


def dead_letter(life: Life, chance: random.Random) -> Iterator[None]:
    life.create("q")
    life.create("dead")
    for _ in range(3):
        life.append("q", 3, 60)
        life.turn()
        taken = life.live("q")[:2]
        life.append("dead", len(taken), 60)
        life.write()
        yield
        life.loop()  # the targets are safe, so the sources may be settled
        life.settle("q", taken)
        life.turn()
        yield


def retention(life: Life, chance: random.Random) -> Iterator[None]:
    if "q" not in life.stores:
        life.create("q", RetentionPolicy(max_records=5, file_delete_delay_ms=chance.choice((0, 2000))))
        by_bytes = RetentionPolicy(max_bytes=2500, file_delete_delay_ms=0)
        by_age = RetentionPolicy(max_age_ms=3000, segment_age_ms=1500, file_delete_delay_ms=0)
        life.create("r", chance.choice((by_bytes, by_age)))
    for _ in range(2):
        for _ in range(2):
            for queue in ("q", "r"):
                life.append(queue, chance.randint(1, 3), chance.choice((60, 500, 900)))
            life.turn()
            life.pass_time(1000)
        life.maintain()
        yield
    live = life.live("q")
    if live:
        life.trim("q", live[len(live) // 2].offset)
    yield
    life.loop()
    life.pass_time(3000)
    life.maintain()
    yield


def compaction(life: Life, chance: random.Random) -> Iterator[None]:
    if "q" not in life.stores:
        cleaner = CleanerPolicy(min_dirty_ratio=0.0, tombstone_retention_ms=4000)
        life.create("q", RetentionPolicy(file_delete_delay_ms=chance.choice((0, 2000)), compaction=cleaner))
    for turn in range(3):
        for _ in range(4):
            life.append("q", 1, chance.choice((60, 700)), key=b"k%d" % chance.randrange(3))
            if chance.random() < 0.3:
                life.turn()
        life.append("q", 1, key=b"k%d" % chance.randrange(3), tombstone=True)
        life.turn()
        life.pass_time(3000)
        yield
        life.maintain()
        yield
        if turn == 1:
            live = life.live("q")
            life.settle("q", live[:1])
            life.turn()
    life.pass_time(9000)
    life.append("q", 1, 1200, key=b"k9")
    life.append("q", 1, 1200, key=b"k9")
    life.maintain()
    yield


def export_hold(life: Life, chance: random.Random) -> Iterator[None]:
    if "q" not in life.stores:
        life.create("q", export="nightly")
        life.create("r")
        life.append("r", 2, 900)
        life.turn()
        life.hold("r", "hourly")
        life.create("s")
        life.hold("s", "hourly")  # which has no directory yet
        yield
    for _ in range(3):
        for queue in ("q", "r", "s"):
            life.append(queue, chance.randint(2, 3), chance.choice((300, 900)))
        life.turn()
        for queue in ("q", "r", "s"):
            life.settle(queue, life.live(queue)[: chance.randint(2, 4)])
        life.turn()
        life.flush()
        yield
        for queue, name in (("q", "nightly"), ("r", "hourly"), ("s", "hourly")):
            if chance.random() < 0.6:
                settled = [each.offset for each in life.ledger.queues[queue] if each.settled]
                life.exported(queue, name, chance.choice(settled) + 1)
        life.turn()
        life.flush()
        yield
    life.purge("q")
    life.turn()
    yield


WORKLOADS: Final = (
    Workload("append and confirm", append_and_confirm, ends=("kill",)),
    Workload("segment roll", segment_roll, ends=("kill", "stop")),
    Workload("settle and requeue", settle_and_requeue),
    Workload("purge", purge),
    Workload("delete and declare again", delete_and_redeclare),
    Workload("metadata with queue creation", metadata_with_creation),
    Workload("transaction commit", transactions),
    Workload("transactions in one segment", transactions, 60_000, ends=("kill",)),
    Workload("index rebuild", index_rebuild, 9000, ends=("kill", "stop")),
    Workload("clean shutdown", clean_shutdown, ends=("stop", "kill", "stop")),
    Workload("settlements written anew", settled_written_anew, 60_000),
    Workload("turns during a sync", turns_during_sync, 60_000),
    Workload("many queues, one syncfs", many_queues),
    Workload("dead letters", dead_letter),
    Workload("retention", retention, ends=("kill",)),
    Workload("compaction", compaction, ends=("kill",)),
    Workload("export hold", export_hold, ends=("kill",)),
)

__all__ = ["WORKLOADS", "Message", "Search", "Violation", "Workload"]
