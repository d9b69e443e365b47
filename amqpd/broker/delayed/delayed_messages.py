"""Scheduler of the timing wheels of all exchanges.

Wheels with work are in a queue. In each loop turn, SLICE_MS of work serves them in rotation, one `step` each. So a
hundred thousand messages that are due at once, or a cascade of a million, do not block the loop longer. An idle
wheel has one timer.

Timers use the monotonic clock, messages the wall clock. WATCH_MS after the wall clock was set, all wheels set their
timers again.

A wheel whose `step` raises an unexpected exception (a bug) is not called for FAILED_MS, doubled each time up to
FAILED_MS_MAX; other wheels continue. The log gets the traceback once, then a line for each retry.

Buckets are in <vhost>/delays/<random id>/<bucket>/, a normal log each. The directory above belongs to one exchange,
whose name is in every queue.json. A start deletes copies whose parent still exists (bucket.py), and drops messages
whose exchange does not exist any more.
"""

from __future__ import annotations

import logging
import secrets
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64

from amqpd.broker.consumer import DelayHooks
from amqpd.broker.delayed.bucket import BucketName, DelayStats, parse_name
from amqpd.broker.delayed.timing_wheel import TimingWheel
from amqpd.broker.flow.loop_turn import LoopTurn
from amqpd.broker.flow.timers import CallTimer, Timers
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
# Allowed drift of the clocks between two checks.
DRIFT_MS: Final = 2
FAILED_MS: Final = 1000
FAILED_MS_MAX: Final = 30_000


