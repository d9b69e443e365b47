"""The delayed messages of all exchanges: their wheels, whose turn it is, the clock, and what an earlier life left.

A wheel that has something to do stands in a line; a slice of SLICE_MS of a loop turn goes over it, a piece for each in
turn, so that a hundred thousand messages that are due at once, or a bucket of a million that goes down, hold the loop
no longer than that. When nothing is to be done each wheel has one timer.

Timers keep the monotonic clock and messages the wall's: WATCH_MS after it was set at the latest all wheels look again.

A wheel whose step raises what nobody expects, a bug of the broker, rests for FAILED_MS, then twice as long each time,
FAILED_MS_MAX at most; the others turn on. The broker's log has the traceback once, and a line for every further try.

On the disk: <vhost>/delays/<random id>/<bucket>/, an ordinary log each, a directory above them for each exchange, whose
name stands in every queue.json. At the start copies whose parent is still there are thrown away (bucket.py), and
messages of an exchange that is not there any more, which was deleted or not durable, are dropped.
"""

from __future__ import annotations

import logging
import secrets
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64

from amqpd.broker.delayed.bucket import BucketName, parse_name
from amqpd.broker.delayed.timing_wheel import DelaySchedulerBase, TimingWheel, TimingWheelBase
from amqpd.broker.flow.loop_turn import LoopTurn
from amqpd.broker.flow.timers import Timer, Timers
from amqpd.broker.publish.republisher import Republisher
from amqpd.storage.acks.segment_removal import DELETED
from amqpd.storage.queue_json import DESCRIPTION, describe, read_description
from amqpd.storage.queue_log import QueueLog
from amqpd.storage.storage import Storage

if TYPE_CHECKING:
    from amqpd.broker.vhost.vhost import VHost

log = logging.getLogger(__name__)

SLICE_MS: Final = 3
WATCH_MS: Final = 500
# By how much the clocks may drift apart between two looks.
DRIFT_MS: Final = 2
FAILED_MS: Final = 1000
FAILED_MS_MAX: Final = 30_000


@final
class ClockWatcher(Timer):
    """Looks whether the wall clock was set."""

    def __init__(self, delays: DelayScheduler) -> None:
        super().__init__()
        self.delays = delays

    def fire(self) -> None:
        self.delays.look_at_clock()


