"""Commands of a test inside its broker: vhosts, recorded messages, the clock, faults.

`BrokerCommands.run` takes a command by its name. In a broker of the same process the test's thread calls it through the
event loop; in a process of its own it comes over a socket (`amqpd.testing.process_main`). Arguments and results are
JSON and bytes.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from amqpd.broker.consumer import Destination, TraceHook
from amqpd.broker.events import as_broker
from amqpd.broker.publish.firehose import record
from amqpd.broker.queue.queue import Queue
from amqpd.broker.vhost import vhosts
from amqpd.broker.vhost.pending import wait_done
from amqpd.connection.registry import ConnectionRegistry
from amqpd.testing.recorder import RecordedMessage

if TYPE_CHECKING:
    from amqpd.broker.broker import Broker
    from amqpd.broker.message import Message
    from amqpd.broker.vhost.vhost import VHost
    from amqpd.testing.substitutes import BrokerSubstitutes

COUNT_MAX: Final = 10_000
BYTES_MAX: Final = 64 << 20
"""Limits of recorded messages that the test has not read. Later ones are counted only."""

IDLE_LOOKS: Final = 3
STEPS_MAX: Final = 10_000
"""Most steps of a move of the clock. In a long move a step may fire timers of several times."""

SETTLE_S: Final = 30.0


class MessageRecorder(TraceHook):
    """The messages of one vhost since the test read them last. Cost: a copy of each body."""

    def __init__(self) -> None:
        super().__init__()
        self._messages: list[RecordedMessage] = []
        self._size_bytes = 0
        self._lost_count = 0

    def published(
        self,
        message: Message,
        keys: list[str],
        destinations: list[Destination],
        connection: str,
        user: str,
        number: int,
    ) -> None:
        queues = _queues(destinations)
        self._add(message, "published", queues=queues, is_routed=bool(destinations), user=user)

    def delivered(
        self, message: Message, queue: str, redelivered: bool, connection: str, user: str, number: int
    ) -> None:
        self._add(message, "delivered", queue=queue, redelivered=redelivered, user=user)

    def dead_lettered(self, message: Message, queue: str, reason: str, destinations: list[Destination]) -> None:
        queues = _queues(destinations)
        self._add(message, "dead-lettered", queue=queue, queues=queues, is_routed=bool(destinations), reason=reason)

    def is_behind(self) -> bool:
        return False

    def _add(self, message: Message, event: str, **about: Any) -> None:
        properties = message.properties()
        size = message.body_size + len(properties)
        if len(self._messages) >= COUNT_MAX or self._size_bytes + size > BYTES_MAX:
            self._lost_count += 1
            return
        self._size_bytes += size
        route = message.envelope
        self._messages.append(
            RecordedMessage(event, route.exchange, route.routing_key, message.body(), properties, **about)
        )

    def take(self) -> dict[str, Any]:
        """Return and drop the recorded messages, with the number of those that were too many."""
        taken = {"messages": self._messages, "lost_count": self._lost_count}
        self._messages, self._size_bytes, self._lost_count = [], 0, 0
        return taken


def _queues(destinations: list[Destination]) -> tuple[str, ...]:
    return tuple(each.name for each in destinations if isinstance(each, Queue))


class BrokerCommands:
    """The commands of one running broker. All run on its event loop."""

    def __init__(self, broker: Broker, substitutes: BrokerSubstitutes) -> None:
        self._broker = broker
        self._clock = substitutes.clock
        self._disk = substitutes.disk

    async def run(self, command: str, arguments: dict[str, Any]) -> Any:
        """Call the method with the name of the command, and return its result. Raises: any error of the command."""
        with as_broker():
            return await getattr(self, command)(**arguments)

    def _vhost(self, name: str) -> VHost:
        vhost = self._broker.vhosts.get(name)
        if vhost is None:
            raise ValueError(f"there is no vhost '{name}'")
        return vhost

    async def add_vhost(self, name: str, user: str) -> None:
        """Create a vhost in which the user may do everything."""
        broker = self._broker
        await wait_done(partial(vhosts.declare, broker.vhosts, name, "", (), "classic"))
        await broker.auth.set_permissions(user, name, ".*", ".*", ".*")

    async def has_vhost(self, name: str) -> bool:
        return name in self._broker.vhosts

    async def delete_vhost(self, name: str) -> None:
        """Delete a vhost with its content; its connections are closed."""
        await wait_done(partial(vhosts.delete, self._broker.vhosts, self._vhost(name)))

    async def record(self, vhost: str) -> None:
        """Record the messages of a vhost from now on. Does nothing if it is being recorded."""
        found = self._vhost(vhost)
        if found.recorder is None:
            await wait_done(partial(record, found, MessageRecorder()))

    async def take_recorded(self, vhost: str) -> dict[str, Any]:
        """Return the messages that were recorded since the last call."""
        recorder = self._vhost(vhost).recorder
        if not isinstance(recorder, MessageRecorder):
            raise ValueError(f"vhost '{vhost}' is not recorded: the broker was started again, call record again")
        return recorder.take()

    async def advance(self, seconds: float) -> float:
        """Move the clock from timer to timer, and return its distance from the machine's clock.

        Some timers look at the clock at intervals, so one jump would hide what happened before it.
        """
        clock, timers = self._clock, self._broker.timers
        end_s = clock.offset_s + seconds
        while clock.offset_s < end_s:
            due_ms = timers.next_due_ms()
            step_s = max((due_ms - timers.now_ms()) / 1000, seconds / STEPS_MAX, 0.001) if due_ms >= 0 else seconds
            clock.offset_s = min(clock.offset_s + step_s, end_s)
            await self._settle()
        self._broker.storage.maintain()
        for _ in range(IDLE_LOOKS):
            await asyncio.sleep(0.001)
            await self._settle()
        return self._clock.offset_s

    async def _settle(self) -> None:
        """Fire the timers that are due, and publish the dead letters and delayed messages that they release."""
        timers, republisher = self._broker.timers, self._broker.republisher
        deadline = self._broker.loop.time() + SETTLE_S
        while True:
            timers.run()
            await asyncio.sleep(0)
            if not republisher.line and not 0 <= timers.next_due_ms() <= timers.now_ms():
                return
            if self._broker.loop.time() > deadline:
                raise TimeoutError(f"the broker is still busy {SETTLE_S:g} s after its clock was moved")

    async def set_disk(self, sync_delay_s: float | None = None, is_full: bool | None = None) -> None:
        """Make the disk slow or full, or end that; None: no change."""
        if sync_delay_s is not None:
            self._disk.sync_delay_s = sync_delay_s
        if is_full is not None:
            self._disk.is_full = is_full
            self._broker.alarms.check()

    async def set_alarm(self, kind: str, on: bool) -> None:
        """Raise or clear an alarm by hand."""
        if on:
            self._broker.alarms.raise_by_hand(kind)
        else:
            self._broker.alarms.clear_by_hand(kind)

    async def drop_connections(self, vhost: str | None) -> int:
        """Reset the sockets of all clients, or of those in a vhost. Return their number."""
        count = 0
        for listener in self._broker.clients:
            if isinstance(listener, ConnectionRegistry):
                for connection in listener:
                    if vhost is None or connection.session.vhost.name == vhost:
                        connection.wire.abort()
                        count += 1
            for client in list(listener.listed_connections()):  # a closed one leaves the listener's collection
                if vhost is None or client.session.vhost.name == vhost:
                    client.force("the test drops its connection")
                    count += 1
        return count
