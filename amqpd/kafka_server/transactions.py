"""The state of one transactional id, as a machine without IO and clock.

    state            next                                  by
    Empty            Ongoing                               AddPartitionsToTxn, AddOffsetsToTxn
    Ongoing          PrepareCommit                         EndTxn that commits
                     PrepareAbort                          EndTxn that aborts, the time-out, InitProducerId of another
                                                           producer; the last two raise the epoch, which fences
    PrepareCommit    CompleteCommit                        all markers are written
    PrepareAbort     CompleteAbort                         all markers are written
    CompleteCommit   Ongoing, Empty (InitProducerId)
    CompleteAbort    Ongoing, Empty (InitProducerId)

Kafka has also Dead, for an id that expires, and PrepareEpochFence, for the time until Ongoing of a fenced producer is
written as PrepareAbort. Here an expired id is absent, and fencing is one step.

A `TransactionMetadata` is immutable, and all of it is one record of a log (transaction_log.py). The functions return
the next one, or Kafka's error code. The coordinator (transaction_coordinator.py) writes it before it counts; until then
every request gets 51 (CONCURRENT_TRANSACTIONS).

Source: Kafka, TransactionCoordinator and TransactionMetadata, with transaction.version 1: the epoch of a producer stays
the same from one transaction to the next.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Final, NamedTuple

from amqpd.kafka_server import errors

EPOCH_MAX: Final = 32_766
"""After this epoch a producer gets another id."""
PARTITIONS_MAX: Final = 2_000
"""Partitions and groups of one transaction."""
NO_PRODUCER: Final = -1


class TransactionState(enum.Enum):
    """Kafka's states. The value is the number in the log, as in Kafka's."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5

    @property
    def kafka_name(self) -> str:
        """Return Kafka's name, such as `PrepareCommit`."""
        return "".join(word.capitalize() for word in self.name.split("_"))

    @property
    def is_prepared(self) -> bool:
        """Return whether the outcome is decided, and markers are being written."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)


STATE_NAMES: Final = {state.kafka_name: state for state in TransactionState}


class TransactionPartition(NamedTuple):
    """A partition of a transaction. queue_id: of its stream, 16 bytes, so a new topic of the name is another one."""

    topic: str
    queue_id: bytes
    partition: int


class TransactionMetadata(NamedTuple):
    """A transactional id with its producer, and its current or last transaction.

    Attributes:
        epoch: of the producer.
        last_epoch: its epoch before the last InitProducerId that named it, or before the time-out; InitProducerId with
            it returns `epoch`. -1 for none, and from the first partition or group on.
        partitions, groups: empty unless the state is Ongoing or prepared.
        start_ms: of the transaction, since 1970; -1 without one.
        update_ms: of the last change, since 1970.
    """

    producer_id: int
    epoch: int
    last_epoch: int
    timeout_ms: int
    state: TransactionState
    partitions: frozenset[TransactionPartition]
    groups: frozenset[str]
    start_ms: int
    update_ms: int

    @property
    def is_idle(self) -> bool:
        """Return whether there is no transaction, so that the id can expire."""
        return self.state is not TransactionState.ONGOING and not self.state.is_prepared

    @property
    def due_ms(self) -> int:
        """Return when an ongoing transaction is aborted."""
        return self.start_ms + self.timeout_ms


_NO_PARTITIONS: Final[frozenset[TransactionPartition]] = frozenset()
_NO_GROUPS: Final[frozenset[str]] = frozenset()


def init_producer(
    current: TransactionMetadata | None, producer_id: int, epoch: int, timeout_ms: int, new_id: int, now_ms: int
) -> TransactionMetadata | int:
    """InitProducerId: return the transaction with the epoch of the new producer, or an error.

    If a transaction is ongoing, the result is PrepareAbort: the caller completes it and answers 51, and the client
    asks again.

    Args:
        current: None for an unknown id.
        producer_id, epoch: what the client had before, -1 for a new client.
        new_id: the producer id for an unknown id, or for a producer whose epochs are used up.
    """
    if current is None:
        return _empty(new_id, 0, -1, timeout_ms, now_ms)
    is_last = producer_id == current.producer_id and epoch == current.last_epoch >= 0
    if producer_id != NO_PRODUCER and not is_last and (producer_id, epoch) != (current.producer_id, current.epoch):
        return errors.PRODUCER_FENCED
    if current.state.is_prepared:
        return errors.CONCURRENT_TRANSACTIONS
    if is_last and current.epoch <= EPOCH_MAX:
        return current._replace(state=TransactionState.EMPTY, timeout_ms=timeout_ms, update_ms=now_ms)
    if current.state is TransactionState.ONGOING:
        return _prepare(current, False, True, now_ms)
    if current.epoch >= EPOCH_MAX:
        return _empty(new_id, 0, -1, timeout_ms, now_ms)
    last_epoch = -1 if producer_id == NO_PRODUCER else current.epoch
    return _empty(current.producer_id, current.epoch + 1, last_epoch, timeout_ms, now_ms)


def _empty(producer_id: int, epoch: int, last_epoch: int, timeout_ms: int, now_ms: int) -> TransactionMetadata:
    return TransactionMetadata(
        producer_id, epoch, last_epoch, timeout_ms, TransactionState.EMPTY, _NO_PARTITIONS, _NO_GROUPS, -1, now_ms
    )


def producer_error(current: TransactionMetadata | None, producer_id: int, epoch: int) -> int:
    """Return the error for a request of a producer, 0 if it is the current one of its id."""
    if current is None or current.producer_id != producer_id:
        return errors.INVALID_PRODUCER_ID_MAPPING
    return 0 if current.epoch == epoch else errors.PRODUCER_FENCED


def add(
    current: TransactionMetadata | None,
    producer_id: int,
    epoch: int,
    partitions: Iterable[TransactionPartition],
    groups: Iterable[str],
    now_ms: int,
) -> TransactionMetadata | int:
    """AddPartitionsToTxn and AddOffsetsToTxn: return the ongoing transaction with these, or an error.

    The result is `current` if all of them are there already.
    """
    error = producer_error(current, producer_id, epoch)
    if error or current is None:
        return error
    if current.state.is_prepared:
        return errors.CONCURRENT_TRANSACTIONS
    is_new = current.state is not TransactionState.ONGOING
    all_partitions, all_groups = current.partitions.union(partitions), current.groups.union(groups)
    if len(all_partitions) + len(all_groups) > PARTITIONS_MAX:
        return errors.POLICY_VIOLATION
    if not is_new and all_partitions == current.partitions and all_groups == current.groups:
        return current
    return current._replace(
        state=TransactionState.ONGOING,
        last_epoch=-1,
        partitions=all_partitions,
        groups=all_groups,
        start_ms=now_ms if is_new else current.start_ms,
        update_ms=now_ms,
    )


def end(
    current: TransactionMetadata | None, producer_id: int, epoch: int, commits: bool, now_ms: int
) -> TransactionMetadata | int:
    """EndTxn: return the prepared transaction, or an error.

    The result is `current` if the transaction has already ended in this way: the request is repeated.
    """
    error = producer_error(current, producer_id, epoch)
    if error or current is None:
        return error
    if current.state is TransactionState.ONGOING:
        return _prepare(current, commits, False, now_ms)
    prepared = TransactionState.PREPARE_COMMIT if commits else TransactionState.PREPARE_ABORT
    if current.state is prepared:
        return errors.CONCURRENT_TRANSACTIONS
    complete = TransactionState.COMPLETE_COMMIT if commits else TransactionState.COMPLETE_ABORT
    return current if current.state is complete else errors.INVALID_TXN_STATE


def time_out(current: TransactionMetadata, now_ms: int) -> TransactionMetadata | None:
    """Return the transaction as PrepareAbort if its time is over.

    Its producer is fenced, but InitProducerId with its epoch gives it the new one (KIP-588).
    """
    if current.state is not TransactionState.ONGOING or current.due_ms > now_ms:
        return None
    return _prepare(current, False, True, now_ms)._replace(last_epoch=current.epoch)


def _prepare(current: TransactionMetadata, commits: bool, fences: bool, now_ms: int) -> TransactionMetadata:
    # EPOCH_MAX + 1 is left for fencing; the next InitProducerId then gets another producer id.
    return current._replace(
        state=TransactionState.PREPARE_COMMIT if commits else TransactionState.PREPARE_ABORT,
        epoch=current.epoch + 1 if fences else current.epoch,
        last_epoch=-1 if fences else current.last_epoch,
        update_ms=now_ms,
    )


def complete(current: TransactionMetadata, now_ms: int) -> TransactionMetadata:
    """Return a prepared transaction as complete: all markers are written."""
    commits = current.state is TransactionState.PREPARE_COMMIT
    return current._replace(
        state=TransactionState.COMPLETE_COMMIT if commits else TransactionState.COMPLETE_ABORT,
        partitions=_NO_PARTITIONS,
        groups=_NO_GROUPS,
        start_ms=-1,
        update_ms=now_ms,
    )


def write_error(
    current: TransactionMetadata | None, producer_id: int, epoch: int, part: TransactionPartition | str
) -> int:
    """Return the error for a Produce or TxnOffsetCommit, 0 if the transaction has this partition or group."""
    error = producer_error(current, producer_id, epoch)
    if error or current is None:
        return error
    is_known = part in current.groups if isinstance(part, str) else part in current.partitions
    return 0 if is_known and current.state is TransactionState.ONGOING else errors.INVALID_TXN_STATE