@final
class DelayScheduler(DelayHooks):
    """Scheduler of timing wheels, one per broker.

    Args:
        vhosts: all vhosts by name.
        call_soon: calls a function in the next loop turn.
    """

    def __init__(
        self,
        storage: Storage,
        turn: LoopTurn,
        timers: Timers,
        republisher: Republisher,
        vhosts: Mapping[str, VHost],
        call_soon: Callable[[Callable[[], None]], object],
    ) -> None:
        self.storage = storage
        self.turn = turn
        self.timers = timers
        self.republisher = republisher
        self.vhosts = vhosts
        self.stats = DelayStats()
        self._number: i64 = 0
        # By vhost, then by exchange.
        self._wheels: dict[str, dict[str, TimingWheel]] = {}
        self._call_soon = call_soon
        self._queue: deque[TimingWheel] = deque()
        self._scheduled = False
        self._watch = CallTimer(self.check_clock)
        self._apart_ms: i64 = 0
        self._stopped = False

    # -- wheels ---------------------------------------------------------------------------------------------------

    def wheel(self, vhost: str, vhost_id: str, exchange: str) -> TimingWheel:
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

    def wheels_of(self, vhost: str) -> list[TimingWheel]:
        wheels = self._wheels.get(vhost)
        return [] if wheels is None else list(wheels.values())

    def count_of(self, vhost: str) -> int:
        total: i64 = 0
        for wheel in self.wheels_of(vhost):
            total += wheel.count()
        return total

    def remove_wheel(self, vhost: str, exchange: str) -> None:
        """Remove the wheel of a deleted exchange."""
        wheels = self._wheels.get(vhost)
        if wheels is not None:
            wheels.pop(exchange, None)
            if not wheels:
                del self._wheels[vhost]

    def remove_vhost(self, vhost: str) -> list[QueueLog]:
        stores: list[QueueLog] = []
        for wheel in self.wheels_of(vhost):
            self.stats.dropped += wheel.count()
            stores += wheel.remove()
        self._wheels.pop(vhost, None)
        return stores

    def stop(self) -> None:
        """Stop: delayed messages remain on the disk."""
        self._stopped = True
        self._queue.clear()
        for wheels in self._wheels.values():
            for wheel in wheels.values():
                wheel.stop()

    # -- scheduling -----------------------------------------------------------------------------------------------

    def next_number(self) -> i64:
        """Return a number for a message, above all earlier ones."""
        number = self.timers.wall_ms() << 20
        if number <= self._number:
            number = self._number + 1
        self._number = number
        return number

    def schedule(self, wheel: TimingWheel) -> None:
        """Schedule the wheel: `step` is called until it returns False."""
        if not wheel.queued and not self._stopped:
            left_ms: i64 = wheel.paused_until_ms - self.timers.now_ms()
            if left_ms > 0:
                wheel.arm(self.timers.steady_ms() + left_ms)
                return
            wheel.queued = True
            self._queue.append(wheel)
            if not self._scheduled:
                self._scheduled = True
                self._call_soon(self.run)

    def run(self) -> None:
        """Work for one slice. Called by the loop."""
        self._scheduled = False
        timers = self.timers
        begun_ms = timers.now_ms()
        while self._queue:
            wheel = self._queue.popleft()
            try:
                has_more = wheel.step()
                wheel.failures = 0
            except Exception as error:  # noqa: BLE001  # told there; the others have their turn all the same
                has_more = False
                self._failed(wheel, error)
            if has_more:
                self._queue.append(wheel)
            else:
                wheel.queued = False
                wheel.update_timer()
            if timers.now_ms() - begun_ms >= SLICE_MS:
                break
        self.turn.schedule()  # writes what was appended, settled and marked
        if self._queue and not self._scheduled:
            self._scheduled = True
            self._call_soon(self.run)

    def _failed(self, wheel: TimingWheel, error: Exception) -> None:
        doublings = wheel.failures if wheel.failures < 5 else 5
        rest_ms: i64 = min(FAILED_MS << doublings, FAILED_MS_MAX)
        if wheel.failures == 0:
            log.error(
                "delayed messages: a bug in amqpd, please report it; next try in %g s",
                rest_ms / 1000,
                exc_info=error,
                extra=wheel.log_fields(),
            )
        else:
            log.error(
                "delayed messages: the bug persists (%r); next try in %g s",
                error,
                rest_ms / 1000,
                extra=wheel.log_fields(),
            )
        wheel.failures += 1
        wheel.paused_until_ms = self.timers.now_ms() + rest_ms

    def check_clock(self) -> None:
        """Check whether the wall clock was set; if so, set the timer of every wheel again."""
        timers = self.timers
        apart_ms = timers.steady_ms() - timers.now_ms()
        drift_ms = apart_ms - self._apart_ms
        if drift_ms >= DRIFT_MS or drift_ms <= -DRIFT_MS:
            self._apart_ms = apart_ms
            for wheels in self._wheels.values():
                for wheel in wheels.values():
                    wheel.update_timer()
        if self._wheels:
            timers.arm(self._watch, timers.now_ms() + WATCH_MS)

    # -- start ----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Restore the wheels after vhosts and exchanges are loaded. Raises: OSError.

        Reads only names, and a small file per exchange.
        """
        for vhost in list(self.vhosts.values()):
            root = self.storage.delay_chain(vhost.id)[-1]
            for folder in sorted(self.storage.filesystem.listdir(root)):
                if folder.endswith(DELETED):
                    self.storage.directory_remover.remove(f"{root}/{folder.removesuffix(DELETED)}")
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
                storage.directory_remover.remove(f"{root}/{each.removesuffix(DELETED)}")
                continue
            named = parse_name(each)
            if named is None:
                log.error("%s/%s is not a bucket of delayed messages and is ignored", root, each)
                continue
            found[each] = named
            if not name:
                description = read_description(storage.filesystem.read_optional(f"{root}/{each}/{DESCRIPTION}"), each)
                name = "" if description is None else description.queue
        if not name and not self._has_records(root, found):  # the process ended before its first message
            storage.retire_directory(chain, [], _nothing)
            return
        if not name:
            log.error("%s: no %s in it names the exchange of these messages; they are ignored", root, DESCRIPTION)
            return
        exchange = vhost.exchanges.get(name)
        if exchange is None:
            log.warning(
                "the delayed messages of exchange '%s' in vhost '%s' are dropped: it does not exist any more",
                name,
                vhost.name,
                extra={"vhost": vhost.name, "exchange": name},
            )
            # Now, because clients may soon declare an exchange of this name.
            storage.directory_remover.rename_now(chain)
            storage.directory_remover.remove(root)
            return
        wheel = self.wheel(vhost.name, vhost.id, name)
        wheel.has_directory = True
        exchange.wheel = wheel
        storage.require_delay_format()
        if wheel.buckets:
            # A deleted exchange of this name whose directory could not be renamed, or copied files.
            log.warning("%s also has delayed messages of exchange '%s'", root, name, extra=wheel.log_fields())
            wheel.old_folders.append(folder)
        else:
            wheel.folder = folder
        self._restore(wheel, folder, found)
        self.schedule(wheel)

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
                self._restore_description(wheel, chain[-1], name)
            store = storage.open_log(chain, wheel.exchange, wheel.vhost, wheel.vhost_id)
            wheel.restore(named.key, name, chain, store)

    def _restore_description(self, wheel: TimingWheel, directory: str, name: str) -> None:
        """Write the queue.json that a power cut removed from a bucket. Otherwise the next start may find no owner."""
        filesystem = self.storage.filesystem
        path = f"{directory}/{DESCRIPTION}"
        if read_description(filesystem.read_optional(path), name) is not None:
            return
        try:
            filesystem.replace_file(path, describe(wheel.exchange, wheel.vhost, False, b"", name), sync=True)
            filesystem.fsync_dir(directory)
        except OSError as error:
            log.error("%s cannot be rewritten: %s", path, error, extra=wheel.log_fields())


def _nothing() -> None:
    """Do nothing: no caller waits."""
