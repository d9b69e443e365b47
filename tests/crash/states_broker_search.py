"""The walk of states_search.py over a broker's lives: what consumers get after a crash is compared with the ledger."""

from __future__ import annotations

import gc
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from states_broker_find import look
from states_broker_ledger import BrokerLedger, BrokerOutcome, judge_broker
from states_broker_life import VHOST, BrokerLife
from states_disk import Disk, Image
from states_search import Search

from amqpd.storage.metadata.rows import BindingRow

SHARE: Final = 12
COLLECTED_EVERY: Final = 250  # looks: a broker leaves many reference cycles


class BrokerSearch(Search):
    """A `Search` over workloads of a `BrokerLife`. A look costs ten times that of a storage, so there are a twelfth
    as many.
    """

    def __init__(
        self, seed: int, seen: set[int], *, share: float = 1.0, step_max: int = 1 << 60, **others: Any
    ) -> None:
        super().__init__(seed, seen, share=share / SHARE, step_max=max(4, step_max // SHARE), **others)

    def _run(self, workload: Any) -> None:
        with self._own_randomness():
            super()._run(workload)

    @contextmanager
    def _own_randomness(self) -> Iterator[None]:
        """Take random names and the time of day from this walk's seed."""
        urandom, token_hex, time_ns = os.urandom, secrets.token_hex, time.time_ns
        os.urandom = self.rng.randbytes
        secrets.token_hex = lambda size=16: self.rng.randbytes(size).hex()
        time.time_ns = lambda: BrokerLedger().now_ms * 1_000_000
        try:
            yield
        finally:
            os.urandom, secrets.token_hex, time.time_ns = urandom, token_hex, time_ns

    def _new_ledger(self) -> Any:
        return BrokerLedger()

    def _new_disk(self) -> Disk:
        return Disk({"/data": None, "/data/vhosts": None, VHOST: None, f"{VHOST}/queues": None})

    def _life_of(self, disk: Disk, ledger: Any, boot: int, **arguments: Any) -> Any:
        return BrokerLife(disk, ledger, boot, **arguments)

    def _judge(self, outcome: Any, ledger: Any, kind: str) -> None:
        judge_broker(outcome, ledger, kind)

    def _known(self, state: int, names: int, boot: int, ledger: Any) -> Any:
        return (state, names, boot, ledger.now_ms, ledger.asked())

    def _look_at(self, image: Image, rows: Any, boot: int, ledger: Any) -> Any:
        return self._looked(lambda: look(image, rows, boot, self._segment_size_bytes, ledger))

    def _looked(self, looking: Callable[[], BrokerOutcome]) -> BrokerOutcome:
        outcome = looking()
        self._looks += 1
        if self._looks % COLLECTED_EVERY == 0:
            gc.collect()
            gc.freeze()
        return outcome

    def _lose_metadata(self, image: Image, rows: Any, ledger: Any, kind: str, boot: int) -> None:
        """Do nothing: another walk covers starts without metadata."""

    def _again(self, disk: Disk, ledger: Any, *, safe: bool) -> Any:
        self._go_on(disk, ledger, 1, safe=safe)
        return self._life(disk, ledger, 1)

    def _go_on(self, disk: Disk, ledger: Any, boot: int, *, safe: bool) -> None:
        """Adopt into the ledger what a start finds on this disk."""
        image = disk.image()
        rows = ledger.rows[-1]
        judge_broker(self._look_at(image, rows, boot, ledger), ledger, "kill")
        found = self._looked(lambda: look(image, rows, boot, self._segment_size_bytes, ledger, repeats=False))
        ledger.found(found, safe=safe)

    def _live_on(self, disk: Disk, rows: Any, ledger: Any, boot: int, depth: int, kind: str) -> None:
        """Start on this disk under watch, then publish and consume some messages."""
        self.lives += 1
        ledger = ledger.copy()
        ledger.rows = [rows]
        if kind == "cut":
            ledger.power_cut()
        self._go_on(disk, ledger, boot, safe=kind == "cut")
        life = self._life(disk, ledger, boot, depth)
        rng = self.rng
        life.repeat()
        for queue in list(life.vhost.queues):
            if rng.random() < 0.5:
                for _ in range(rng.randint(1, 2)):
                    life.publish("", queue, rng.choice((20, 500)), group=rng.choice("ab"))
            if rng.random() < 0.5 and queue not in ledger.groups:
                life.ack(life.take(queue, rng.randint(1, 3)))
            life.turns()
        for row in [row for row in rows.values() if isinstance(row, BindingRow)]:
            if life.vhost.exchanges[row.source].kind == "x-delayed-message" and rng.random() < 0.5:
                life.publish(row.source, row.destination, 20, delay_ms=rng.choice((50, 20_000)))
                life.turns()
        life.pass_time(rng.choice((0, 100, 1000)))
        if rng.random() < 0.3:
            life.leap(rng.choice((10_000, 600_000)))
        if rng.random() < 0.3:
            life.flush()
        if rng.random() < 0.3:
            life.stop()
        disk.watch = None
