"""What a log's small files tell at recovery: checkpoints, and the `.settled` file of each segment.

First they are read, and say which segments there are and which may be trusted without a scan; once the ends of the
segments are known, what `.settled` tells is applied to them. What it tells of offsets behind the end is dropped, since
those may be used again.
"""

from __future__ import annotations

import logging
from collections.abc import Generator

from mypy_extensions import i64

from amqpd.storage.filesystem import FileSystem
from amqpd.storage.log import checkpoint
from amqpd.storage.log.recovery_state import PIECE_COUNT, Recovery
from amqpd.storage.log.segment import Segment, segment_name
from amqpd.storage.acks import replay_file, ack_set
from amqpd.storage.acks.ack_set import ENTRY_SIZE, SettledSet
from amqpd.storage.acks.settled_reader import Entry, SettledFile

logger = logging.getLogger(__name__)


def read_checkpoints(state: Recovery, names: list[str]) -> None:
    """The checkpoints of the directory. Raises: UnknownFormat when a newer version wrote the clean mark."""
    log = state.log
    directory = log.directory
    log.epochs = checkpoint.read_lines(state.filesystem, f"{directory}/{checkpoint.LEADER_EPOCH}", 2)
    log.watermark.offset = checkpoint.read_high_watermark(state.filesystem, f"{directory}/{checkpoint.HIGH_WATERMARK}")
    state.clean = checkpoint.read_clean(state.filesystem, f"{directory}/{checkpoint.CLEAN_SHUTDOWN}")
    log.clean = checkpoint.CLEAN_SHUTDOWN in names


def load_segments(state: Recovery, names: list[str]) -> Generator[None, None, None]:
    """The segments there are, with what their `.settled` files tell, in pieces. names: of the files in the directory.

    Cost: 0.3 us an entry. Raises: OSError; UnknownFormat.
    """
    log = state.log
    filesystem = state.filesystem
    bases = sorted({int(name[:20]) for name in names if _is_segment_file(name)})
    present = {int(name[:20]) for name in names if name.endswith(".log") and _is_segment_file(name)}
    for base in bases[:]:
        if base not in present and base > max(present, default=-1):
            # The log of the last segment is never removed before another is there: this one's name did not get to the
            # medium, so nothing in it was confirmed, and its settlements must not meet the next messages.
            for suffix in (".settled", ".settled.swap"):
                filesystem.unlink(f"{log.directory}/{segment_name(base)}{suffix}")
            state.cut = True
            bases.remove(base)
    for base in bases:
        segment = Segment(filesystem, log.directory, base)
        segment.sealed = True
        entries, bad = yield from _read_entries(filesystem, segment)
        state.entries[base] = entries
        if bad:
            state.doubtful.add(base)
        if base in present:
            segment.size = filesystem.size(segment.prefix + ".log")
        else:
            segment.gone = True
        log.segments.append(segment)
    live = [segment for segment in log.segments if not segment.gone]
    if live:
        live[-1].sealed = False
        if live[-1] is not log.segments[-1]:
            live[-1].sealed = True
    clean = state.clean
    if clean is not None and (not live or live[-1].base != clean[1] or live[-1].size != clean[2]):
        logger.warning("%s: the clean-shutdown mark does not agree with the files", log.directory)
        state.clean = None


def _is_segment_file(name: str) -> bool:
    return name[:20].isdigit() and name[20:] in (".log", ".settled")


def _read_entries(filesystem: FileSystem, segment: Segment) -> Generator[None, None, tuple[list[Entry], int]]:
    entries: list[Entry] = []
    bad = 0
    swap = False
    for suffix in (".settled", ".settled.swap"):
        path = segment.prefix + suffix
        if not filesystem.exists(path):
            continue
        swap = suffix == ".settled.swap"
        data = filesystem.read_file(path)
        segment.settled_size += len(data)
        told: list[Entry] = []
        foreign = False
        for start in range(0, len(data), PIECE_COUNT * ENTRY_SIZE):
            file = SettledFile(data[start : start + PIECE_COUNT * ENTRY_SIZE])
            bad += file.bad_count
            if file.newer():
                raise checkpoint.UnknownFormat(path)
            foreign = foreign or file.foreign(segment.base)
            told += file.entries
            yield
        if foreign:
            logger.error("%s is of another segment and not believed", path)
            bad += 1
        else:
            entries += told
    if bad:
        logger.warning("%s.settled: %d bad entries, what they settled may be delivered again", segment.prefix, bad)
    if swap or bad:
        segment.settled_size = -1  # to be written anew
    return entries, bad


