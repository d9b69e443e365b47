"""Cleaned segments take the place of those they were made of.

    in the cleaner's thread   `.log.cleaned` and `.settled.cleaned` (and both indexes) are written and synced; then
                              `.settled.cleaned` becomes `.settled.swap`, then, the directory synced in between and
                              after, `.log.cleaned` becomes `.log.swap`: from here on the new segment stands
    on the loop (`place`)     the old `.log` files are renamed `.deleted`; readers find the new segment, still called
                              `.log.swap`, its file held open
    in the committer's        the directory is synced; the other files of the old segments go; the directory is synced;
                              the new ones get their names

What a crash leaves (`finish_swaps`, at recovery): `.cleaned` files are dropped. A `.log.swap` is whole: the directory
is synced, since a kill may have come before that; old segments in its range are removed with all their files, what
these told of messages being kept, the directory synced, and it gets its name. It is believed only if `.settled.swap`
(or `.settled`) names its size and end, and every batch is good or the old logs have begun to go; where that entry is
damaged, if every batch is good and no log stands in its range. Any other is not ours: it is renamed `.foreign`, and
nothing is removed for it. A `.settled.swap` without a `.log.swap` is united with `.settled`, as any other: it settles
what a later record of the same key supersedes, and that one is on the medium.

While a log is being cleaned none of its segments is removed and no `.settled` file is written anew, so nobody else
touches these names.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from amqpd.storage.filesystem import APPEND, FileSystem, OpenFile
from amqpd.storage.cleaner import Cancelled, Cleaning, Kept, View, batches, fill_map, kept_of
from amqpd.storage.log.record import BadRecord
from amqpd.storage.log.segment import REWRITE_FROM, Segment, segment_name
from amqpd.storage.acks import ack_set
from amqpd.storage.acks.settled_reader import SettledFile, told_end

if TYPE_CHECKING:
    from amqpd.storage.log.log import Log

logger = logging.getLogger(__name__)

_OF_MESSAGES = (
    ack_set.SETTLED,
    ack_set.BITS,
    ack_set.RETURNED,
    ack_set.DELIVERED,
    ack_set.LOST,
    ack_set.TRANSIENT,
)
_SUFFIXES = (".log", ".index", ".timeindex", ".settled", ".settled.swap")


def clean(cleaning: Cleaning, give_way: Callable[[], None]) -> None:
    """All that is done in the cleaner's thread. Cost: two reads and one write of the log.

    Raises: OSError, BadRecord, Cancelled; what was done of `cleaning.done` before stands.
    """
    filesystem = cleaning.log.filesystem
    fill_map(cleaning, filesystem, give_way)
    for group in _groups(cleaning):
        try:
            segment = _write(cleaning, group, give_way)
        except BaseException:
            _unlink_cleaned(filesystem, group[0])
            raise
        if segment is not None and segment.size == 0:
            _unlink_cleaned(filesystem, group[0])
            cleaning.done.append((group, None))
        elif segment is not None:
            _commit(filesystem, cleaning.log.directory, segment)
            cleaning.done.append((group, segment))


def _groups(cleaning: Cleaning) -> list[list[View]]:
    """Neighbours that fit into one segment together, all below where the map ends."""
    groups: list[list[View]] = []
    size = 0
    for view in cleaning.views:
        if view.base >= cleaning.clean_end:
            break
        fits = size + view.size <= cleaning.log.segment_size_bytes
        if groups and fits and view.end - groups[-1][0].base < 0x7FFF_FFFF:
            groups[-1].append(view)
            size += view.size
        else:
            groups.append([view])
            size = view.size
    return groups


def _write(cleaning: Cleaning, group: list[View], give_way: Callable[[], None]) -> Segment | None:
    """The group's new segment, its files synced, or an empty one; None where nothing would change."""
    log = cleaning.log
    filesystem = log.filesystem
    segment = Segment(filesystem, log.directory, group[0].base)
    segment.begin_index()
    dropped, whole = cleaning.dropped_count, True
    fd = filesystem.open(segment.prefix + ".log.cleaned", APPEND)
    try:
        last: Kept | None = None
        for view in group:
            for piece in batches(filesystem, view):
                if cleaning.cancelled:
                    raise Cancelled
                give_way()
                kept = kept_of(piece, cleaning, view, give_way)
                whole = whole and not piece.header.control() and len(kept.records) == piece.header.count
                if not kept.records:
                    continue
                if last is not None:
                    _append(filesystem, fd, segment, last, last.records[-1].offset)
                last = kept
        if last is not None:  # the holes at the end are in the last batch's range, so the log alone tells where it ends
            _append(filesystem, fd, segment, last, group[-1].end - 1)
        if len(group) == 1 and whole:
            _unlink_cleaned(filesystem, group[0])
            cleaning.dropped_count = dropped
            return None
        if segment.size == 0:
            return segment
        filesystem.fdatasync(fd)
    finally:
        filesystem.close(fd)
    segment.sealed = True
    segment.lost = [lost for view in group for lost in view.segment.lost]
    _write_small(filesystem, segment, cleaning.boot)
    return segment


