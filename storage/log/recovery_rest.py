"""What recovery has to write and sync before anything is appended: cut logs, `.settled` files written anew, names.

It is decided on the loop and written by any thread. A crash before it is done leaves what there was, and the next
recovery comes to the same; so does a full disk, on which the log is read, and drained, without.
"""

from __future__ import annotations

import logging
from collections.abc import Generator

from amqpd.storage.filesystem import FileSystem
from amqpd.storage.log import checkpoint
from amqpd.storage.log.log import Log
from amqpd.storage.log.producer_state import write_snapshot
from amqpd.storage.log.recovery_state import PIECE_COUNT, Recovery
from amqpd.storage.log.segment import Segment
from amqpd.storage.acks.ack_files import replace_settled

logger = logging.getLogger(__name__)


class Rest:
    """What recovery has to write and sync: paths of logs to sync, `.settled` files to write anew, the directory, what
    goes then, the recovery point, before that the snapshot of what producers have numbered below it. Made on the loop;
    `write` may be called in any thread.
    """

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.syncs: list[str] = []
        self.segments: list[Segment] = []
        self.settled: list[tuple[str, bytes]] = []
        self.names = False
        self.unlinks: list[str] = []
        self.point = b""
        self.snapshot: tuple[str, bytes] | None = None

    @property
    def empty(self) -> bool:
        """Whether nothing of it waits for the disk."""
        return not (self.syncs or self.settled or self.names)

    def write(self, filesystem: FileSystem) -> None:
        """Raises: OSError. What was done before it stands, and is done again by the next try."""
        for path in self.syncs:
            filesystem.fsync_file(path)
        for path, data in self.settled:
            replace_settled(filesystem, path, data)
        if self.names:
            filesystem.fsync_dir(self.directory)
        for path in self.unlinks:
            filesystem.unlink(path)
        if self.point:
            if self.snapshot is not None:
                write_snapshot(filesystem, self.snapshot[0], self.snapshot[1])
            try:
                filesystem.replace_file(f"{self.directory}/{checkpoint.RECOVERY_POINT}", self.point, sync=False)
            except OSError as error:  # the next start then checks the same again
                logger.warning("recovery point of %s: %s", self.directory, error)

    def written(self) -> None:
        """On the loop, when `write` has returned."""
        for index, segment in enumerate(self.segments):
            segment.settled_size = len(self.settled[index][1])


def rest_in_pieces(state: Recovery) -> Generator[Rest | None, None, None]:
    """What recovery changed, as it has to be written and synced before anything is appended: None after each piece,
    then all of it. Where the disk is full that may be later, and some segments may have gone meanwhile.
    """
    log = state.log
    rest = Rest(log.directory)
    checked = [segment for segment in state.scanned if segment in log.segments and not segment.gone]
    state.rewrite = [each for each in state.rewrite if each in log.segments and not (each.gone and each.removing)]
    rest.syncs += state.cut_paths
    for segment in checked:
        if segment.sealed:
            path = segment.prefix + segment.log_suffix
            if path not in rest.syncs:
                rest.syncs.append(path)
            if segment not in state.rewrite:
                state.rewrite.append(segment)  # for its totals
    boot = state.last_boot if state.last_boot is not None else (0, 0)
    returned: dict[int, dict[int, int]] = {segment.base: {} for segment in state.rewrite}
    if returned:
        for count, (offset, told) in enumerate(state.returned.items(), 1):
            place = log.segment_of(offset)
            if place is not None and place.base in returned:
                returned[place.base][offset] = told
            if count % PIECE_COUNT == 0:
                yield None
    for segment in state.rewrite:
        log.settled_files.forget(segment)
        data = segment.compacted(boot, state.delivered_mark, returned[segment.base])
        rest.segments.append(segment)
        rest.settled.append((segment.prefix + ".settled", data))
        rest.unlinks.append(segment.prefix + ".settled.swap")
        yield None
    rest.unlinks += state.outdated
    rest.names = state.cut or len(state.rewrite) > 0 or len(state.outdated) > 0
    if True in [segment.sealed for segment in checked]:
        rest.point = checkpoint.encode_lines([(log.segments[-1].base,)])
        rest.snapshot = state.snapshot_below
    yield rest


def make_whole(state: Recovery) -> None:
    """Writes it now. Raises: OSError."""
    for rest in rest_in_pieces(state):
        if rest is not None:
            rest.write(state.filesystem)
            rest.written()


def after_recovery(log: Log, *, clean: bool) -> None:
    """What a kill left in the page cache counts from now on, so the next job syncs it."""
    if True in [segment.sealed and segment.live == 0 for segment in log.segments]:
        log.removals.wanted = True
    if clean:
        log.watermark.begin(log.end)
        return
    if not log.segments:
        return
    safe = log.filesystem.safe_directories
    log.unsynced.directories += [parent for parent in log.chain[:-1] if parent not in safe]
    log.unsynced.directories += log.chain[-2:]
    # What was settled in an earlier life may be in the page cache only; drained segments go with the next job.
    log.unsynced.paths += [
        f"{segment.prefix}.settled"
        for segment in log.segments
        if segment.settled_size != 0 and (segment.gone or segment is not log.segments[-1])
    ]
    for segment in log.segments[-1:]:
        if segment.gone:
            continue
        log.unsynced.note(segment.open_log())
        if segment.settled_size:
            log.unsynced.note_settled(segment.open_settled())
