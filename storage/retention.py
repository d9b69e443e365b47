"""Retention: removes messages because of age or amount, not because they were consumed.

`Storage.maintain` applies the `RetentionPolicy` of each log from a timer, outside the message path. Retention
settles everything before a *start offset*; then whole segments are removed like any settled segment
(acks/segment_removal.py). A crash before the commit may keep some of them, and the next round removes these. After
the commit nothing returns.

age       removes a segment whose latest record is older than `max_age_ms`; an active one is rolled first
bytes     removes the oldest segment while the others have at least `max_bytes`
offset    `trim` is exact to the record; the start of a partial segment counts as settled

So a log has at most its limit plus one segment. The active segment is removed only by age. Time is LogAppendTime.

A log without a policy (a work queue) removes segments when all their messages are settled. Appends roll the active
segment only by size, so `roll_idle` rolls old ones and drained ones. For logs that retain settled messages
(acks/retained.py), `expire_acked` does this and removes what is too old.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpd.storage.retention_policy import RetentionPolicy

if TYPE_CHECKING:
    from amqpd.storage.local_log import LocalLog
    from amqpd.storage.log.log import Log

DRAINED_SIZE_MIN = 64 * 1024  # bytes; a smaller drained active segment waits until it is old


def retain(store: LocalLog, now_ms: int) -> int:
    """Roll old segments, apply the policy, and return the start offset.

    Cost: a step per segment. Raises: OSError; LogFailed.
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
    """Roll the active segment of a log without a policy if it is old or drained. Return whether it was rolled.

    Does nothing for a log that was not used since the start. Cost: about 0.3 ms for a roll. Raises: OSError.

    Args:
        age_ms: roll if the first message is older; -1 for never. A drained segment of DRAINED_SIZE_MIN is rolled
            unless the log retains settled messages.
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


def expire_acked(store: LocalLog, now_ms: int, age_ms: int) -> bool:
    """Roll and expire a work queue's log that retains settled messages. Return whether there is something to remove.

    The next sync job removes it. Cost: a step per segment; the first call recovers the log. Raises: OSError.
    """
    store.recover()
    log = store.log
    retention = log.removals.retention
    if retention is None or store.failed or log.cleaning:
        return False
    rolled = roll_idle(store, now_ms, age_ms)
    if retention.has_expired(log.segments):
        log.removals.wanted = True
    return rolled or log.removals.wanted


def trim(store: LocalLog, offset: int) -> int:
    """Remove everything before `offset` and return the new start offset. It is safe with the next commit.

    Kafka: DeleteRecords. Cost: a step per segment. Raises: OSError; LogFailed.
    """
    store.recover()
    log = store.log
    store.flush_batches()
    offset = min(offset, log.end)
    before = log.start_offset()
    if offset <= before:
        if log.policy is not None and offset > log.deleted_end:  # the records up to there were aborted
            log.checkpoint_start(offset)
            store.mark_dirty()
        return before
    active = log.segments[-1]
    if offset >= active.end and not active.sealed and active.size > 0:
        log.roll()  # only sealed segments can be removed
    store.ack_range(before, offset - 1)
    log.checkpoint_start(offset)
    return log.start_offset()


def _wanted_start(log: Log, policy: RetentionPolicy, now_ms: int) -> int:
    kept = [segment for segment in log.segments if not segment.is_removed and segment.live > 0]
    start = log.start_offset()
    if policy.max_age_ms >= 0:
        for segment in kept:
            if segment.latest_ms() >= now_ms - policy.max_age_ms:
                break
            start = segment.end
    kept = [segment for segment in kept if segment.base >= start]
    size = sum(segment.size for segment in kept)
    for segment in kept:
        if segment is log.segments[-1]:
            break
        size -= segment.size
        if not 0 <= policy.max_bytes <= size:
            break
        start = segment.end
    return start
