"""What the wheels of all exchanges share, and how they are made to turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, final

from mypy_extensions import i64

from amqpd.broker.delay_hook import Delaying
from amqpd.broker.delayed.bucket import Bucket
from amqpd.broker.delayed.release import Tally
from amqpd.broker.delayed.slots import NEVER
from amqpd.broker.flow.timers import Timer, Timers
from amqpd.broker.flow.loop_turn import Turn
from amqpd.broker.publish.republisher import Republisher
from amqpd.storage.storage import Storage

if TYPE_CHECKING:
    from amqpd.broker.vhost.vhost import VHost


class Works:
    """One per broker. vhosts: all there are, by name."""

    def __init__(
        self,
        storage: Storage,
        turn: Turn,
        timers: Timers,
        republisher: Republisher,
        vhosts: Mapping[str, VHost],
    ) -> None:
        self.storage = storage
        self.turn = turn
        self.timers = timers
        self.republisher = republisher
        self.vhosts = vhosts
        self.tally = Tally()
        self._number: i64 = 0

    def busy(self, wheel: Turning) -> None:
        """The wheel has something to do now: its `step` is called soon, until it says False."""
        raise NotImplementedError

    def gone(self, vhost: str, exchange: str) -> None:
        """The exchange is deleted: its wheel is not used any more."""
        raise NotImplementedError

    def next_number(self) -> i64:
        """Of a message: above all before it."""
        number = self.timers.wall_ms() << 20
        if number <= self._number:
            number = self._number + 1
        self._number = number
        return number


class Turning(Delaying):
    """A wheel, as who makes it turn knows it, and who brings it messages. queued: it stands in `Works`' line. armed_ms:
    when it is called next, by wall clock. failures: of its `step`, on end; it rests until rest_ms, monotonic.
    """

    def __init__(self, works: Works) -> None:
        super().__init__()
        self.works = works
        self.queued = False
        self.dropped = False
        self.armed_ms: i64 = NEVER
        self.failures: i64 = 0
        self.rest_ms: i64 = 0
        self._wake = Wake(self)

    def taking(self, due: i64) -> Bucket:
        """The bucket that a message of now goes to. Raises: LogFailed where none can be made."""
        raise NotImplementedError

    def took(self, bucket: Bucket, due: i64, offset: i64) -> None:
        """The bucket has taken a message."""
        raise NotImplementedError

    def about(self) -> dict[str, object]:
        """Fields that tell of it in the broker's log."""
        raise NotImplementedError

    def step(self) -> bool:
        """Does a piece of what there is to do. False: nothing now."""
        raise NotImplementedError

    def rearm(self) -> None:
        """Nothing can be done now, or the clock was set: it sees to it that it is called when something can."""
        raise NotImplementedError

    def arm(self, wall_ms: i64) -> None:
        """It is called at that time, or before. Cost: a comparison where it is."""
        if wall_ms < self.armed_ms and not self.dropped:
            self.armed_ms = wall_ms
            timers = self.works.timers
            timers.arm(self._wake, timers.now_ms() + wall_ms - timers.steady_ms())

    def disarm(self) -> None:
        """It is not called."""
        self.armed_ms = NEVER
        self.works.timers.cancel(self._wake)


@final
class Countdown:
    """`done` is called when so many directories are gone."""

    def __init__(self, count: i64, done: Callable[[], None]) -> None:
        self._count = count
        self._done = done

    def one(self) -> None:
        self._count -= 1
        if self._count == 0:
            self._done()


@final
class Wake(Timer):
    """The wheel's next moment has come."""

    def __init__(self, wheel: Turning) -> None:
        super().__init__()
        self.wheel = wheel

    def fire(self) -> None:
        wheel = self.wheel
        wheel.armed_ms = NEVER
        wheel.works.busy(wheel)