@final
class DelayScheduler(DelaySchedulerBase):
    """One per broker. call_soon: calls a function in the next turn of the loop."""

    def __init__(
        self,
        storage: Storage,
        turn: LoopTurn,
        timers: Timers,
        republisher: Republisher,
        vhosts: Mapping[str, VHost],
        call_soon: Callable[[Callable[[], None]], object],
    ) -> None:
        super().__init__(storage, turn, timers, republisher, vhosts)
        # By vhost, then by exchange.
        self._wheels: dict[str, dict[str, TimingWheel]] = {}
        self._call_soon = call_soon
        self._line: deque[TimingWheelBase] = deque()
        self._scheduled = False
        self._watch = ClockWatcher(self)
        self._apart_ms: i64 = 0
        self._stopped = False

    # -- wheels ------------------------------------------------------------------------------------------------------

    def wheel(self, vhost: str, vhost_id: str, exchange: str) -> TimingWheel:
        """Of this exchange, made where it has none. On the disk nothing is made before its first message."""
        wheels = self._wheels.get(vhost)
        if wheels is None:
            wheels = {}
            self._wheels[vhost] = wheels
        wheel = wheels.get(exchange)
        if wheel is None:
            wheel = TimingWheel(self, vhost, vhost_id, exchange, secrets.token_hex(16))
            wheels[exchange] = wheel
            if self._watch.tick < 0:
                self._apart_ms = self.timers.steady_ms() - self.timers.now_ms()
                self.timers.arm(self._watch, self.timers.now_ms() + WATCH_MS)
        return wheel

    def of_vhost(self, vhost: str) -> list[TimingWheel]:
        """Those of its exchanges that delay, or did."""
        wheels = self._wheels.get(vhost)
        return [] if wheels is None else list(wheels.values())

    def count_of(self, vhost: str) -> int:
        """Messages that wait in this vhost."""
        total: i64 = 0
        for wheel in self.of_vhost(vhost):
            total += wheel.count()
        return total

    def gone(self, vhost: str, exchange: str) -> None:
        wheels = self._wheels.get(vhost)
        if wheels is not None:
            wheels.pop(exchange, None)
            if not wheels:
                del self._wheels[vhost]

    def end_vhost(self, vhost: str) -> list[QueueLog]:
        """The vhost is deleted. Returns the logs, which go with its directory."""
        stores: list[QueueLog] = []
        for wheel in self.of_vhost(vhost):
            self.tally.dropped += wheel.count()
            stores += wheel.end()
        self._wheels.pop(vhost, None)
        return stores

    def stop(self) -> None:
        """The broker stops: what waits stays on the disk."""
        self._stopped = True
        self._line.clear()
        for wheels in self._wheels.values():
            for wheel in wheels.values():
                wheel.stop()

    # -- turns -------------------------------------------------------------------------------------------------------

    def busy(self, wheel: TimingWheelBase) -> None:
        if not wheel.queued and not self._stopped:
            left_ms: i64 = wheel.rest_ms - self.timers.now_ms()
            if left_ms > 0:
                wheel.arm(self.timers.steady_ms() + left_ms)
                return
            wheel.queued = True
            self._line.append(wheel)
            if not self._scheduled:
                self._scheduled = True
                self._call_soon(self.run)

    def run(self) -> None:
        """A slice. Called by the loop."""
        self._scheduled = False
        timers = self.timers
        begun_ms = timers.now_ms()
        while self._line:
            wheel = self._line.popleft()
            try:
                goes_on = wheel.step()
                wheel.failures = 0
            except Exception as error:  # noqa: BLE001  # told there; the others have their turn all the same
                goes_on = False
                self._failed(wheel, error)
            if goes_on:
                self._line.append(wheel)
            else:
                wheel.queued = False
                wheel.rearm()
            if timers.now_ms() - begun_ms >= SLICE_MS:
                break
        self.turn.schedule()  # what was appended, settled and marked is written
        if self._line and not self._scheduled:
            self._scheduled = True
            self._call_soon(self.run)

    def _failed(self, wheel: TimingWheelBase, error: Exception) -> None:
        doublings = wheel.failures if wheel.failures < 5 else 5
        rest_ms: i64 = min(FAILED_MS << doublings, FAILED_MS_MAX)
        if wheel.failures == 0:
            log.error(
                "delayed messages: a bug of the broker; next try in %g s",
                rest_ms / 1000,
                exc_info=error,
                extra=wheel.about(),
            )
        else:
            log.error(
                "delayed messages: the bug is still there (%r); next try in %g s",
                error,
                rest_ms / 1000,
                extra=wheel.about(),
            )
        wheel.failures += 1
        wheel.rest_ms = self.timers.now_ms() + rest_ms

    def look_at_clock(self) -> None:
        """Whether the wall clock was set since the last look: then what is due is, and the rest waits anew."""
        timers = self.timers
        apart_ms = timers.steady_ms() - timers.now_ms()
        drift_ms = apart_ms - self._apart_ms
        if drift_ms >= DRIFT_MS or drift_ms <= -DRIFT_MS:
            self._apart_ms = apart_ms
            for wheels in self._wheels.values():
                for wheel in wheels.values():
                    wheel.rearm()
        if self._wheels:
            timers.arm(self._watch, timers.now_ms() + WATCH_MS)

    # -- at the start ------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """All vhosts and exchanges are loaded: their messages come back. Nothing is read but names and a small file for
        each exchange. Raises: OSError.
        """
        for vhost in list(self.vhosts.values()):
            root = self.storage.delay_chain(vhost.id)[-1]
            for folder in sorted(self.storage.filesystem.listdir(root)):
                if folder.endswith(DELETED):
                    self.storage.departures.remove(f"{root}/{folder.removesuffix(DELETED)}")
                else:
                    self._begin_folder(vhost, folder)

    def _begin_folder(self, vhost: VHost, folder: str) -> None:
        storage = self.storage
        chain = storage.delay_chain(vhost.id, folder)
        root = chain[-1]
        found: dict[str, BucketName] = {}
        name = ""
        for each in sorted(storage.filesystem.listdir(root)):
            if each.endswith(DELETED):
                storage.departures.remove(f"{root}/{each.removesuffix(DELETED)}")
                continue
            named = parse_name(each)
            if named is None:
                log.error("%s/%s is no bucket of delayed messages, and is left alone", root, each)
                continue
            found[each] = named
            if not name:
                told = read_description(storage.filesystem.read_if_there(f"{root}/{each}/{DESCRIPTION}"), each)
                name = "" if told is None else told.queue
        if not name and not self._has_records(root, found):  # it was about to get its first message
            storage.retire_directory(chain, [], _nothing)
            return
        if not name:
            log.error("%s: no %s in it tells whose messages these are; they are left alone", root, DESCRIPTION)
            return
        exchange = vhost.exchanges.get(name)
        if exchange is None:
            log.warning(
                "the delayed messages of exchange '%s' in vhost '%s' are dropped: it is not there any more",
                name,
                vhost.name,
                extra={"vhost": vhost.name, "exchange": name},
            )
            # Now, for one of its name may be declared as soon as clients are served.
            storage.departures.rename_now(chain)
            storage.departures.remove(root)
            return
        wheel = self.wheel(vhost.name, vhost.id, name)
        exchange.wheel = wheel
        storage.note_delays()
        if wheel.buckets:
            # One of the name before it was deleted, and the disk refused the rename; or somebody has copied files.
            log.warning("%s has delayed messages of exchange '%s' too", root, name, extra=wheel.about())
            wheel.others.append(folder)
        else:
            wheel.folder = folder
        self._restore(wheel, folder, found)
        self.busy(wheel)

    def _has_records(self, root: str, names: Mapping[str, BucketName]) -> bool:
        filesystem = self.storage.filesystem
        for name in names:
            for each in filesystem.listdir(f"{root}/{name}"):
                if each.endswith(".log") and filesystem.size(f"{root}/{name}/{each}") > 0:
                    return True
        return False

    def _restore(self, wheel: TimingWheel, folder: str, found: dict[str, BucketName]) -> None:
        storage = self.storage
        nonces = {each.nonce for each in found.values()}
        for name, named in found.items():
            chain = storage.delay_chain(wheel.vhost_id, folder, name)
            if named.parent in nonces:
                storage.retire_directory(chain, [], _nothing)
                continue
            if storage.power_cut:
                self._tell_whose(wheel, chain[-1], name)
            store = storage.open_log(chain, wheel.exchange, wheel.vhost, wheel.vhost_id)
            wheel.restore(named.place, name, chain, store)

    def _tell_whose(self, wheel: TimingWheel, directory: str, name: str) -> None:
        """A power cut may have left a bucket without the file that says whose it is. Another one's has told it now, and
        may be gone at the next start.
        """
        filesystem = self.storage.filesystem
        path = f"{directory}/{DESCRIPTION}"
        if read_description(filesystem.read_if_there(path), name) is not None:
            return
        try:
            filesystem.replace_file(path, describe(wheel.exchange, wheel.vhost, False, b"", name), sync=True)
            filesystem.fsync_dir(directory)
        except OSError as error:
            log.error("%s cannot be written again: %s", path, error, extra=wheel.about())


def _nothing() -> None:
    """Nobody waits for a directory to go."""
