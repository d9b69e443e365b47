"""A broker in memory whose clock moves only when a program moves it; timers fire at their time, in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from memory_broker import BOOT_ID, AllowAll, Handle, MemoryBroker, StillLoop
from memory_metadata import Rows
from program_choices import RecordingExchangeType
from simulated_filesystem import SimulatedClock

from amqpd.broker.broker import Broker
from amqpd.broker.vhost.recovery import RecoveryFindings, RecoveryReport
from amqpd.config import Settings
from amqpd.connection.registry import ConnectionRegistry
from amqpd.storage.metadata.rows import Change, VhostRow
from amqpd.storage.storage import Storage


class ManualClock(SimulatedClock):
    """A clock that is always 0.25 ms past a millisecond, so that rounding of seconds loses none."""

    def monotonic(self) -> float:
        return (self.now_ms - 1_690_000_000_000 + 0.25) / 1000


class TimedLoop(StillLoop):
    def __init__(self, clock: SimulatedClock) -> None:
        super().__init__()
        self.clock = clock
        self.later: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self.asked_count = 0

    def time(self) -> float:
        return self.clock.monotonic()

    def call_later(self, delay_s: float, function: Callable[..., object], *arguments: Any) -> Handle:
        self.asked_count += 1
        self.later.append((self.time() + delay_s, self.asked_count, function, arguments))
        return Handle()

    def advance(self, ms: int) -> None:
        """Move the clock by `ms` and fire each timer at its time."""
        end_ms = self.clock.now_ms + ms
        while self.later:
            first = min(self.later, key=lambda entry: entry[:2])
            due_ms = round((first[0] - self.time()) * 1000) + self.clock.now_ms
            if due_ms > end_ms:
                break
            self.later.remove(first)
            self.clock.now_ms = max(self.clock.now_ms, due_ms)
            first[2](*first[3])
            self.run()
        self.clock.now_ms = end_ms
        self.run()


class PromptRows:
    """Metadata that commit at once and outlive the broker."""

    def __init__(self, rows: Rows, loop: StillLoop) -> None:
        self.rows = rows
        self.loop = loop

    def submit(self, changes: Sequence[Change], done: Callable[[BaseException | None], None]) -> None:
        self.rows.apply(changes)
        self.loop.call_soon(done, None)


class ProgramBroker(MemoryBroker):
    def __init__(self, **storage: Any) -> None:
        self.rows = Rows(VhostRow("/", "v"))
        self.clock = ManualClock()
        self.storage_arguments: dict[str, Any] = {"segment_size_bytes": 200_000, "boot_id": BOOT_ID, **storage}
        super().__init__()

    def begin(self) -> None:
        clock = self.clock
        self.loop = self.timed = TimedLoop(clock)
        self.storage = Storage(
            "/data",
            post=self.loop.call_soon_threadsafe,
            clock=clock,
            filesystem=self.filesystem,
            inline=True,
            **self.storage_arguments,
        )
        metadata: Any = PromptRows(self.rows, self.loop)
        loop: Any = self.loop
        auth: Any = AllowAll()
        self.broker = Broker(Settings(), self.storage, metadata, loop)
        self.connections = ConnectionRegistry(self.broker)
        self.broker.load(RecoveryFindings(self.rows.state(), [], [], [], RecoveryReport()))
        self.broker.auth.close()
        self.broker.auth = auth
        self.vhost = self.broker.vhosts["/"]

    def again(self, *, clean: bool) -> None:
        """Start the next life, after a stop or a kill."""
        self.settle()
        if clean:
            self.broker.jobs.stop()
            self.broker.delays.stop()
            self.broker.republisher.stop()
        self.storage.close(clean=clean)
        self.filesystem = self.filesystem.killed()
        self.begin()

    def forget_choices(self) -> None:
        for exchange in self.vhost.exchanges.values():
            if isinstance(exchange.matcher, RecordingExchangeType):
                exchange.matcher.choices.clear()

    def chosen(self, exchange: str, key: str) -> str | None:
        """Return and remove the exchange's oldest recorded choice for this key since `forget_choices`, or None."""
        matcher = self.vhost.exchanges[exchange].matcher
        assert isinstance(matcher, RecordingExchangeType)
        for choice in matcher.choices:
            if choice[0] == key:
                matcher.choices.remove(choice)
                return choice[1]
        return None