def _append(filesystem: FileSystem, fd: int, segment: Segment, kept: Kept, last_offset: int) -> None:
    data = kept.encoded(last_offset)
    filesystem.write_whole(fd, data)
    expected = segment.end
    bodies = 0
    for record in kept.records:
        segment.settled.add(expected, record.offset - 1)
        expected = int(record.offset) + 1
        bodies += len(record.body)
    segment.settled.add(expected, last_offset)
    if kept.header.transient():
        segment.add_transient(kept.records[0].offset, kept.records[-1].offset, bodies)
    segment.note(last_offset, len(data), int(kept.header.max_timestamp_ms))
    segment.body_bytes += bodies


def _write_small(filesystem: FileSystem, segment: Segment, boot: tuple[int, int]) -> None:
    data = segment.compacted(boot, -1, {})
    segment.times().add(segment.max_timestamp_ms, segment.end - 1 - segment.base)
    for suffix, content in (
        (".settled", data),
        (".index", bytes(segment.index().data)),
        (".timeindex", bytes(segment.times().data)),
    ):
        fd = filesystem.open(segment.prefix + suffix + ".cleaned", APPEND)
        try:
            filesystem.write_whole(fd, content)
            if suffix == ".settled":
                filesystem.fdatasync(fd)
        finally:
            filesystem.close(fd)
    segment.settled_begun = True
    segment.settled_size = len(data)
    segment.rewrite_from = max(2 * len(data), REWRITE_FROM)


def _unlink_cleaned(filesystem: FileSystem, view: View) -> None:
    for suffix in _SUFFIXES[:4]:
        filesystem.unlink(view.path.removesuffix(".log") + suffix + ".cleaned")


def _commit(filesystem: FileSystem, directory: str, segment: Segment) -> None:
    prefix = segment.prefix
    filesystem.rename(prefix + ".settled.cleaned", prefix + ".settled.swap")
    filesystem.fsync_dir(directory)
    filesystem.rename(prefix + ".log.cleaned", prefix + ".log.swap")
    filesystem.fsync_dir(directory)


def _replace(log: Log, old: list[Segment], new: Segment) -> list[OpenFile]:
    """`new` stands for `old`, which are neighbours. Its files are opened and held; returns what has to be unpinned.
    Raises: OSError, before anything is changed.
    """
    held = [new.open_log(), new.open_settled()]
    for file in held:
        file.pins += 1
    unsynced = log.unsynced
    for segment in old:
        for file in segment.open_files():
            unsynced.forget_file(file)
        segment.release()
        segment.gone = True
    index = log.segments.index(old[0])
    log.segments[index : index + len(old)] = [new]
    log.sealed = [segment for segment in log.sealed if segment not in old]
    settled_paths = [f"{segment.prefix}.settled" for segment in old]  # recovery wanted them synced; the new one is
    unsynced.paths = [path for path in unsynced.paths if path not in settled_paths]
    log.found = None
    if new.live == 0:
        log.removals.wanted = True
    return held


def place(
    log: Log, group: list[View], segment: Segment, now_ms: int, delivered_mark: int, returned: dict[int, int]
) -> tuple[Callable[[], None], list[OpenFile]]:
    """On the loop: `segment` stands for the group's. Returns what the committer's thread is to do then, and files to
    hand to `placed` after that. Raises: OSError.

    What has been settled or lost since the cleaning began is settled in the new one too.
    delivered_mark, returned: of the queue; the files that told them go.
    """
    filesystem = log.filesystem
    segment.log_suffix = ".log.swap"
    segment.swapping = True
    first = log.segments.index(group[0].segment)
    stop = log.segments.index(group[-1].segment) + 1
    old = log.segments[first:stop]  # those that are gone in between, too
    log.flush()
    held = _replace(log, old, segment)
    for each in old:
        for suffix in _SUFFIXES[:3]:
            if filesystem.exists(each.prefix + suffix):
                filesystem.rename(each.prefix + suffix, each.prefix + suffix + ".deleted")
    log.removals.later([each.prefix + suffix for each in old for suffix in _SUFFIXES[:3]], now_ms)
    changed = delivered_mark >= 0
    if delivered_mark >= 0:
        log.mark_delivered(delivered_mark, 0)
    for offset, told in returned.items():
        if segment.base <= offset < segment.end:
            changed = True
            log.mark_returned(offset, told)
    for view in group:
        each = view.segment
        if each.settled.count != view.settled.count:
            changed = True
            for low, high in each.settled.ranges():
                log.settle(low, high, 0)
        for lost in each.lost:
            if lost not in segment.lost:
                segment.lost.append(lost)
    log.flush()
    fd = held[1].fd if changed else -1
    return lambda: _name(filesystem, log.directory, segment, old, fd), held


