"""The clock watch: notices when the wall clock was set, and holds the jump back until it is accepted.

A clock that is a day ahead for a minute must not delete what retention keeps for a day: nothing undoes that. So the
watch compares the wall clock with the machine's uptime. A difference of more than JUMP_MS between two looks is a jump.
Smaller ones are drift, and are followed. A jump is held until

- an operator accepts it (`accept`),
- the wall clock has not jumped again for `hold_ms`, or
- the wall clock is back where it was.

Three readings follow from that:

    clock.time_ms()   the wall clock as it is. Messages are stamped with it.
    steady_ms()       the wall clock without the jump that is held. Delayed messages are due by it.
    agreed_ms()       the lower of the two. What the wall clock has stamped is old when it is old by this reading.

So while a jump is held, delays take as long as they would have taken, and nothing becomes old because of the jump. When
the jump is accepted, all three readings are the same again.

**Over a restart** the file `clock` in the data directory has the last readings, written once a minute and at a stop.
While the machine runs, a restart of the broker hides no jump: the uptime tells how long the broker was away. After a
restart of the machine it may have been off for days, so a clock that is ahead is believed, unless it is ahead by more
than GAP_MS_MAX or a jump was held. A clock that is behind the file by more than JUMP_MS is not believed.

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
    """One per data directory. Looks at the clocks at each reading, and when `look` is called from a timer.

    hold_ms: for how long the wall clock must be steady after a jump; 0 accepts each jump at once.
    held: whether a jump is held now.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.hold_ms: i64 = HOLD_MS
        self.held = False
        # When it jumped last, by uptime.
        self._jumped_ms: i64 = 0
        # How far the wall clock is ahead of the uptime: at the last look, and without the jump that is held.
        self._apart_ms: i64 = self._difference_ms()
        self._steady_apart_ms: i64 = self._apart_ms
        self._filesystem: FileSystem | None = None
        self._path = ""
        self._boot_id = ""
        self._saved_ms: i64 = -SAVE_MS
        self._unsaved = False

    def steady_ms(self) -> i64:
        """Milliseconds since 1970, without the jump that is held."""
        self.look()
        return self.clock.time_ms() - (self._apart_ms - self._steady_apart_ms)

    def agreed_ms(self) -> i64:
        """Milliseconds since 1970: the wall clock's, or less while a jump ahead is held."""
        self.look()
        ahead_ms = self._apart_ms - self._steady_apart_ms
        return self.clock.time_ms() - (ahead_ms if ahead_ms > 0 else 0)

    @property
    def jump_ms(self) -> int:
        """By how much the wall clock is ahead because of the jump that is held; below 0: it is behind. 0: none is."""
        return int(self._apart_ms - self._steady_apart_ms) if self.held else 0

    @property
    def left_ms(self) -> int:
        """How long the jump is held from now on, if the clock stays steady."""
        return max(0, int(self._jumped_ms + self.hold_ms - self._uptime_ms())) if self.held else 0

    def look(self) -> None:
        """Compare the clocks now. Cost: two system calls, less than 1 us."""
        apart_ms = self._difference_ms()
        step_ms = apart_ms - self._apart_ms
        if not _is_small(step_ms):
            apart_ms = self._difference_ms()  # the process may have been stopped between its two readings
            step_ms = apart_ms - self._apart_ms
        self._apart_ms = apart_ms
        if self.held and _is_small(apart_ms - self._steady_apart_ms):
            logger.warning("the wall clock is back where it was")
            self._end()
        elif not _is_small(step_ms):
            self._jumped("the wall clock was set")
        elif self.held and self._uptime_ms() - self._jumped_ms >= self.hold_ms:
            logger.warning(
                "the wall clock has been steady for %d s and is accepted %s", self.hold_ms // 1000, self._where()
            )
            self._end()
        elif not self.held:
            self._steady_apart_ms = apart_ms

    def accept(self) -> None:
        """The wall clock is right as it is: what is old or due by it may go."""
        self.look()
        if self.held:
            logger.warning("the wall clock is accepted %s", self._where())
            self._end()

    def _jumped(self, why: str) -> None:
        if self.hold_ms <= 0:
            logger.warning("%s and is followed: it is now %s", why, self._where())
            self._end()
            return
        self._unsaved = True
        self.held = True
        self._jumped_ms = self._uptime_ms()
        logger.warning(
            "%s: it is now %s; retention, time to live and delays do not follow until 'amqpctl accept_clock', or until "
            "the clock has been steady for %d s",
            why,
            self._where(),
            self.hold_ms // 1000,
        )

    def _end(self) -> None:
        self.held = False
        self._steady_apart_ms = self._apart_ms
        self._unsaved = True

    def _where(self) -> str:
        """How far the wall clock is from the steady time, and what it shows, for the log."""
        jump_ms: int = self._apart_ms - self._steady_apart_ms
        shown = datetime.fromtimestamp(self.clock.time_ms() / 1000, UTC).isoformat(timespec="seconds")
        return f"{abs(jump_ms) / 1000:.0f} s {'ahead' if jump_ms > 0 else 'behind'} ({shown})"

    def _uptime_ms(self) -> i64:
        return int(self.clock.uptime() * 1000)

    def _difference_ms(self) -> i64:
        return self.clock.time_ms() - int(self.clock.uptime() * 1000)

    # -- over a restart

    def begin(self, filesystem: FileSystem, directory: str, boot_id: str, hold_ms: int) -> None:
        """Compare the clock with the file of the last life, and keep it there from now on. Raises: OSError."""
        self._filesystem = filesystem
        self._path = f"{directory}/{CLOCK}"
        self._boot_id = boot_id
        self.hold_ms = hold_ms
        data = filesystem.read_if_there(self._path)
        if data:
            try:
                last = json.loads(data)
                boot, wall_ms = str(last["boot_id"]), int(last["wall_ms"])
                steady_ms, uptime_ms = int(last["steady_ms"]), int(last["uptime_ms"])
            except (ValueError, KeyError, TypeError):
                logger.warning("%s cannot be read: the wall clock is believed", self._path)
            else:
                self._compare(boot, wall_ms, steady_ms, uptime_ms)
        self._unsaved = True
        self.save()

    def _compare(self, boot_id: str, wall_ms: i64, steady_ms: i64, uptime_ms: i64) -> None:
        now_ms = self._uptime_ms()
        was_held = not _is_small(wall_ms - steady_ms)
        if boot_id == self._boot_id and now_ms >= uptime_ms:
            self._steady_apart_ms = steady_ms - uptime_ms
            why = "the wall clock was set before this start"
        else:
            self._steady_apart_ms = steady_ms - now_ms
            why = "the wall clock is not where the last start left it"
            ahead_ms = self._apart_ms - self._steady_apart_ms
            if 0 <= ahead_ms <= GAP_MS_MAX and not was_held:
                self._steady_apart_ms = self._apart_ms  # the machine was off
        if _is_small(self._apart_ms - self._steady_apart_ms):
            self._steady_apart_ms = self._apart_ms
        else:
            self._jumped(why)

    def tick(self) -> None:
        """Look, and write the file if a minute has passed or something has changed. For a timer of a few seconds."""
        self.look()
        if self._unsaved or self._uptime_ms() - self._saved_ms >= SAVE_MS:
            self.save()

    def save(self) -> None:
        """Write the file. Not synced: what a power cut loses of it is a minute."""
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
    """Return whether the step is drift, and no jump."""
    return -JUMP_MS <= step_ms <= JUMP_MS
