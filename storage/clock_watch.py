"""Clock watch: detects that the wall clock was set, and ignores the jump until it is accepted.

If a clock is one day ahead for a minute, retention must not delete a day of messages: nothing could restore them.
So the watch compares the wall clock with the machine's uptime. A change of more than JUMP_MS between two checks is
a jump; smaller changes are drift and are followed. A jump is held until

- an operator accepts it (`accept`),
- the wall clock has not jumped again for `hold_ms`, or
- the wall clock is back at the old time.

There are three readings:

clock.time_ms()   the wall clock. Messages are stamped with it.
steady_ms()       the wall clock without the held jump. Delayed messages are due by it.
agreed_ms()       the lower of the two. Ages of messages are computed with it.

So while a jump is held, delays last as long as without it, and the jump makes nothing old. After it is accepted,
all three readings are equal.

**Restarts.** The file `clock` in the data directory has the last readings, written once a minute and at a stop. If
only the broker restarts, a jump is always detected, because the uptime shows how long it was away. If the machine
restarts, it may have been off for days. So a clock ahead of the file is accepted unless it is ahead by more than
GAP_MS_MAX or a jump was held. A clock more than JUMP_MS behind the file is a jump.

Compiled by mypyc.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Final, final

from mypy_extensions import i64

from amqpd.storage.filesystem import Clock, FileSystem

logger = logging.getLogger(__name__)

CLOCK: Final = "clock"
JUMP_MS: Final = 60_000
GAP_MS_MAX: Final = 31 * 86_400_000
HOLD_MS: Final = 3_600_000
SAVE_MS: Final = 60_000


@final
class ClockWatch:
    """The clock watch of a data directory. It checks the clocks at each reading, and when a timer calls `check`.

    Attributes:
        hold_ms: how long the wall clock must be steady after a jump; 0 accepts each jump at once.
        held: a jump is held now.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.hold_ms: i64 = HOLD_MS
        self.held = False
        # Uptime of the last jump.
        self._jumped_ms: i64 = 0
        # Wall clock minus uptime: at the last check, and without the held jump.
        self._apart_ms: i64 = self._difference_ms()
        self._steady_apart_ms: i64 = self._apart_ms
        self._filesystem: FileSystem | None = None
        self._path = ""
        self._boot_id = ""
        self._saved_ms: i64 = -SAVE_MS
        self._unsaved = False

    def steady_ms(self) -> i64:
        """Return milliseconds since 1970 without the held jump."""
        self.check()
        return self.clock.time_ms() - (self._apart_ms - self._steady_apart_ms)

    def agreed_ms(self) -> i64:
        """Return milliseconds since 1970 by the wall clock; less while a jump ahead is held."""
        self.check()
        ahead_ms = self._apart_ms - self._steady_apart_ms
        return self.clock.time_ms() - (ahead_ms if ahead_ms > 0 else 0)

    @property
    def jump_ms(self) -> int:
        """The size of the held jump; negative if the clock is behind. 0 without a jump."""
        return int(self._apart_ms - self._steady_apart_ms) if self.held else 0

    @property
    def remaining_ms(self) -> int:
        """Remaining time of the held jump if the clock stays steady."""
        return max(0, int(self._jumped_ms + self.hold_ms - self._uptime_ms())) if self.held else 0

    def check(self) -> None:
        """Compare the clocks. Cost: two system calls, less than 1 us."""
        apart_ms = self._difference_ms()
        step_ms = apart_ms - self._apart_ms
        if not _is_small(step_ms):
            # The process may have been stopped between the two readings.
            apart_ms = self._difference_ms()
            step_ms = apart_ms - self._apart_ms
        self._apart_ms = apart_ms
        if self.held and _is_small(apart_ms - self._steady_apart_ms):
            logger.warning("the wall clock shows its old time again")
            self._end()
        elif not _is_small(step_ms):
            self._jumped("the wall clock was set")
        elif self.held and self._uptime_ms() - self._jumped_ms >= self.hold_ms:
            logger.warning(
                "the wall clock has been steady for %d s and is accepted %s",
                self.hold_ms // 1000,
                self._describe_jump(),
            )
            self._end()
        elif not self.held:
            self._steady_apart_ms = apart_ms

    def accept(self) -> None:
        """Accept the wall clock: messages that are old or due by it may be removed or delivered."""
        self.check()
        if self.held:
            logger.warning("the wall clock is accepted %s", self._describe_jump())
            self._end()

    def _jumped(self, cause: str) -> None:
        if self.hold_ms <= 0:
            logger.warning("%s; the jump is accepted: it is now %s", cause, self._describe_jump())
            self._end()
            return
        self._unsaved = True
        self.held = True
        self._jumped_ms = self._uptime_ms()
        logger.warning(
            "%s: it is now %s; retention, time to live and delays ignore this until 'amqpctl accept_clock', or until "
            "the clock has been steady for %d s",
            cause,
            self._describe_jump(),
            self.hold_ms // 1000,
        )

    def _end(self) -> None:
        self.held = False
        self._steady_apart_ms = self._apart_ms
        self._unsaved = True

    def _describe_jump(self) -> str:
        """Return the distance from the steady time and the wall clock's time, for the log."""
        jump_ms: int = self._apart_ms - self._steady_apart_ms
        shown = datetime.fromtimestamp(self.clock.time_ms() / 1000, UTC).isoformat(timespec="seconds")
        return f"{abs(jump_ms) / 1000:.0f} s {'ahead' if jump_ms > 0 else 'behind'} ({shown})"

    def _uptime_ms(self) -> i64:
        return int(self.clock.uptime() * 1000)

    def _difference_ms(self) -> i64:
        return self.clock.time_ms() - self._uptime_ms()

    # -- restarts

    def begin(self, filesystem: FileSystem, directory: str, boot_id: str, hold_ms: int) -> None:
        """Compare the clock with the file of the last process, and write that file from now on. Raises: OSError."""
        self._filesystem = filesystem
        self._path = f"{directory}/{CLOCK}"
        self._boot_id = boot_id
        self.hold_ms = hold_ms
        data = filesystem.read_optional(self._path)
        if data:
            try:
                last = json.loads(data)
                boot, wall_ms = str(last["boot_id"]), int(last["wall_ms"])
                steady_ms, uptime_ms = int(last["steady_ms"]), int(last["uptime_ms"])
            except (ValueError, KeyError, TypeError):
                logger.warning("%s cannot be read: the wall clock is accepted", self._path)
            else:
                self._compare(boot, wall_ms, steady_ms, uptime_ms)
        self._unsaved = True
        self.save()

    def _compare(self, boot_id: str, wall_ms: i64, steady_ms: i64, uptime_ms: i64) -> None:
        now_ms = self._uptime_ms()
        was_held = not _is_small(wall_ms - steady_ms)
        if boot_id == self._boot_id and now_ms >= uptime_ms:
            self._steady_apart_ms = steady_ms - uptime_ms
            cause = "the wall clock was set before this start"
        else:
            self._steady_apart_ms = steady_ms - now_ms
            cause = "the wall clock is not where the last start left it"
            ahead_ms = self._apart_ms - self._steady_apart_ms
            if 0 <= ahead_ms <= GAP_MS_MAX and not was_held:
                self._steady_apart_ms = self._apart_ms  # the machine was off
        if _is_small(self._apart_ms - self._steady_apart_ms):
            self._steady_apart_ms = self._apart_ms
        else:
            self._jumped(cause)

    def tick(self) -> None:
        """Check the clocks, and write the file once a minute or after a change. For a timer of a few seconds."""
        self.check()
        if self._unsaved or self._uptime_ms() - self._saved_ms >= SAVE_MS:
            self.save()

    def save(self) -> None:
        """Write the file without a sync: a power cut loses at most a minute."""
        if self._filesystem is None:
            return
        uptime_ms = self._uptime_ms()
        last = {
            "boot_id": self._boot_id,
            "uptime_ms": int(uptime_ms),
            "wall_ms": int(uptime_ms + self._apart_ms),
            "steady_ms": int(uptime_ms + self._steady_apart_ms),
        }
        self._saved_ms = uptime_ms
        try:
            self._filesystem.replace_file(self._path, f"{json.dumps(last)}\n".encode(), sync=False)
        except OSError as error:
            logger.warning("%s: %s", self._path, error)
        else:
            self._unsaved = False


def _is_small(step_ms: i64) -> bool:
    return -JUMP_MS <= step_ms <= JUMP_MS
