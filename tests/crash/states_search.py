"""Walks through the states that crashes may leave: at each step of a workload, at each step of the recovery from one of
them, and at each step of the life that follows.

Every image that a power cut (or a kill) may leave is opened by the real recovery and judged; some are lived in: the
recovery itself is watched, then messages are appended, delivered and settled, the life stops or goes on, and each step
of that is crashed and recovered in turn (a double crash; `depth_max` 3 makes it a triple one). States are counted once,
however often they are met: a state is every byte of the disk and the rows of the metadata. What a state opens to is
remembered for a while and judged against each ledger that it is met with.

Every other life is paced, by lot; all lives are in a workload that says so.

One seed, one search, in the same order.
"""

from __future__ import annotations

import gc
import random
from array import array
from collections.abc import Iterator
from typing import Any, Final

from states_disk import Disk, Image, key_of
from states_find import described, find, look
from states_ledger import Ledger, Outcome, Rows, Violation, judge
from states_life import QUEUES, Life
from states_workloads import Workload

REMEMBERED_MAX: Final = 30_000
COLLECTED_EVERY: Final = 2000  # looks
LOST_MAX: Final = 2  # images of a step that are also looked at without metadata


class Search:
    """seen: keys of the states met, shared by searches that are counted together.

    moments: share of the steps at which a crash is looked at. draws: images by lot at each of them. share: of the
    images that power cuts may leave, how many are looked at; step_max: at one step at most, by lot, a sixteenth of it
    behind a crash, so that the widest disks, whose lives have lives, do not take all the time.
    lived_in: share of the new states that are lived in; twenty times that where a cleaning is half done. states_max:
    enough.
    """

    def __init__(
        self,
        seed: int,
        seen: set[int],
        *,
        moments: float = 1.0,
        draws: int = 6,
        share: float = 1.0,
        lived_in: float = 0.02,
        depth_max: int = 2,
        step_max: int = 1 << 60,
        states_max: int = 1 << 60,
    ) -> None:
        self.chance = random.Random(seed)
        self.seen = seen
        self.judged = 0
        self.lives = 0
        self.new = array("q")  # keys of the states first met here, before the first crash and behind it
        self.new_doubles = array("q")
        self._moments = moments
        self._draws = draws
        self._share = share
        self._lived_in = lived_in
        self._depth_max = depth_max
        self._step_max = step_max
        self._states_max = len(seen) + states_max
        self._remembered: dict[object, Outcome] = {}
        self._last: tuple[Ledger, int] = (Ledger(), -1)
        self._judged: set[tuple[int, int, str]] = set()  # with the last ledger, as it stood
        self._segment_size_bytes = 0
        self._paced = False
        self._looks = 0

    def run(self, workload: Workload) -> None:
        """Raises: AssertionError."""
        gc.disable()  # what is remembered has no circles, what a look leaves behind has: see `_look`
        try:
            self._run(workload)
        except Violation as violation:
            raise AssertionError(f"{workload.name}: {violation}") from violation
        finally:
            gc.unfreeze()
            gc.enable()

    def _run(self, workload: Workload) -> None:
        self._segment_size_bytes = workload.segment_size_bytes
        self._paced = workload.paced
        self._remembered.clear()
        ledger = self._new_ledger()
        disk = self._new_disk()
        for now in self._lives(workload, disk, ledger):
            self._crash_now(now.disk, ledger, life_boot(now), 1)
            disk = now.disk
        disk.watch = None

    # -- what lives are, and how they are judged: states_broker_search.py has others

    def _new_ledger(self) -> Ledger:
        return Ledger()

    def _new_disk(self) -> Disk:
        return Disk({"/data": None, "/data/vhosts": None, "/data/vhosts/v": None, QUEUES: None})

    def _life_of(self, disk: Disk, ledger: Ledger, boot: int, **arguments: Any) -> Life:
        return Life(disk, ledger, boot, **arguments)

    def _judge(self, outcome: Outcome, ledger: Ledger, kind: str) -> None:
        judge(outcome, ledger, kind)

    def _known(self, state: int, names: int, boot: int, ledger: Ledger) -> object:
        """What an outcome depends on."""
        return (state, names, boot)

    def _look_at(self, image: Image, rows: Rows, boot: int, ledger: Ledger) -> Outcome:
        return self._look(image, rows, boot)

    # -- the walk

    def _lives(self, workload: Workload, disk: Disk, ledger: Ledger) -> Iterator[Life]:
        """Yields the life after each step, also of the next ones, when it was stopped or killed."""
        life = self._life(disk, ledger, 1)
        for end in (*workload.ends, ""):
            for _ in workload.script(life, self.chance):
                yield life
            if end == "stop":
                life.stop()
                yield life
                life = self._again(disk, ledger, safe=True)
            elif end == "kill":
                killed = disk.killed()
                disk.watch = None
                disk = killed
                life = self._again(disk, ledger, safe=False)
                life.flush()  # what only the page cache knew is safe from here on
                yield life

    def _life(self, disk: Disk, ledger: Ledger, boot: int, depth: int = 1) -> Life:
        disk.watch = lambda: self._crash_now(disk, ledger, boot, depth)
        paced = self._paced or self.chance.random() < 0.5
        files = 2 if self.chance.random() < 0.25 else None  # logs are closed before they are synced
        size = self._segment_size_bytes
        return self._life_of(disk, ledger, boot, segment_size_bytes=size, paced=paced, open_file_count_max=files)

    def _again(self, disk: Disk, ledger: Ledger, *, safe: bool) -> Life:
        """The next life of a workload that stops or is killed by itself."""
        life = self._life(disk, ledger, 1)
        outcome = find(life)
        judge(outcome, ledger, "kill")
        life.adopt(outcome, safe=safe)
        return life

    def _crash_now(self, disk: Disk, ledger: Ledger, boot: int, depth: int) -> None:
        if len(self.seen) >= self._states_max or (self._moments < 1.0 and self.chance.random() >= self._moments):
            return
        for rows in ledger.rows:
            images = disk.images(self.chance, self._draws if depth == 1 else 2)
            chosen = [image for image in images if self.chance.random() < self._share]
            most = max(4, self._step_max >> 4 * (depth - 1))
            if len(chosen) > most:
                chosen = self.chance.sample(chosen, most)
            for image in chosen:
                self._examine(image, rows, ledger, "cut", boot + 1, depth)
            self._examine(disk.image(), rows, ledger, "kill", boot, depth)
            if depth == 1:
                self._lose_metadata(disk.image(), rows, ledger, "kill", boot)
                for image in chosen[:LOST_MAX]:
                    self._lose_metadata(image, rows, ledger, "cut", boot + 1)
            half_done = any(path.endswith(".log.swap") for path in disk.entries)
            if depth < self._depth_max and self.chance.random() < self._lived_in * (20 if half_done else 1):
                self._live_on(disk.killed(), rows, ledger, boot, depth + 1, "kill")

    def _examine(self, image: Image, rows: Rows, ledger: Ledger, kind: str, boot: int, depth: int) -> None:
        state = key_of(image)
        names = hash(frozenset(rows.items()))
        key = state ^ names
        known = self._known(state, names, boot, ledger)
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
                outcome = self._look_at(image, rows, boot, ledger)
                if len(self._remembered) >= REMEMBERED_MAX:
                    self._remembered.clear()
                self._remembered[known] = outcome
            self.judged += 1
            self._judge(outcome, ledger, kind)
        except Violation as violation:
            where = f"depth {depth}, boot {boot}, rows {rows}"
            raise Violation(f"{violation}\n{where}\n{_describe(image)}") from violation
        if new:
            self.seen.add(key)
            (self.new_doubles if depth > 1 else self.new).append(key)
            if depth < self._depth_max and self.chance.random() < self._lived_in:
                self._live_on(Disk(image), rows, ledger, boot, depth + 1, kind)

    def _lose_metadata(self, image: Image, rows: Rows, ledger: Ledger, kind: str, boot: int) -> None:
        """The same crash, and the database is gone with it: the directories tell what was there, and nothing more."""
        told = described(image)
        back = ledger.deleted.intersection(told)
        if back:
            raise Violation(f"without metadata {back} came back, whose deletion was answered\n{_describe(image)}")
        for queue, state in rows.items():
            kept = [
                each
                for each in ledger.queues.get(queue, [])
                if each.persistent
                and (each.confirmed if kind == "cut" else each.written)
                and not each.settled
                and not each.gone
            ]
            if state == "live" and kept and queue not in told:
                raise Violation(f"without metadata {queue} is not there, with {kept[0]}\n{_describe(image)}")
        outcome = self._look(image, told, boot)
        judge({queue: found for queue, found in outcome.items() if rows.get(queue) == "live"}, ledger, kind)
        self.judged += 1

    def _look(self, image: Image, rows: Rows, boot: int) -> Outcome:
        outcome = look(image, rows, boot, self._segment_size_bytes)
        self._looks += 1
        if self._looks % COLLECTED_EVERY == 0:
            gc.collect()
            gc.freeze()  # else the next one goes over all that is remembered
        return outcome

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
            life.pass_time(60)
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
