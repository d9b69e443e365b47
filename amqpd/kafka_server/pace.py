"""How much of a turn of the event loop the requests of Kafka's clients may take, all of them together.

Without this, a client could hold up all others, those of AMQP too: by one request with thousands of parts, by many
requests in one packet, or by many connections. Three rules:

    requests begin for REQUESTS_S in a turn       the connections that come later are read in the next turn, in order
    work of one request takes SLICE_S at once     its *steps* continue in later turns
    such work takes SLICE_S in a turn             for all requests; ACTIVE_MAX of them take turns, others wait

Steps are a generator that yields where it may be interrupted, at most some 100 us after the last time. Between two
steps anything may change, so steps must not rely on what they have found earlier. A connection handles no further
request while one of its requests has steps left, so requests keep their order.

A request that is done within its first slice costs one look at the clock for each step.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

if TYPE_CHECKING:
    from amqpd.broker.flow.loop_turn import LoopTurn
    from amqpd.kafka_server.connection import KafkaClientConnection

log = logging.getLogger(__name__)

REQUESTS_S: Final = 0.004
SLICE_S: Final = 0.002
ACTIVE_MAX: Final = 8
"""Requests whose decoded fields and answers are in memory together."""

T = TypeVar("T")
Steps: TypeAlias = Generator[None, None, T]


class Pace:
    """The time of the current turn. One per listener.

    Args:
        turn: of the broker.
        call_soon: calls a function in the next turn.
    """

    def __init__(self, turn: LoopTurn, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._turn = turn
        self._call_soon = call_soon
        self._number = -1  # of the turn in which `_spent_s` was spent
        self._spent_s = 0.0
        self._is_scheduled = False
        self._readers: deque[KafkaClientConnection] = deque()
        self._calls: deque[Callable[[], None]] = deque()
        # The steps of requests and of answers that are left.
        self._active: deque[tuple[KafkaClientConnection, Steps[None]]] = deque()
        self._waiting: deque[tuple[KafkaClientConnection, Steps[None]]] = deque()

    # -- requests

    def may_begin(self) -> bool:
        """Return whether one more request may begin in this turn."""
        number = int(self._turn.number)
        if number != self._number:
            self._number = number
            self._spent_s = 0.0
        return self._spent_s < REQUESTS_S

    def count(self, seconds: float) -> None:
        """Count the time of requests that have begun."""
        self._spent_s += seconds

    def read_later(self, connection: KafkaClientConnection) -> None:
        """Call `connection.read_on` in a later turn."""
        self._readers.append(connection)
        self._schedule()

    # -- work

    def run(self, connection: KafkaClientConnection, steps: Steps[None]) -> None:
        """Run the steps of a request: a slice now, the rest later. Exceptions go to `connection.fail`."""
        if connection.closed or _is_done(connection, steps, time.monotonic() + SLICE_S):
            return
        connection.begin_work()
        (self._active if len(self._active) < ACTIVE_MAX else self._waiting).append((connection, steps))
        self._schedule()

    def later(self, call: Callable[[], None]) -> None:
        """Call a function that works for at most a slice, when there is time for it in a later turn."""
        self._calls.append(call)
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._is_scheduled = False
        self._spent_s = 0.0
        self._number = int(self._turn.number)
        try:
            self._run_turn()
        finally:
            if self._readers or self._calls or self._active:
                self._schedule()

    def _run_turn(self) -> None:
        for _ in range(len(self._readers)):
            if self._spent_s >= REQUESTS_S:
                break
            self._readers.popleft().read_on()
        until_s = time.monotonic() + SLICE_S
        while self._calls or self._active:
            if self._calls:
                self._run_call(self._calls.popleft())
            if self._active:
                self._continue(*self._active.popleft(), until_s)
            if time.monotonic() >= until_s:
                break

    def _run_call(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception:
            # Others must go on.
            log.exception("a bug in amqpd, please report it")

    def _continue(self, connection: KafkaClientConnection, steps: Steps[None], until_s: float) -> None:
        if not connection.closed and not _is_done(connection, steps, until_s):
            self._active.append((connection, steps))
            return
        steps.close()
        if self._waiting:
            self._active.append(self._waiting.popleft())
        connection.end_work()


def _is_done(connection: KafkaClientConnection, steps: Steps[None], until_s: float) -> bool:
    """Run steps until this time. Return whether none are left."""
    try:
        for _ in steps:
            if time.monotonic() >= until_s:
                return False
    except Exception as error:  # noqa: BLE001  # the connection logs it
        connection.fail(error)
    return True


def run_all(steps: Steps[T]) -> T:
    """Run steps without a pause, and return their result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
