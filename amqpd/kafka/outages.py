"""Reports of trouble with Kafka: a few log lines, even if many connections fail.

While Kafka is away, each connection, each slot and aiokafka's clients fail several times a second. They report
failures (`report_failure`) and recoveries (`report_success`) here:

- The first failure is logged.
- Then once a minute a line names all that still fails, with the number of failures.
- A line is logged when everything works again, or when nothing has failed for two minutes.

An outage that begins less than a minute after the last line is logged only if it lasts for 5 s. So short repeated
outages do not fill the log.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

logger = logging.getLogger(__name__)

REPEAT_S: Final = 60.0
LASTS_S: Final = 5.0
FORGOTTEN_S: Final = 120.0
"""A component that has not failed for this time counts as working or unused."""
SHOWN_MAX: Final = 8
THE_GROUP: Final = "the group of the nodes"
"""Name under which aiokafka's clients report. The next accepted heartbeat ends their trouble."""


class Outages:
    """The outages of all Kafka connections of one node. Used on the event loop."""

    def __init__(self) -> None:
        self._failing: dict[str, tuple[str, float]] = {}  # component -> reason and time of its last failure
        self._began_s = 0.0
        self._count = 0  # failures since the last line
        self._last = ""
        self._is_logged = False  # the begin of this outage is logged
        self._timer: asyncio.TimerHandle | None = None  # runs for REPEAT_S after a line

    def report_failure(self, component: str, why: object) -> None:
        """Report a failure. Logs at most one line a minute.

        Args:
            component: a broker, a slot, the group.
        """
        loop = asyncio.get_running_loop()
        now = loop.time()
        if not self._failing:
            self._began_s = now
            if self._timer is not None and not self._is_logged:
                loop.call_later(LASTS_S, self._lasts, now)
        text = str(why) or type(why).__name__
        self._failing[component] = text, now
        self._count += 1
        self._last = f"{component}: {text}"
        if self._timer is None:
            self._begin()

    def _begin(self) -> None:
        logger.warning("trouble with Kafka: %s", self._last)
        self._is_logged, self._count = True, 0
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(REPEAT_S, self._repeat)

    def _lasts(self, began_s: float) -> None:
        """Log an outage that began LASTS_S ago and is not logged yet."""
        if self._failing and not self._is_logged and self._began_s == began_s:
            self._begin()

    def report_success(self, component: str) -> None:
        """Report that a component works. Cost: a look-up if it did not fail."""
        if self._failing.pop(component, None) is not None and not self._failing:
            self._end()

    def failure_reason(self, component: str) -> str:
        """Return the reason of the last failure; "" if the component works."""
        return self._failing.get(component, ("", 0.0))[0]

    def duration_s(self) -> float:
        """Return how long something has failed without a moment in which all worked; 0 if all works now."""
        return asyncio.get_running_loop().time() - self._began_s if self._failing else 0.0

    def _end(self) -> None:
        if self._is_logged:
            seconds = asyncio.get_running_loop().time() - self._began_s
            logger.warning("Kafka answers again, after %.1f s", seconds)
            self._is_logged, self._count = False, 0

    def _repeat(self) -> None:
        """Log the state, one minute after the last line."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._timer = None
        for component in [component for component, (_, last_s) in self._failing.items() if now - last_s > FORGOTTEN_S]:
            self.report_success(component)
        if not self._failing and not self._count:
            return
        if self._failing:
            shown = "; ".join(f"{component}: {why}" for component, (why, _) in list(self._failing.items())[:SHOWN_MAX])
            more = len(self._failing) - SHOWN_MAX
            shown += f"; and {more} more" if more > 0 else ""
            logger.warning("trouble with Kafka for %.0f s, %d failures: %s", now - self._began_s, self._count, shown)
            self._is_logged = True
        else:
            logger.warning("trouble with Kafka is over: %d failures, the last: %s", self._count, self._last)
        self._count = 0
        self._timer = loop.call_later(REPEAT_S, self._repeat)


class AiokafkaLog(logging.Handler):
    """Log handler for aiokafka: an error is reported as a failure, a traceback is logged unchanged."""

    def __init__(self, outages: Outages) -> None:
        super().__init__(logging.ERROR)
        self._outages = outages

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            logging.getLogger().handle(record)
        else:
            self._outages.report_failure(THE_GROUP, record.getMessage())

    def attach(self) -> None:
        """Handle aiokafka's records instead of the process's log, where it would log each step of each rebalance."""
        theirs = logging.getLogger("aiokafka")
        theirs.setLevel(logging.ERROR)
        theirs.propagate = False
        theirs.handlers = [each for each in theirs.handlers if not isinstance(each, AiokafkaLog)]
        theirs.addHandler(self)
