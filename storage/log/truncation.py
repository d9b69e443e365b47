"""Cutting a log that is open (Kafka's truncateTo): batches at an offset and beyond go, as recovery cuts a torn tail.

Every step is synced before the next one, so that a crash leaves the log as it was, or cut, or something between that
recovery completes:

    the high watermark is lowered    or what goes would count as lost to damage
    the recovery point too           what is appended behind the cut is checked by the next start
    whole segments, the last first   a log that ends earlier is a whole log; one with a hole in it is not
    the tail of the one that stays   now the log ends where it shall
    `.settled` of that one, anew     nothing is settled or delivered at offsets that are used again
    a new leader epoch begins        what is appended at them is told from what was there

A transaction goes as a whole, as does a batch: the log may end before the offset that was asked for.
"""

from __future__ import annotations

from amqpd.storage.log import checkpoint
from amqpd.storage.log.batch import HEADER_SIZE, TRANSACTIONAL, BatchHeader, plain
from amqpd.storage.log.log import Log
from amqpd.storage.log.record import BadRecord, read_offset_delta, record_stop, value_size
from amqpd.storage.log.segment import Segment

_FILES = (".index", ".timeindex", ".settled.swap", ".settled")


class LogBusy(Exception):
    """A job of the group commit, the cleaner or the reading ahead is at work on the log: it can be cut after that."""


class TruncationPoint:
    """Where a log is cut: the log ends with `end`, its last segment with `position`. body_bytes, settled_body_bytes: of
    what stays in that segment.
    """

    def __init__(self, segment: Segment, position: int, end: int) -> None:
        self.segment = segment
        self.position = position
        self.end = end
        self.body_bytes = segment.body_bytes
        self.settled_body_bytes = segment.settled_body_bytes


def find_cut(log: Log, offset: int) -> TruncationPoint:
    """The cut before the first batch that has `offset` or is behind it. All that was appended and settled is in the
    files. Cost: the batches of that segment that go are read, and a few before them.

    Raises: OSError; ValueError where the batches before `offset` are not there any more.
    """
    while True:
        there = [segment for segment in log.segments if not segment.gone and segment.base <= offset]
        if not there:
            raise ValueError(f"{log.directory} starts behind offset {offset}")
        segment = there[-1]
        position = _start(log, segment, offset)
        header = _header(log, segment, position)
        while header is not None and header.last_offset < offset:
            position += header.size
            header = _header(log, segment, position)
        if header is None:  # it ends before `offset`, or is damaged from here on
            point = TruncationPoint(segment, min(position, segment.size), min(offset, segment.end))
            return _measured(log, point, position)
        start = header.producer_id if header.attributes & TRANSACTIONAL else header.base_offset
        if start >= header.base_offset:
            return _measured(log, TruncationPoint(segment, position, min(offset, header.base_offset)), position)
        offset = start  # of the transaction that the batch is a part of


def _start(log: Log, segment: Segment, offset: int) -> int:
    """The position of a batch of the segment that ends before `offset`, as far behind as its index tells."""
    wanted = offset - 1 - segment.base
    if wanted < 0:
        return 0
    relative, position = segment.index().floor(wanted)
    if relative >= 0:
        header = _header(log, segment, position)
        if header is None or header.last_offset != segment.base + relative:  # as readers, it believes no index
            position = segment.walk_index().floor(wanted)[1]
    return max(0, position)


def _header(log: Log, segment: Segment, position: int) -> BatchHeader | None:
    """The next good one from `position` on, as readers find it. None at the end."""
    data = log.filesystem.pread(segment.open_log().fd, HEADER_SIZE, position)
    if position + HEADER_SIZE > segment.size or len(data) < HEADER_SIZE:
        return None
    header = BatchHeader(data, 0)
    return header if header.plausible() and position + header.size <= segment.size else None


def _measured(log: Log, cut: TruncationPoint, position: int) -> TruncationPoint:
    """Takes what goes out of the cut's sums."""
    segment = cut.segment
    header = _header(log, segment, position)
    while header is not None:
        if not header.control():
            data = log.filesystem.pread(segment.open_log().fd, header.size, position)
            try:
                data, _, whole = plain(data, 0, header)
                bodies, settled_bodies = _body_bytes(segment, data, whole)
            except BadRecord:
                break  # the sums stay too large, as they are where anything is damaged
            cut.body_bytes = max(0, cut.body_bytes - bodies)
            cut.settled_body_bytes = max(0, cut.settled_body_bytes - settled_bodies)
        position += header.size
        header = _header(log, segment, position)
    return cut