def apply_entries(state: Recovery) -> Generator[None, None, None]:
    """Applies what the `.settled` files tell, now that it is known where each segment ends, in pieces."""
    log = state.log
    boot: tuple[int, int] | None = None
    count: i64 = 0
    for segment in log.segments:
        end = segment.end
        scanned = segment in state.scanned
        segment.transient_gone.sort()  # what a scan has found, which is settled already
        transient = _transient(segment, state.entries[segment.base])
        told = SettledSet(segment.base)
        for kind, a, b, c in state.entries[segment.base]:
            count += 1
            if count % PIECE_COUNT == 0:
                yield
            if kind in (ack_set.SETTLED, ack_set.LOST, ack_set.TRANSIENT):
                if b >= end:
                    segment.settled_size = -1
                new = segment.settled.add(max(a, segment.base), min(b, end - 1))
                if new:
                    segment.settled_body_bytes += c
                    if kind == ack_set.TRANSIENT:
                        segment.transient_gone.append((a, b, c))
                    elif transient.contains(a):
                        segment.settled_transient_bytes += c
                elif scanned and kind == ack_set.SETTLED and c > 0 and told.add(a, min(b, end - 1)):
                    segment.settle_gone(a, c)
                if kind == ack_set.LOST and (a, b) not in state.lost:
                    state.lost.append((a, b))
                    segment.lost.append((a, b))
            elif kind == ack_set.BITS:
                segment.settled.add_bits(a, b, c, end - 1)
            elif kind == ack_set.TIMES and not scanned:
                segment.first_timestamp_ms, segment.max_timestamp_ms = a, max(b, segment.max_timestamp_ms)
            elif kind == ack_set.BYTES:
                _apply_bytes(segment, a, b, scanned)
            elif kind == ack_set.RETURNED:
                state.returned[a] = ack_set.tally(b, c)
            elif kind == ack_set.DELIVERED:
                state.delivered_mark = max(state.delivered_mark, a)
                if a >= log.end:
                    segment.settled_size = -1
            elif kind == ack_set.BOOT:
                boot = (a, b)
        segment.settled_body_bytes = min(segment.settled_body_bytes, segment.body_bytes)
        if segment.settled_size < 0:
            state.rewrite.append(segment)
    state.last_boot = boot
    state.delivered_mark = min(state.delivered_mark, log.end - 1)
    if state.clean is not None:  # the files may tell of more than was delivered: they run ahead
        state.delivered_mark = min(state.delivered_mark, state.clean[3])
    for offset in list(state.returned):
        count += 1
        if count % PIECE_COUNT == 0:
            yield
        place = log.segment_of(offset)
        if place is None or place.gone or place.settled.contains(offset):
            del state.returned[offset]


def _transient(segment: Segment, entries: list[Entry]) -> SettledSet:
    """What the entries tell as transient."""
    found = SettledSet(segment.base)
    for kind, a, b, _ in entries:
        if kind == ack_set.TRANSIENT:
            found.add(max(a, segment.base), min(b, segment.end - 1))
    return found


def _apply_bytes(segment: Segment, size: int, transient: int, scanned: bool) -> None:
    """Bodies of `size` bytes are settled, `transient` of them of transient messages in ranges that nothing tells."""
    segment.settled_body_bytes += size
    if not scanned:
        segment.settled_transient_bytes += transient
    elif transient > 0:  # the scan has counted them, too: the file is written anew without them
        segment.settled_body_bytes -= transient
        segment.settled_size = -1


def apply_rewind(state: Recovery) -> None:
    """A rewind that a crash came into (settle/rewind.py) is done: what its file says is live again."""
    log = state.log
    path = f"{log.directory}/{replay_file.NAME}"
    if not state.filesystem.exists(path):
        return
    data = state.filesystem.read_file(path)
    state.outdated.append(path)
    told = replay_file.decode_rewind(data)
    if told is None or not log.epochs or told[1] != log.epochs[-1][0]:
        return
    count = 0
    parts = replay_file.by_segment(told[0])
    for segment in log.segments:
        if segment.gone or segment.base not in parts:
            continue
        offsets, size = replay_file.told_of(parts[segment.base], segment.base, segment.end)
        for first, last, _ in segment.transient_gone:
            ended = SettledSet(segment.base)
            ended.add(first, last)
            offsets.take_out(ended)
        taken = segment.settled.take_out(offsets)
        if taken:
            count += taken
            segment.settled_body_bytes = max(0, segment.settled_body_bytes - size)
            state.delivered_mark = max(state.delivered_mark, offsets.highest)
            if segment not in state.rewrite:
                state.rewrite.append(segment)
    logger.info("%s: a rewind is completed, %d messages are in the queue again", log.directory, count)


def delivered_mark(state: Recovery) -> int:
    """The delivery mark as the file tells it that has to; others, of older segments, go before it does."""
    segment = state.log.delivered_mark_segment(state.delivered_mark)
    if segment is None or segment in state.rewrite:
        return state.delivered_mark
    return max([a for kind, a, _, _ in state.entries[segment.base] if kind == ack_set.DELIVERED], default=-1)
