"""A clean stop of a log: what the next start need not find out by itself.

`finish` comes before the last job, `mark_clean` behind it. The mark says what the log looked like; a start that finds
the files otherwise does not believe it (recovery.py), and the first write of the next life takes it away.
"""

from __future__ import annotations

from amqpd.storage.log import checkpoint
from amqpd.storage.log.log import Log
from amqpd.storage.log.producer_state import snapshot_path, write_snapshot


def finish(log: Log) -> None:
    """Totals of the active segment, and its indexes, so that the next start need not scan it. Raises nothing."""
    if not log.begun or log.failed or not log.segments or not log.durable:
        return
    active = log.segments[-1]
    try:
        if not active.sealed:
            log.note_totals(active)
            log.settled_files.flush()
            active.flush_index()
            active.write_time_index()
    except OSError as error:
        log.trouble(error)


def mark_clean(log: Log, delivered: int) -> None:
    """Leaves the clean-shutdown mark. Everything is written and synced. delivered: the highest offset that was, and
    no more than that. Raises: OSError.
    """
    if not log.durable or not log.begun or log.failed or not log.segments:
        return
    if log.watermark.unpublished:
        log.publish()
    if log.producers is not None:
        snapshot = log.producers.encode(log.end)
        write_snapshot(log.filesystem, snapshot_path(log.directory, log.end), snapshot)
    active = log.segments[-1]
    path = f"{log.directory}/{checkpoint.CLEAN_SHUTDOWN}"
    mark = checkpoint.encode_clean(log.end, active.base, active.size, delivered)
    log.filesystem.replace_file(path, mark, sync=True)
