"""Ranges of offsets of batches and streams, from options and snapshots.

A stream's offsets, in Spark's checkpoint: {"vhost/queue": {"id": incarnation, "offset": next}}. A queue that was
deleted and declared again starts at offset 0 with a new id; this is reported as a data loss. A queue that appears
later is read from its start.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from typing import Final, TypeAlias

from amqpd.storage.export.files import LogFiles, MissingQueue
from amqpd.storage.export.options import EARLIEST, LATEST, BadOption, ReadOptions
from amqpd.storage.export.plan import DataLoss, LogPartition, Snapshot, snapshot_of, split_size

logger = logging.getLogger(__name__)

StreamOffset: TypeAlias = dict[str, dict[str, object]]
OPEN_MAX: Final = 64
"""Queues whose files or connections stay open between two looks. By default a process may have 1,024 of them."""


@dataclass(frozen=True)
class Range:
    """The range first <= offset < stop of one queue."""

    snapshot: Snapshot
    first: int
    stop: int


def snapshots(options: ReadOptions, stack: ExitStack) -> dict[str, Snapshot]:
    """Open a snapshot of every selected queue that exists, by its key in a stream's offsets. `stack` closes them."""
    found: dict[str, Snapshot] = {}
    queues = options.queues()
    for queue in queues:
        files = stack.enter_context(closing(options.source.open(queue)))
        with suppress(MissingQueue):  # it was deleted since the list was made
            found[key_of(options.vhost, queue.queue)] = snapshot_of(files, queue)
        close_if_many(files, len(queues))
    return found


def close_if_many(files: LogFiles, count: int) -> None:
    """Close the files of one of `count` queues after a look, if there are many. The next look opens them again."""
    if count > OPEN_MAX:
        files.close()


def key_of(vhost: str, queue: str) -> str:
    return f"{vhost}/{queue}"


@dataclass(frozen=True)
class Bounds:
    """Rows outside are not wanted: first <= offset < stop, in no batch that is older than `since_ms` as a whole."""

    first: int = 0
    stop: int = 1 << 62
    since_ms: int | None = None


UNBOUNDED = Bounds()


def batch_parts(options: ReadOptions, within: Bounds = UNBOUNDED) -> list[LogPartition]:
    """Return all parts of a batch query, or those `within` bounds. Raises BadOption, NoSuchQueue, DataLoss,
    SourceError.
    """
    with ExitStack() as stack:
        found = list(snapshots(options, stack).values())
        options.require([each.queue for each in found])
        ranges = []
        for snapshot in found:
            first, stop = _starting(options, snapshot, EARLIEST), _ending(options, snapshot)
            ranges.append(_within(within, snapshot, first, max(first, stop)))
            close_if_many(snapshot.files, len(found))
        return _parts(options, ranges)


def _within(bounds: Bounds, snapshot: Snapshot, first: int, stop: int) -> Range:
    low = max(first, bounds.first)
    if bounds.since_ms is not None:
        found = snapshot.offset_at(bounds.since_ms)
        low = max(low, snapshot.end if found is None else found)
    low = min(low, stop)
    return Range(snapshot, low, max(low, min(stop, bounds.stop)))


def _starting(options: ReadOptions, snapshot: Snapshot, default: int) -> int:
    if options.starting_timestamp_ms is not None:
        found = snapshot.offset_at(options.starting_timestamp_ms)
        if found is None and not options.timestamp_or_latest:
            raise BadOption(
                f"startingTimestamp: queue '{snapshot.queue.queue}' has no record of that time or later "
                "(startingOffsetsByTimestampStrategy=latest begins at its end)"
            )
        return snapshot.end if found is None else found
    return _resolve(snapshot, default if options.starting is None else options.starting.of(snapshot.queue.queue))


def _ending(options: ReadOptions, snapshot: Snapshot) -> int:
    if options.ending_timestamp_ms is not None:
        found = snapshot.offset_at(options.ending_timestamp_ms)
        return snapshot.end if found is None else found
    return _resolve(snapshot, LATEST if options.ending is None else options.ending.of(snapshot.queue.queue))


def _resolve(snapshot: Snapshot, offset: int) -> int:
    if offset == EARLIEST:
        return snapshot.start
    return snapshot.end if offset == LATEST else offset


