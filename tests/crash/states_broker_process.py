"""A broker without sockets on a watched disk: its parts, event loop and clock, and the promises of each turn's end.

states_broker_life.py has its actions. Each commit of the metadata is one step, crashed before and after it. Timers use
a clock that moves only when the life moves it. A paced life writes settlements up to 50 ms after their turn, as every
broker does.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, Final

from simulated_filesystem import SimulatedClock
from states_broker_ledger import ASKED, SAFE, WRITTEN, BrokerLedger, Place, Rows, Sent
from states_disk import Disk
from states_ledger import Violation
from states_pace import SETTLE_MS

from amqpd.auth.internal_backend import User
from amqpd.broker.consumer import QueueEntry
from amqpd.broker.delayed.delayed_messages import DelayScheduler
from amqpd.broker.flow.loop_turn import LoopTurn
from amqpd.broker.flow.timers import Timers
from amqpd.broker.jobs.jobs import JobManager
from amqpd.broker.publish.confirms import ConfirmTracker
from amqpd.broker.publish.dead_letter import DeadLetterPublisher
from amqpd.broker.publish.exchange_state import ExchangeStates
from amqpd.broker.publish.publisher import Publisher
from amqpd.broker.publish.republisher import Republisher
from amqpd.broker.queue.log_opener import FailedQueueRetry, LogOpener
from amqpd.broker.queue.queue import Queue
from amqpd.broker.queue.services import MemoryWindows, QueueServices
from amqpd.broker.session import Session
from amqpd.broker.vhost.loader import load
from amqpd.broker.vhost.recovery import reconcile
from amqpd.broker.vhost.vhost import VhostServices
from amqpd.broker.vhost.vhosts import VHosts
from amqpd.storage.metadata.rows import (
    BindingRow,
    Change,
    Delete,
    DeleteBindings,
    ExchangeRow,
    QueueRow,
    Row,
    SeenCacheRow,
    SeenRow,
    VhostRow,
)
from amqpd.storage.metadata.store import MetadataState
from amqpd.storage.storage import Storage

VHOST: Final = "/data/vhosts/v"
LOST_IN_MS: Final = 60  # settlements are in the files after this time
ROUNDS_MAX: Final = 3000


class Answers(ConfirmTracker):
    """The confirms of a publisher. waiting: messages by publish sequence."""

    def __init__(self, turn: LoopTurn, ledger: BrokerLedger) -> None:
        super().__init__(turn)
        self.ledger = ledger
        self.waiting: dict[int, Sent] = {}

    def confirmed(self, first: int, last: int) -> None:
        self.ledger.version += 1
        for sequence in range(first, last + 1):
            sent = self.waiting.pop(sequence)
            sent.promise, sent.was_confirmed = SAFE, True
            for name, place in sent.places.items():
                if name.startswith("wheel ") or not sent.due_ms:
                    place.promise = SAFE

    def refused(self, first: int, last: int) -> None:
        raise Violation(f"publishes are nacked on a disk that does not fail: {[*self.waiting.values()]}")


class Table:
    """The metadata: rows that change in one step. soon: schedules a call on the event loop."""

    def __init__(self, ledger: BrokerLedger, disk: Disk, soon: Callable[[Callable[[], None]], None]) -> None:
        self._ledger = ledger
        self._disk = disk
        self._soon = soon

    def submit(self, changes: Sequence[Change], done: Callable[[BaseException | None], None]) -> None:
        self._soon(partial(self._commit, [*changes], done))  # as by the metadata thread

    def _commit(self, changes: list[Change], done: Callable[[BaseException | None], None]) -> None:
        ledger = self._ledger
        before = ledger.rows[-1]
        after = dict(before)
        for change in changes:
            _apply(after, change)
        ledger.version += 1
        ledger.rows = [before, after]
        self._disk.changed()
        ledger.version += 1
        ledger.rows = [after]
        self._disk.changed()
        self._soon(partial(done, None))

    def checkpoint(self, done: Callable[[BaseException | None], None]) -> None:
        self._soon(partial(done, None))


def _key(row: Row) -> tuple[object, ...]:
    if isinstance(row, QueueRow | SeenCacheRow | VhostRow):
        return (type(row).__name__, row.id)
    if isinstance(row, SeenRow):
        return ("SeenRow", row.cache_id, row.id)
    if isinstance(row, ExchangeRow):
        return ("ExchangeRow", row.vhost, row.name)
    assert isinstance(row, BindingRow), row
    return ("BindingRow", *row[:5], row.arguments)


def _apply(rows: Rows, change: Change) -> None:
    if isinstance(change, DeleteBindings):
        for key, row in list(rows.items()):
            if isinstance(row, BindingRow) and change.name in (row.source, row.destination):
                del rows[key]
    elif isinstance(change, Delete):
        rows.pop(_key(change.row), None)
        if isinstance(change.row, SeenCacheRow):
            for key, row in list(rows.items()):
                if isinstance(row, SeenRow) and row.cache_id == change.row.id:
                    del rows[key]
    else:
        rows[_key(change.row)] = change.row


def _state(rows: Rows) -> MetadataState:
    def of(kind: type) -> list[Any]:
        return [row for row in rows.values() if isinstance(row, kind)]

    return MetadataState(
        instance_id="",
        vhosts=[VhostRow("/", "v")],
        deleting_vhosts=[],
        users=[],
        permissions=[],
        topic_permissions=[],
        exchanges=of(ExchangeRow),
        queues=[row for row in of(QueueRow) if row.state == "live"],
        deleting_queues=[row for row in of(QueueRow) if row.state != "live"],
        bindings=of(BindingRow),
        policies=[],
        parameters=[],
        global_parameters=[],
        stored_offsets=[],
        user_limits=[],
        seen_caches=of(SeenCacheRow),
        seen=of(SeenRow),
        scram_credentials=[],
    )


class Process:
    """A process over `disk`. Boot ids are numbers; an equal id means that the machine was not restarted."""

    def __init__(
        self,
        disk: Disk,
        ledger: BrokerLedger,
        boot: int,
        *,
        segment_size_bytes: int = 2000,
        prefix: bytes = b"",
        paced: bool = False,
        open_file_count_max: int | None = None,
    ) -> None:
        self.disk = disk
        self.ledger = ledger
        self.prefix = prefix
        self.settle_ms = LOST_IN_MS if paced else 0
        self.clock = SimulatedClock()
        self.clock.now_ms = ledger.now_ms
        self._soon: list[Callable[[], object]] = []
        self._later: list[tuple[int, int, Callable[[], object]]] = []
        self._later_count = 0
        self._leaping = False
        self._offered: list[Sent] = []
        self._seeing: list[tuple[int, Place]] = []
        self.held: dict[bytes, list[tuple[Queue, QueueEntry]]] = {}
        self.storage = Storage(
            "/data",
            post=self._post,
            later=self._call_later if paced else None,
            clock=self.clock,
            filesystem=disk,
            segment_size_bytes=segment_size_bytes,
            boot_id=f"{boot:032x}",
            open_file_count_max=open_file_count_max,
            inline=True,
        )
        self.timers = Timers(self._call_later, self.storage.clock_watch)
        self.turn = LoopTurn(self.storage, self.soon, self.timers)
        metadata: Any = Table(ledger, disk, self.soon)
        self.catalogue = VhostServices(self.storage, metadata, self._post, self._call_later)
        self.vhosts = VHosts(self.catalogue, self._host, {}, _ignored)
        self.opener = LogOpener(self.soon)
        self.windows = MemoryWindows()
        self.republisher = Republisher(self.turn, self.timers, self.soon)
        self.dead_letters = DeadLetterPublisher(self.republisher, self.vhosts)
        self.delays = DelayScheduler(self.storage, self.turn, self.timers, self.republisher, self.vhosts, self.soon)
        self.pump_retries = FailedQueueRetry(self._call_later)
        self.exchange_states = ExchangeStates(self.vhosts, self.turn, self.timers, self._post, metadata.submit)
        self.catalogue.exchange_states = self.exchange_states
        self.turn.log_failed = _failed
        self.storage.commits.on_commit = self.turn.committed
        self.jobs = JobManager(self.republisher, self.turn, self.soon)
        self._load()
        broker: Any = SimpleNamespace(turn=self.turn)
        session = Session(broker, self.vhost, User("walker"), "walk")
        session.operator = True
        self.publisher = Publisher(session)
        self.answers = Answers(self.turn, ledger)
        self.others = Answers(self.turn, ledger)  # of another channel

    def _load(self) -> None:
        """Load the metadata as `Broker.load` does."""
        findings = reconcile(self.storage, _state(self.ledger.rows[-1]))
        self.catalogue.deletions.take_over(findings)
        self.exchange_states.load(findings.state.seen_caches, findings.state.seen)
        load(self.vhosts, findings.state)
        self.vhost = self.vhosts["/"]
        self.delays.begin()
        self.turns()

    def _host(self, row: VhostRow) -> QueueServices:
        return QueueServices(
            row.name,
            row.id,
            self.turn,
            self.timers,
            self.windows,
            self.storage,
            self.opener,
            self.pump_retries,
            self.dead_letters,
            self.catalogue.stored_offsets,
            _ignored,
            self.delays,
        )

    # -- the loop

    def soon(self, call: Callable[[], object]) -> None:
        self._soon.append(call)

    def _post(self, call: Callable[..., object], *arguments: object) -> None:
        self._soon.append(partial(call, *arguments))

    def _call_later(self, delay_s: float, call: Callable[..., object], *arguments: object) -> None:
        self._later_count += 1
        due_ms = self.clock.now_ms + max(0, round(delay_s * 1000))
        insort(self._later, (due_ms, self._later_count, partial(call, *arguments)))

    def turns(self) -> None:
        """Run until the loop is idle."""
        for _ in range(ROUNDS_MAX):
            if not self._soon:
                self._rested()
                return
            soon, self._soon = self._soon, []
            for call in soon:
                call()
            self._turned()
        raise Violation("the loop never comes to rest")

    def _turned(self) -> None:
        """Update the ledger: the publishes and deliveries of ended turns are in the files and on the sockets."""
        self.ledger.version += 1
        number = self.turn.number
        for sent in [each for each in self._offered if each.turn < number]:
            self._offered.remove(sent)
            sent.promise = max(sent.promise, WRITTEN)
            for name, place in sent.places.items():
                if place.promise == ASKED and (name.startswith("wheel ") or not sent.due_ms):
                    place.promise = WRITTEN
        for each in [each for each in self._seeing if each[0] < number]:
            self._seeing.remove(each)
            each[1].seen = True

    def _rested(self) -> None:
        """Update the ledger: settlements are written after their time, and safe when their files are synced."""
        if self._leaping:
            return
        self.ledger.version += 1
        settled: dict[str, bool] = {}
        for sent in self.ledger.sent.values():
            for place in sent.places.values():
                if place.left == ASKED and place.asked_ms and place.asked_ms <= self.clock.now_ms - self.settle_ms:
                    place.left = WRITTEN
                if place.path and (place.left == WRITTEN or place.wait == WRITTEN):
                    if place.path not in settled:
                        settled[place.path] = self.disk.synced(place.path, ".settled")
                    if settled[place.path]:
                        place.left = SAFE if place.left == WRITTEN else place.left
                        place.wait = SAFE if place.wait == WRITTEN else place.wait

    def pass_time(self, milliseconds: int) -> None:
        """Advance the clock timer by timer, and run the loop after each."""
        self.turns()
        until_ms = self.clock.now_ms + milliseconds
        while self._later and self._later[0][0] <= until_ms:
            due_ms, _, call = self._later.pop(0)
            self._set_clock(max(due_ms, self.clock.now_ms))
            call()
            self.turns()
        self._set_clock(until_ms)
        self.turns()

    def leap(self, milliseconds: int) -> None:
        """Advance the clock at once; timers that became due fire afterwards."""
        self.turns()
        self._leaping = True  # no timer has fired yet
        self._set_clock(self.clock.now_ms + milliseconds)
        self.pass_time(10)
        self._leaping = False
        self._rested()

    def _set_clock(self, now_ms: int) -> None:
        self.clock.now_ms = now_ms
        self.ledger.now_ms = now_ms
        self.ledger.version += 1

    def rest(self) -> None:
        """Wait without actions until all settlements are written."""
        self.pass_time(2 * SETTLE_MS + 20)

    def flush(self) -> None:
        """Make everything that was written safe."""
        self.rest()
        self.storage.commits.flush()
        self.turns()
        self.ledger.all_safe()

    def stop(self) -> None:
        """Stop cleanly, as the server does without its sockets. Everything promised is safe afterwards."""
        self.turns()
        self.timers.stop()
        self.jobs.stop()
        self.delays.stop()
        self.republisher.stop()
        self.storage.close(clean=True)
        self.ledger.version += 1
        for sent in self.ledger.sent.values():
            for place in sent.places.values():
                place.left = WRITTEN if place.left == ASKED and place.asked_ms else place.left
        self.ledger.all_safe()
        self.disk.changed()

    def forget(self) -> None:
        """Release the memory of a life that is not used again."""
        storage = self.storage
        for held in (storage._stores, storage.commits._gathered, storage.context.dirty, storage.context.late):
            held.clear()
        storage.commits.on_commit = _ignore_commit
        self.held.clear()
        self._soon.clear()
        self._later.clear()
        self.vhosts.clear()
        self.disk.forget()


def _ignored(_thing: object) -> None:
    """Do nothing: no queue expires here, and no vhost is deleted."""


def _failed(store: Any) -> None:
    raise Violation(f"the log of {store.name} fails on a disk that does not")


def _ignore_commit(generation: int, failed: list[Any]) -> None:
    """Ignore commits after the end."""