def _body_bytes(segment: Segment, data: bytes, header: BatchHeader) -> tuple[int, int]:
    """(of all, of settled ones) in the batch `data`. Raises: BadRecord."""
    position = HEADER_SIZE
    total = settled = 0
    for _ in range(header.count):
        start, stop = record_stop(data, position, len(data))
        delta, _behind = read_offset_delta(data, start)
        size = value_size(data, start, stop)
        total += size
        if segment.settled.contains(header.base_offset + delta):
            settled += size
        position = stop
    return total, settled


def cut_off(log: Log, cut: TruncationPoint, delivered_mark: int, returned: dict[int, int]) -> None:
    """Cuts it, and begins a new epoch. delivered_mark, returned: what holds of delivered and given back messages then.

    Waits for the disk. Raises: OSError; the log then takes nothing more, and the next start makes it whole.
    """
    if not log.begun:
        log.begin()
    filesystem = log.filesystem
    segment = cut.segment
    _lower_watermark(log, cut.end)
    _lower_recovery_point(log, segment.base)
    filesystem.fsync_dir(log.directory)
    later = log.segments[log.segments.index(segment) + 1 :]
    for each in [segment, *later]:
        _let_go(log, each)
    for each in reversed(later):
        if not each.gone:
            filesystem.unlink(each.prefix + each.log_suffix)
            filesystem.fsync_dir(log.directory)
    for each in reversed(later):
        for suffix in _FILES:
            filesystem.unlink(each.prefix + suffix)
    log.segments = [each for each in log.segments if each not in later]
    log.sealed = [each for each in log.sealed if each not in later]
    log.found = None
    log.end = cut.end
    log.delivered_mark = delivered_mark
    _cut_segment(log, cut)
    log.settled_files.write_anew(segment, delivered_mark, returned)
    filesystem.fsync_dir(log.directory)
    log.begin_epoch()
    filesystem.fsync_file(f"{log.directory}/{checkpoint.LEADER_EPOCH}")
    filesystem.fsync_dir(log.directory)


def _lower_watermark(log: Log, end: int) -> None:
    path = f"{log.directory}/{checkpoint.HIGH_WATERMARK}"
    if log.watermark.offset > end or log.filesystem.exists(path):
        offset = min(log.watermark.offset, end)
        log.watermark.close()
        log.filesystem.replace_file(path, checkpoint.encode_high_watermark(offset), sync=True)
        log.watermark.begin(offset)


def _lower_recovery_point(log: Log, offset: int) -> None:
    path = f"{log.directory}/{checkpoint.RECOVERY_POINT}"
    unsynced = log.unsynced
    unsynced.checkpoints = [each for each in unsynced.checkpoints if each[0] != path]  # of segments that were sealed
    log.filesystem.replace_file(path, checkpoint.encode_lines([(offset,)]), sync=True)


def _let_go(log: Log, segment: Segment) -> None:
    """Nothing of it waits for a sync or a write: what is synced here is all there is to it."""
    unsynced = log.unsynced
    for file in segment.open_files():
        unsynced.forget_file(file)
        file.dirty = False
    path = f"{segment.prefix}.settled"  # as recovery wants it synced
    unsynced.paths = [each for each in unsynced.paths if each != path]
    segment.release()
    log.settled_files.drop(segment)


def _cut_segment(log: Log, cut: TruncationPoint) -> None:
    segment = cut.segment
    if segment.sealed:
        segment.sealed = False
        segment.load_times()  # it is appended to again, so its indexes go on
    file = segment.open_log(create=True)
    log.filesystem.truncate(file.fd, cut.position)
    log.filesystem.fsync_file(file.path)
    segment.cut(cut.position, cut.end, cut.body_bytes)
    segment.forget_settled(cut.end)
    segment.settled_body_bytes = min(cut.settled_body_bytes, cut.body_bytes)