def _parts(options: ReadOptions, ranges: list[Range]) -> list[LogPartition]:
    def split(size: int) -> list[LogPartition]:
        found: list[LogPartition] = []
        settled = options.include_settled
        for each in ranges:
            found += each.snapshot.parts(each.first, each.stop, split_bytes=size, include_settled=settled)
            close_if_many(each.snapshot.files, len(ranges))
        return found

    for each in ranges:
        _check(options, each)
        close_if_many(each.snapshot.files, len(ranges))
    whole = split(1 << 62) if options.parts_min > 1 else []
    return split(split_size([part.size_bytes for part in whole], options.split_bytes, options.parts_min))


def _check(options: ReadOptions, wanted: Range) -> None:
    for first, last, why in wanted.snapshot.losses(wanted.first, wanted.stop, include_settled=options.include_settled):
        queue = wanted.snapshot.queue
        _lost(options, f"queue '{queue.queue}' in vhost '{queue.vhost}': offsets {first} to {last} are missing: {why}")


def _lost(options: ReadOptions, text: str) -> None:
    if options.fail_on_data_loss:
        raise DataLoss(f"{text} (failOnDataLoss=false continues without them)")
    logger.warning("lost: %s", text)


# -- streams


def initial(options: ReadOptions) -> StreamOffset:
    """Return the first offsets of a new stream: by default the ends of the queues, as in Kafka's source. Raises as
    `batch_parts`.
    """
    result: StreamOffset = {}
    with ExitStack() as stack:
        found = snapshots(options, stack)
        for key, snapshot in found.items():
            result[key] = {"id": snapshot.queue.id, "offset": min(_starting(options, snapshot, LATEST), snapshot.end)}
            close_if_many(snapshot.files, len(found))
    return result


def latest(options: ReadOptions) -> StreamOffset:
    """Return the present ends of all queues."""
    with ExitStack() as stack:
        return {
            key: {"id": snapshot.queue.id, "offset": snapshot.end}
            for key, snapshot in snapshots(options, stack).items()
        }


def limited(options: ReadOptions, start: StreamOffset, ends: StreamOffset, rows_max: int | None) -> StreamOffset:
    """Return the offsets that one trigger reaches from `start` towards `ends`.

    Args:
        rows_max: The largest number of offsets; None: no limit.
    """
    with ExitStack() as stack:
        found = snapshots(options, stack)
        begins = {key: _begin(options, found.get(key), start.get(key), end, quiet=True) for key, end in ends.items()}
    waiting = [max(0, _number(end) - begins[key]) for key, end in ends.items()]
    counts = waiting if rows_max is None else shares(waiting, rows_max)
    reached: StreamOffset = {key: dict(value) for key, value in start.items()}
    for (key, end), count in zip(ends.items(), counts, strict=True):
        reached[key] = {"id": end["id"], "offset": begins[key] + count}
    return reached


def shares(waiting: Sequence[int], limit: int) -> list[int]:
    """Return how many offsets of each queue are read: its share of the limit by its lag, but at least one."""
    total = sum(waiting)
    return list(waiting) if total <= limit else [min(each, max(1, limit * each // total)) for each in waiting]


def stream_parts(options: ReadOptions, start: StreamOffset, end: StreamOffset) -> list[LogPartition]:
    """Return the parts of one trigger. Raises DataLoss, SourceError."""
    with ExitStack() as stack:
        found = snapshots(options, stack)
        ranges = []
        for key, wanted in end.items():
            snapshot = found.get(key)
            stop = _number(wanted)
            if snapshot is None or snapshot.queue.id != wanted["id"]:
                before = start.get(key)
                if before is None or before != wanted:
                    _lost(options, f"queue {key}: it was deleted before offset {stop} was read")
                continue
            ranges.append(Range(snapshot, _begin(options, snapshot, start.get(key), wanted), stop))
        return _parts(options, [each for each in ranges if each.stop > each.first])


def _begin(
    options: ReadOptions,
    snapshot: Snapshot | None,
    before: Mapping[str, object] | None,
    end: Mapping[str, object],
    *,
    quiet: bool = False,
) -> int:
    """Return the first offset to read: behind the last one of this incarnation, else the start of its log."""
    if before is not None and before["id"] == end["id"]:
        return _number(before)
    if before is not None and not quiet and snapshot is not None:
        queue = snapshot.queue
        _lost(options, f"queue '{queue.queue}' in vhost '{queue.vhost}' was deleted and declared again since offset "
              f"{before['offset']}")  # fmt: skip
    return snapshot.start if snapshot is not None else 0


def _number(offset: Mapping[str, object]) -> int:
    value = offset["offset"]
    assert isinstance(value, int)
    return value
