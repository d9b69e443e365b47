"""Trouble with Kafka, in a few lines of the log however many connections have it.

While Kafka is away each connection, each slot and aiokafka's clients fail several times a second. They report here what
failed and why (`failed`), and what works again (`answered`):

- The first failure is a line.
- While anything fails, and once a minute, a line names all that fails, and how often it failed.
- When all of it works again, or nothing has failed for two minutes, a line says so.

An outage that begins less than a minute after the last line gets one only when it lasts for 5 s: what comes and goes
would be a line each time.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

logger = logging.getLogger(__name__)

REPEAT_S: Final = 60.0
LASTS_S: Final = 5.0
FORGOTTEN_S: Final = 120.0
"""What has not failed for so long is not tried any more, or works without saying so."""
SHOWN_MAX: Final = 8
THE_GROUP: Final = "the group of the nodes"
"""What aiokafka's clients report: they keep the group, and its next heartbeat ends their trouble."""


class Outages:
    """One for all connections of a node to Kafka. Loop thread only."""

    def __init__(self) -> None:
        self._failing: dict[str, tuple[str, float]] = {}  # what -> why, and when last
        self._began_s = 0.0
        self._count = 0  # failures since the last line
        self._last = ""
        self._said = False  # a line says that this outage has begun
        self._timer: asyncio.TimerHandle | None = None  # less than REPEAT_S ago there was a line

    def failed(self, what: str, why: object) -> None:
        """Report a failure. what: a broker, a slot, the group. Cost: a line in the log, once a minute at most."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        if not self._failing:
            self._began_s = now
            if self._timer is not None and not self._said:
                loop.call_later(LASTS_S, self._lasts, now)
        text = str(why) or type(why).__name__
        self._failing[what] = text, now
        self._count += 1
        self._last = f"{what}: {text}"
        if self._timer is None:
            self._begin()

    def _begin(self) -> None:
        logger.warning("trouble with Kafka: %s", self._last)
        self._said, self._count = True, 0
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(REPEAT_S, self._repeat)

    def _lasts(self, began_s: float) -> None:
        """An outage that no line has told has begun some seconds ago."""
        if self._failing and not self._said and self._began_s == began_s:
            self._begin()

    def answered(self, what: str) -> None:
        """Report that it works. Cost: a look-up where it did not fail."""
        if self._failing.pop(what, None) is not None and not self._failing:
            self._end()

    def why(self, what: str) -> str:
        """Return why it failed last; "" if it has not, or works again."""
        return self._failing.get(what, ("", 0.0))[0]

    def _end(self) -> None:
        if self._said:
            seconds = asyncio.get_running_loop().time() - self._began_s
            logger.warning("Kafka answers again, after %.1f s", seconds)
            self._said, self._count = False, 0

    def _repeat(self) -> None:
        """A minute has passed since the last line."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._timer = None
        for what in [what for what, (_, last_s) in self._failing.items() if now - last_s > FORGOTTEN_S]:
            self.answered(what)
        if not self._failing and not self._count:
            return
        if self._failing:
            shown = "; ".join(f"{what}: {why}" for what, (why, _) in list(self._failing.items())[:SHOWN_MAX])
            more = len(self._failing) - SHOWN_MAX
            shown += f"; and {more} more" if more > 0 else ""
            logger.warning("trouble with Kafka for %.0f s, %d failures: %s", now - self._began_s, self._count, shown)
            self._said = True
        else:
            logger.warning("trouble with Kafka, which is over: %d failures, the last: %s", self._count, self._last)
        self._count = 0
        self._timer = loop.call_later(REPEAT_S, self._repeat)


class AiokafkaLog(logging.Handler):
    """Takes what aiokafka logs: an error is reported as a failure, a traceback is logged as it is."""

    def __init__(self, outages: Outages) -> None:
        super().__init__(logging.ERROR)
        self._outages = outages

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            logging.getLogger().handle(record)
        else:
            self._outages.failed(THE_GROUP, record.getMessage())

    def begin(self) -> None:
        """Take aiokafka's records from the process's log. It logs, and warns of, each step of each rebalance."""
        theirs = logging.getLogger("aiokafka")
        theirs.setLevel(logging.ERROR)
        theirs.propagate = False
        theirs.handlers = [each for each in theirs.handlers if not isinstance(each, AiokafkaLog)]
        theirs.addHandler(self)
