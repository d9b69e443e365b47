"""Walks through the states that crashes may leave: at each step of a workload, of a recovery, and of the next life.

Every image that a power cut or a kill may leave is opened by the real recovery and judged. Some are continued: the
recovery is watched, then messages are appended, delivered and settled, the life stops or continues, and each of these
steps is crashed and recovered (a double crash; with `depth_max` 3 a triple one). A state counts once: it is all bytes
of the disk and the rows of the metadata. The outcome of a state is cached for a while and judged against each ledger.

Every other life is paced, at random; in a workload that asks for it all lives are.

The same seed gives the same search in the same order.
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
LOST_MAX: Final = 2  # images of a step that are also opened without metadata


class Search:
    """A walk with one seed. seen: keys of the states met, shared by searches that are counted together.

    - moments: share of the steps at which crashes are examined. draws: random images at each.
    - share: share of the power-cut images that are examined. step_max: greatest number per step, chosen at random; a
      sixteenth of it behind a crash, so that disks with many images do not take all the time.
    - lived_in: share of the new states that are continued, twenty times that in the middle of a compaction.
    - states_max: end after so many states.
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
        self.rng = random.Random(seed)
        self.seen = seen
        self.judged = 0
        self.lives = 0
        self.new = array("q")  # keys of the new states, before the first crash and after it
        self.new_doubles = array("q")
        self._moments = moments
        self._draws = draws
        self._share = share
        self._lived_in = lived_in
        self._depth_max = depth_max
        self._step_max = step_max
        self._states_max = len(seen) + states_max
        self._outcomes: dict[object, Outcome] = {}
        self._last: tuple[Ledger, int] = (Ledger(), -1)
        self._judged: set[tuple[int, int, str]] = set()  # judged with the last version of the ledger
        self._segment_size_bytes = 0
        self._paced = False
        self._more: dict[str, int] = {}
        self._looks = 0

    def run(self, workload: Workload) -> None:
        """Run the workload. Raises: AssertionError."""
        gc.disable()  # cached outcomes have no reference cycles, but each look leaves some: see `_look`
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
        self._more = {"journal_size_bytes": workload.journal_size_bytes} if workload.journal_size_bytes else {}
        self._outcomes.clear()
        ledger = self._new_ledger()
        disk = self._new_disk()
        for now in self._lives(workload, disk, ledger):
            self._crash_now(now.disk, ledger, life_boot(now), 1)
            disk = now.disk
        disk.watch = None

    # -- lives and judge; states_broker_search.py overrides them

    def _new_ledger(self) -> Ledger:
        return Ledger()

    def _new_disk(self) -> Disk:
        return Disk({"/data": None, "/data/vhosts": None, "/data/vhosts/v": None, QUEUES: None})

    def _life_of(self, disk: Disk, ledger: Ledger, boot: int, **arguments: Any) -> Life:
        return Life(disk, ledger, boot, **arguments)

    def _judge(self, outcome: Outcome, ledger: Ledger, kind: str) -> None:
        judge(outcome, ledger, kind)

    def _known(self, state: int, names: int, boot: int, ledger: Ledger) -> object:
        """Return the key on which an outcome depends."""
        return (state, names, boot)

    def _look_at(self, image: Image, rows: Rows, boot: int, ledger: Ledger) -> Outcome:
        return self._look(image, rows, boot)

    # -- the walk

    def _lives(self, workload: Workload, disk: Disk, ledger: Ledger) -> Iterator[Life]:
        """Yield the life after each step, also of the following lives after a stop or kill."""
        life = self._life(disk, ledger, 1)
        for end in (*workload.ends, ""):
            for _ in workload.script(life, self.rng):
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
                life.flush()  # what was only in the page cache is safe from here on
                yield life

    def _life(self, disk: Disk, ledger: Ledger, boot: int, depth: int = 1) -> Life:
        disk.watch = lambda: self._crash_now(disk, ledger, boot, depth)
        paced = self._paced or self.rng.random() < 0.5
        files = 2 if self.rng.random() < 0.25 else None  # logs are closed before their sync
        size = self._segment_size_bytes
        more: dict[str, Any] = {"segment_size_bytes": size, "paced": paced, "open_file_count_max": files}
        return self._life_of(disk, ledger, boot, **more, **self._more)

    def _again(self, disk: Disk, ledger: Ledger, *, safe: bool) -> Life:
        """Start the next life after the workload stopped or killed one."""
        life = self._life(disk, ledger, 1)
        outcome = find(life)
        judge(outcome, ledger, "kill")
        life.adopt(outcome, safe=safe)
        return life

    def _crash_now(self, disk: Disk, ledger: Ledger, boot: int, depth: int) -> None:
        if len(self.seen) >= self._states_max or (self._moments < 1.0 and self.rng.random() >= self._moments):
            return
        for rows in ledger.rows:
            images = disk.images(self.rng, self._draws if depth == 1 else 2)
            chosen = [image for image in images if self.rng.random() < self._share]
            most = max(4, self._step_max >> 4 * (depth - 1))
            if len(chosen) > most:
                chosen = self.rng.sample(chosen, most)
            for image in chosen:
                self._examine(image, rows, ledger, "cut", boot + 1, depth)
            self._examine(disk.image(), rows, ledger, "kill", boot, depth)
            if depth == 1:
                self._lose_metadata(disk.image(), rows, ledger, "kill", boot)
                for image in chosen[:LOST_MAX]:
                    self._lose_metadata(image, rows, ledger, "cut", boot + 1)
            half_done = any(path.endswith(".log.swap") for path in disk.entries)
            if depth < self._depth_max and self.rng.random() < self._lived_in * (20 if half_done else 1):
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
            outcome = self._outcomes.get(known)
            if outcome is None:
                outcome = self._look_at(image, rows, boot, ledger)
                if len(self._outcomes) >= REMEMBERED_MAX:
                    self._outcomes.clear()
                self._outcomes[known] = outcome
            self.judged += 1
            self._judge(outcome, ledger, kind)
        except Violation as violation:
            where = f"depth {depth}, boot {boot}, rows {rows}"
            raise Violation(f"{violation}\n{where}\n{_describe(image)}") from violation
        if new:
            self.seen.add(key)
            (self.new_doubles if depth > 1 else self.new).append(key)
            if depth < self._depth_max and self.rng.random() < self._lived_in:
                self._live_on(Disk(image), rows, ledger, boot, depth + 1, kind)

    def _lose_metadata(self, image: Image, rows: Rows, ledger: Ledger, kind: str, boot: int) -> None:
        """Open the same crash without the database: the directories must restore exactly the live queues."""
        restored = described(image)
        back = ledger.deleted.intersection(restored)
        if back:
            raise Violation(f"without metadata {back} came back, whose deletion was answered\n{_describe(image)}")
        for queue, state in rows.items():
            expected = [
                each
                for each in ledger.queues.get(queue, [])
                if each.persistent
                and (each.confirmed if kind == "cut" else each.written)
                and not each.settled
                and not each.gone
            ]
            if state == "live" and expected and queue not in restored:
                raise Violation(f"without metadata {queue} is not there, with {expected[0]}\n{_describe(image)}")
        outcome = self._look(image, restored, boot)
        judge({queue: found for queue, found in outcome.items() if rows.get(queue) == "live"}, ledger, kind)
        self.judged += 1

    def _look(self, image: Image, rows: Rows, boot: int) -> Outcome:
        outcome = look(image, rows, boot, self._segment_size_bytes)
        self._looks += 1
        if self._looks % COLLECTED_EVERY == 0:
            gc.collect()
            gc.freeze()  # otherwise the next collection would visit all cached outcomes
        return outcome

    def _live_on(self, disk: Disk, rows: Rows, ledger: Ledger, boot: int, depth: int, kind: str) -> None:
        """Start on this disk under watch, then append some messages."""
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
        rng = self.rng
        for queue in list(life.stores):
            if rng.random() < 0.7:
                life.append(queue, rng.randint(1, 3), rng.choice((10, 300, 900)))
            if queue in ledger.policies and rng.random() < 0.5:
                life.maintain()
            live = [each for each in life.live(queue) if each.offset >= 0]
            if live and rng.random() < 0.5:
                life.write()
                life.settle(queue, live[: rng.randint(1, 3)])
            if rng.random() < 0.5:
                life.write()
                life.deliver(queue, life.live(queue)[:2])
        life.turn()
        if rng.random() < 0.3:
            life.pass_time(60)
        if rng.random() < 0.3:
            life.flush()
        if rng.random() < 0.3:
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
