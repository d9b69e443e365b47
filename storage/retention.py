"""Logs that keep: what leaves because of its age, or because there is too much, and not because it was read.

A log with a `RetentionPolicy` is looked after in the background (`Storage.maintain`, on a timer), never
in the way of a message. Retention removes whole segments from the head, by settling everything before a *start offset*:
how that becomes safe and how files go is the same as for any settled segment (segment_removal.py). A crash before the
commit may leave some of what was to go, which the next check removes; after it nothing returns, and never is more gone.

    age       a segment whose latest record is older than `max_age_ms`; the active one is rolled first if it is such
    bytes     the oldest segment, while the others alone have `max_bytes` or more
    records   the oldest segment, while the others alone have `max_records` or more
    offset    `trim`: exactly to the record; whole segments below go, the rest of the head counts as settled

So a log holds at most its limit and one segment; the active one stays, except by age. Time is the broker's when it
appended (LogAppendTime).

A log without a policy (a work queue) gives back whole segments as they are settled. `roll_idle` sees to the last one,
which an append rolls by size only: an old one is rolled, and one that is drained and worth the trouble. Where what is
settled is retained (storage/acks/retained.py) `let_go` sees to that, and to what has become old.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpd.storage.retention_policy import RetentionPolicy

if TYPE_CHECKING:
    from amqpd.storage.local_log import LocalLog
    from amqpd.storage.log.log import Log

DRAINED_SIZE_MIN = 64 * 1024  # bytes; below it a drained active segment waits until it is old


def retain(store: LocalLog, now_ms: int) -> int:
    """Rolls what is old enough and removes what the policy of the store's log says. Returns the start offset.

    Cost: a step per segment. Raises: OSError; LogFailed where the log takes nothing more.
    """
    store.recover()
    log = store.log
    policy = log.policy
    if policy is None or store.failed or log.cleaning:
        return log.start_offset()
    store.flush_batches()
    active = log.segments[-1] if log.segments else None
    if active is not None and not active.sealed and active.size > 0 and policy.segment_age_ms >= 0:
        first_ms = active.first_timestamp_ms
        if 0 <= first_ms < now_ms - policy.segment_age_ms:
            log.roll()
    start = _wanted_start(log, policy, now_ms)
    if start > log.start_offset():
        return trim(store, start)
    return log.start_offset()


def roll_idle(store: LocalLog, now_ms: int, age_ms: int) -> bool:
    """Rolls the active segment of a log without a policy, if it is time: its first message is older than `age_ms` (-1:
    none ever is), or all of DRAINED_SIZE_MIN bytes and more is settled and not retained. True when it did.

    Does nothing to a log that nobody has used since the start. Cost: some 0.3 ms for a roll. Raises: OSError.
    """
    log = store.log
    if not store.ready or store.failed or log.cleaning or not log.durable or not log.segments:
        return False
    active = log.segments[-1]
    if active.sealed or active.size == 0:
        return False
    kept = log.removals.retention
    if kept is not None and kept.segment_age_ms >= 0:
        age_ms = kept.segment_age_ms if age_ms < 0 else min(age_ms, kept.segment_age_ms)
    old = age_ms >= 0 and 0 <= active.first_timestamp_ms < now_ms - age_ms
    if not old and (kept is not None or active.live > 0 or active.size < DRAINED_SIZE_MIN):
        return False
    store.flush_batches()
    if not log.failed:
        log.roll()
    return True


def let_go(store: LocalLog, now_ms: int, age_ms: int) -> bool:
    """For a work queue's log that retains what is settled (storage/acks/retained.py): rolls the active segment if it is
    time, and notes that what has become old goes with the next job. Whether there is something to do.

    Cost: a step per segment; the first one recovers the log. Raises: OSError.
    """
    store.recover()
    log = store.log
    retention = log.removals.retention
    if retention is None or store.failed or log.cleaning:
        return False
    rolled = roll_idle(store, now_ms, age_ms)
    if retention.lets_go(log.segments):
        log.removals.wanted = True
    return rolled or log.removals.wanted


def trim(store: LocalLog, offset: int) -> int:
    """Everything before `offset` goes, if it is there. Returns the new start offset; it is safe with the next commit.

    Kafka's DeleteRecords. Cost: a step per segment. Raises: OSError; LogFailed.
    """
    store.recover()
    log = store.log
    store.flush_batches()
    offset = min(offset, log.end)
    before = log.start_offset()
    if offset <= before:
        return before
    active = log.segments[-1]
    if offset >= active.end and not active.sealed and active.size > 0:
        log.roll()  # so that it can go
    store.settle_range(before, offset - 1)
    log.note_start(offset)
    return log.start_offset()


def _wanted_start(log: Log, policy: RetentionPolicy, now_ms: int) -> int:
    kept = [segment for segment in log.segments if not segment.gone and segment.live > 0]
    start = log.start_offset()
    if policy.max_age_ms >= 0:
        for segment in kept:
            if segment.latest_ms() >= now_ms - policy.max_age_ms:
                break
            start = segment.end
    kept = [segment for segment in kept if segment.base >= start]
    size = sum(segment.size for segment in kept)
    count = sum(segment.live for segment in kept)
    for segment in kept:
        if segment is log.segments[-1]:
            break
        size -= segment.size
        count -= segment.live
        too_many = 0 <= policy.max_records <= count
        if not too_many and not 0 <= policy.max_bytes <= size:
            break
        start = segment.end
    return start