def _name(filesystem: FileSystem, directory: str, segment: Segment, old: list[Segment], settled_fd: int) -> None:
    """In the committer's thread: the old ones' other files go, the new ones get their names.

    settled_fd: of the new `.settled` file when it was written to since, -1 when it was not. Raises: OSError.
    """
    if settled_fd >= 0:
        filesystem.fdatasync(settled_fd)
    filesystem.fsync_dir(directory)
    for each in old[1:]:
        for suffix in _SUFFIXES[3:]:
            filesystem.unlink(each.prefix + suffix)
    filesystem.fsync_dir(directory)
    for suffix in (".index", ".timeindex"):
        filesystem.rename(f"{segment.prefix}{suffix}.cleaned", segment.prefix + suffix)
    filesystem.rename(segment.prefix + ".settled.swap", segment.prefix + ".settled")
    filesystem.rename(segment.prefix + ".log.swap", segment.prefix + ".log")


def placed(segment: Segment, held: list[OpenFile]) -> None:
    """On the loop, when that is done."""
    segment.log_suffix = ".log"
    segment.swapping = False
    for file in held:
        file.unpin()


def finish_swaps(filesystem: FileSystem, directory: str, names: list[str]) -> bool:
    """At recovery: completes the cleanings that a crash interrupted, or drops what they made.

    True when something was done, and `names` is not true any more. Raises: OSError.
    """
    swaps = sorted(name for name in names if name.endswith(".log.swap") and name[:20].isdigit() and len(name) == 29)
    if swaps:  # their names may be in memory only; without them the old ones' removal would be a loss
        filesystem.fsync_dir(directory)
    for name in swaps:
        base = int(name[:20])
        end = _end(filesystem, directory, name, names)
        if end < 0:
            logger.error("%s/%s was not left by a cleaning: it is set aside", directory, name)
            filesystem.rename(f"{directory}/{name}", f"{directory}/{name}.foreign")
            continue
        logger.info("%s/%s: a cleaning is finished", directory, name)
        _keep_facts(filesystem, directory, base, [other for other in names if base < _base(other) < end])
        for other in names:
            if other[20:] in _SUFFIXES and base < _base(other) < end:
                filesystem.unlink(f"{directory}/{other}")
        for suffix in (".log", ".index", ".timeindex"):
            filesystem.unlink(f"{directory}/{name[:20]}{suffix}")
        filesystem.fsync_dir(directory)
        filesystem.rename(f"{directory}/{name}", f"{directory}/{segment_name(base)}.log")
        filesystem.fsync_dir(directory)
    return bool(swaps)


def _base(name: str) -> int:
    return int(name[:20]) if name[:20].isdigit() else -1


def _keep_facts(filesystem: FileSystem, directory: str, base: int, names: list[str]) -> None:
    """What the old segments' `.settled` files tell of messages, the new one's tells too, synced, before they go: it may
    have been settled or delivered since the cleaning began.
    """
    facts = []
    for name in names:
        if name[20:] in (".settled", ".settled.swap"):
            entries = SettledFile(filesystem.read_file(f"{directory}/{name}")).entries
            facts += [ack_set.encode_entry(*entry) for entry in entries if entry[0] in _OF_MESSAGES]
    if not facts:
        return
    path = f"{directory}/{segment_name(base)}.settled"
    if filesystem.exists(path + ".swap"):
        path += ".swap"
    fd = filesystem.open(path, APPEND)
    try:
        rest = filesystem.file_size(fd) % ack_set.ENTRY_SIZE
        if rest:  # a torn entry, which would shift all that follows
            filesystem.truncate(fd, filesystem.file_size(fd) - rest)
        filesystem.write_whole(fd, b"".join(facts))
        filesystem.fdatasync(fd)
    finally:
        filesystem.close(fd)


def _end(filesystem: FileSystem, directory: str, name: str, names: list[str]) -> int:
    """Where the new segment ends; -1 where this is not one that a cleaning has left (as the module says).

    Cost: reads the file.
    """
    base = int(name[:20])
    end, whole = _walk(filesystem, directory, name)
    told = _told_end(filesystem, f"{directory}/{name[:20]}", filesystem.size(f"{directory}/{name}"))
    stop = max(end, told)
    if end <= base and not told:
        return -1
    of_range = [other[20:] for other in names if other[:20].isdigit() and base <= int(other[:20]) < stop]
    if not told:
        return end if whole and ".log" not in of_range else -1
    under_way = ".log.deleted" in of_range or f"{name[:20]}.log" not in names
    return told if whole or under_way else -1


def _walk(filesystem: FileSystem, directory: str, name: str) -> tuple[int, bool]:
    """(the offset behind the last good batch from the start on, whether all of the file is good batches)."""
    base = int(name[:20])
    path = f"{directory}/{name}"
    segment = Segment(filesystem, directory, base)
    view = View(segment, base, base + 0x7FFF_FFFF, filesystem.size(path), path, segment.settled)
    end = base
    try:
        for piece in batches(filesystem, view):
            end = int(piece.header.last_offset) + 1
    except BadRecord:
        return end, False
    return end, True


def _told_end(filesystem: FileSystem, prefix: str, size: int) -> int:
    """The end that `.settled.swap` or `.settled` names for a log of this size, 0 if none does."""
    for suffix in (".settled.swap", ".settled"):
        if filesystem.exists(prefix + suffix):
            end = told_end(SettledFile(filesystem.read_file(prefix + suffix)).entries, size)
            if end:
                return end
    return 0
