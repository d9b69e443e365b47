"""Heartbeats and timeouts of incomplete data, with one timer for all connections.

- A connection that sent nothing for half its interval gets a heartbeat (as in RabbitMQ).
- A connection that received nothing for two intervals is reset (as in RabbitMQ).
- A frame without progress for MID_FRAME_S ends the connection, even without heartbeats.
- A message without progress for MID_FRAME_S closes it with 320, because other connections may wait for the memory of
  its body.

No time counts while the broker itself does not read the connection (read_pause.py). After the process was stopped
(SIGSTOP, a suspended machine), the loop runs timers before it reads the sockets, in which heartbeats wait. So a late
check is repeated after them.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from amqpd.connection.close_handler import RUNNING
from amqpd.connection.read_pause import OUTPUT

if TYPE_CHECKING:
    from amqpd.connection.connection import Connection

log = logging.getLogger(__name__)

HEARTBEAT_FRAME: Final = b"\x08\x00\x00\x00\x00\x00\x00\xce"
TICK_S: Final = 0.25
REPEAT_S: Final = 0.001  # not 0: uvloop would call it before it reads
MID_FRAME_S: Final = 60.0


class PeerActivity:
    """Times of the last data received and sent, in loop time."""

    __slots__ = ("began_frame", "progress", "received", "sent")

    def __init__(self, now: float) -> None:
        self.received = now
        self.sent = now
        self.began_frame = 0.0
        self.progress = (0, 0, 0)


class Heartbeats:
    """The heartbeat timer.

    Ticks four times a second while there are connections. Cost: 0.3 us per connection and tick.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._clocks: dict[Connection, PeerActivity] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._repeated = False

    def add(self, connection: Connection) -> None:
        self._clocks[connection] = PeerActivity(self._loop.time())
        if self._timer is None:
            self._arm(TICK_S)

    def _arm(self, delay_s: float) -> None:
        self._due = self._loop.time() + delay_s
        self._timer = self._loop.call_later(delay_s, self._tick)

    def remove(self, connection: Connection) -> None:
        self._clocks.pop(connection, None)

    def open_count(self) -> int:
        return len(self._clocks)

    def finish_unopened(self) -> None:
        """Close the connections in a handshake, and those that wait for the client's end of stream."""
        for connection in list(self._clocks):
            if connection.close_handler.state != RUNNING:
                connection.control.close_socket()

    def abort_all(self) -> None:
        for connection in list(self._clocks):
            connection.wire.abort()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        now = self._loop.time()
        self._repeated = not self._repeated and now - self._due > TICK_S
        if self._repeated:
            self._arm(REPEAT_S)
            return
        self._timer = None
        if self._clocks:
            self._arm(TICK_S)
        for connection, clock in list(self._clocks.items()):
            self._check(connection, clock, now)

    def _check(self, connection: Connection, clock: PeerActivity, now: float) -> None:
        if connection.received:
            connection.received = False
            clock.received = now
            if not connection.parser.has_partial_content():
                clock.began_frame = 0.0
        if connection.output.sent:
            connection.output.sent = False
            clock.sent = now
        if connection.close_handler.state != RUNNING:
            return
        reasons = connection.read_pause.reasons
        if reasons:
            # The broker does not read, so neither a heartbeat nor the rest of a frame can arrive.
            clock.received = now
        if reasons and not (reasons == OUTPUT and connection.broker.unfinished_bodies.full):
            clock.began_frame = 0.0
        elif connection.parser.is_mid_command():
            progress = connection.parser.progress()
            if not clock.began_frame or progress != clock.progress:
                clock.began_frame = now
                clock.progress = progress
            elif now - clock.began_frame > MID_FRAME_S and connection.parser.has_partial_content():
                # Also if the client itself does not read its output: other connections wait for the end of its
                # message.
                connection.control.force(f"no data of an incomplete message for {MID_FRAME_S:.0f} s")
                return
            elif now - clock.began_frame > MID_FRAME_S and not reasons:
                about = {"connection": connection.name}
                log.warning("a frame was incomplete for %d s, the connection is reset", MID_FRAME_S, extra=about)
                connection.wire.abort()
                return
        else:
            clock.began_frame = 0.0
        interval: int = connection.heartbeat_s
        if not interval:
            return
        if now - clock.received > 2 * interval:
            about = {"connection": connection.name}
            log.warning("missed heartbeats for %d s, the connection is reset", 2 * interval, extra=about)
            connection.wire.abort()
        elif now - clock.sent >= interval / 2:
            connection.output.write(HEARTBEAT_FRAME)
            clock.sent = now
