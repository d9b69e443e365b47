"""One group of the commit, store by store: what is done for each of hundreds of dirty logs, and therefore compiled.

`CommitCycle` (group_commit.py) decides when; here stands what happens then to every store: it is written, its share goes into
the job, and the job's end is told to it.
"""

from __future__ import annotations

from typing import final

from mypy_extensions import i64

from amqpd.storage.sync_job import JobPart
from amqpd.storage.loop_log import TurnLog
from amqpd.storage.filesystem import FileSystem
from amqpd.storage.queue_log import QueueLog


@final
class StorePart(JobPart):
    """One store's share in a job, which that store is told the end of."""

    def __init__(self, store: TurnLog) -> None:
        super().__init__(store.name)
        self.store = store


def write(
    filesystem: FileSystem, stores: list[TurnLog], gathered: list[TurnLog], turn: i64
) -> tuple[i64, bool]:
    """Writes what `stores` have of this turn; those with something to sync join `gathered`.

    However many they are, descriptors stay within their bounds: what is beyond is closed at once, unsynced.
    Returns (bytes appended that somebody waits for, whether a commit is wanted).
    """
    size: i64 = 0
    commit = False
    for store in stores:
        store.write()
        store.last_turn = turn
        if filesystem.open_file_count > filesystem.open_file_count_max:
            store.shed()
        # needs_commit: what it appended may be with an earlier group already (something read or rolled the log in
        # mid-turn); if that group's sync fails, this one must say so too.
        if not store.gathered and (store.needs_commit or store.write_failed or store.unsynced):
            store.gathered = True
            gathered.append(store)
        size += store.written_bytes
        store.written_bytes = 0
        if store.needs_commit or store.write_failed:
            store.needs_commit = False
            commit = True
    return size, commit


def tick(
    filesystem: FileSystem, stores: list[TurnLog], gathered: list[TurnLog], busy: list[TurnLog]
) -> bool:
    """Has `stores` write what could wait; those that have more to come join `busy`. Returns whether there were acks."""
    settled = False
    for store in stores:
        if store.deleted:
            continue
        if store.settles:
            settled = True
        if store.tick():
            busy.append(store)
        if filesystem.open_file_count > filesystem.open_file_count_max:
            store.shed()
        if not store.gathered and store.unsynced:
            store.gathered = True
            gathered.append(store)
    return settled


def write_settled(filesystem: FileSystem, stores: list[TurnLog], count_max: i64) -> i64:
    """Has `stores` write what was settled, in the middle of a turn. Returns how many did, at most `count_max`.

    They stay in their lists, and join the next job by them.
    """
    count: i64 = 0
    for store in stores:
        if count >= count_max:
            break
        if store.deleted or not store.settles:
            continue
        store.write_settled()
        count += 1
        if filesystem.open_file_count > filesystem.open_file_count_max:
            store.shed()
    return count


def write_late(filesystem: FileSystem, stores: list[TurnLog], gathered: list[TurnLog]) -> None:
    """Has `stores` write what could wait for the next tick, which then comes all the same."""
    for store in stores:
        if store.deleted:
            continue
        store.write_late()
        if filesystem.open_file_count > filesystem.open_file_count_max:
            store.shed()
        if not store.gathered and store.unsynced:
            store.gathered = True
            gathered.append(store)


def collect(gathered: list[TurnLog], settled_too: bool) -> list[JobPart]:
    """The share of each store in the next job."""
    parts: list[JobPart] = []
    for store in gathered:
        part = StorePart(store)
        store.gathered = False
        part.write_failed = store.write_failed
        store.write_failed = False
        store.collect(part, settled_too)
        parts.append(part)
    return parts


def synced(parts: list[JobPart], gathered: list[TurnLog]) -> list[QueueLog]:
    """A job is done. Returns the stores that failed in it; those with something left to do join `gathered`."""
    failed: list[QueueLog] = []
    count = len(parts)
    for part in parts:
        if not isinstance(part, StorePart):
            continue
        store = part.store
        store.synced(part, count)
        if store.deleted:
            continue
        if part.failed or part.write_failed or store.failed:
            failed.append(store)
        if not store.gathered and store.unsynced:
            store.gathered = True  # files of removed segments are left to go
            gathered.append(store)
    return failed
