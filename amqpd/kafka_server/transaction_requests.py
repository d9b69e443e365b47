"""Transactional producers: InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, TxnOffsetCommit, EndTxn.

transactions.py decides, transaction_coordinator.py writes. Produce of a transaction is in produce.py.

The versions offered are those of transaction.version 1. Clients that know version 2 (Java 4) use 1 here, because
ApiVersions names no features.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from amqpd.kafka_server import errors, group_offsets, topics, transactions
from amqpd.kafka_server.connection import Call, typed_api
from amqpd.kafka_server.pace import Steps
from amqpd.kafka_server.transaction_coordinator import TIMEOUT_MS_MAX, TransactionCoordinator, new_producer_id
from amqpd.kafka_server.transactions import PARTITIONS_MAX, TransactionMetadata, TransactionPartition


def _coordinator(call: Call) -> TransactionCoordinator:
    return call.connection.server.coordinator.transactions


def _for_version(call: Call, error: int, fenced_from: int) -> int:
    """Return the error for this version: older ones have 47 (INVALID_PRODUCER_EPOCH) instead of 90."""
    return errors.INVALID_PRODUCER_EPOCH if error == errors.PRODUCER_FENCED and call.version < fenced_from else error


# -- InitProducerId


def _init_producer_id(call: Call) -> None:
    """Answer with a producer id and an epoch.

    A producer without a transactional id gets a new id and epoch 0, also if it wants to continue with a higher epoch.
    """
    request = call.request
    if request.transactional_id is None:
        call.reply({"producer_id": new_producer_id(), "producer_epoch": 0})
        return
    coordinator = _coordinator(call)
    error = coordinator.error_for(request.transactional_id, call.session)
    if not error and not 0 < request.transaction_timeout_ms <= TIMEOUT_MS_MAX:
        error = errors.INVALID_TRANSACTION_TIMEOUT
    if not error:
        try:
            call.connection.server.broker.storage.require_transaction_format()
        except OSError:
            error = errors.STORAGE_ERROR
    if error:
        _answer_init(call, error)
        return
    _try_init(call, True)


def _try_init(call: Call, again: bool) -> None:
    """Initialise the producer. again: after an ongoing transaction was aborted, do so once more."""
    request, coordinator = call.request, _coordinator(call)
    decided = False

    def change(current: TransactionMetadata | None) -> TransactionMetadata | int:
        nonlocal decided
        result = transactions.init_producer(
            current,
            request.producer_id,
            request.producer_epoch,
            request.transaction_timeout_ms,
            new_producer_id(),
            coordinator.now_ms(),
        )
        decided = not isinstance(result, int) and result.state.is_prepared
        return result

    def done(error: int) -> None:
        if call.connection.closed:
            return
        if error or not decided:
            _answer_init(call, error)
        elif again:
            _try_init(call, False)
        else:
            _answer_init(call, errors.CONCURRENT_TRANSACTIONS)

    coordinator.change(call.session.vhost, request.transactional_id, change, done)


def _answer_init(call: Call, error: int) -> None:
    current = None
    if not error:
        current = _coordinator(call).find(call.session.vhost, call.request.transactional_id)
        error = errors.NONE if current is not None else errors.COORDINATOR_NOT_AVAILABLE
    call.reply(
        {
            "error_code": _for_version(call, error, 4),
            "producer_id": -1 if current is None else current.producer_id,
            "producer_epoch": -1 if current is None else current.epoch,
        }
    )


# -- AddPartitionsToTxn, AddOffsetsToTxn


def _add_partitions(call: Call) -> Steps[None]:
    request, coordinator = call.request, _coordinator(call)
    wanted = request.v3_and_below_topics
    topics.check_partitions((each.partitions for each in wanted), 2 * PARTITIONS_MAX)
    name = request.v3_and_below_transactional_id
    error = coordinator.error_for(name, call.session)
    found: list[TransactionPartition] = []
    refused: dict[tuple[str, int], int] = {}
    for each in wanted:
        topic = topics.find_topic(call.session, each.name, "write")
        yield
        for index in each.partitions:
            yield
            own = topic if isinstance(topic, int) else topics.partition_of(call.session, topic, index, "write")
            if isinstance(own, int):
                refused[each.name, index] = own
            elif own.is_work_queue:
                refused[each.name, index] = errors.INVALID_REQUEST
            else:
                found.append(TransactionPartition(own.topic.name, bytes.fromhex(own.queue.id), index))
    if error or refused:
        _answer_partitions(call, refused, error or errors.OPERATION_NOT_ATTEMPTED)
        return
    producer = (request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
    coordinator.change(
        call.session.vhost,
        name,
        lambda current: transactions.add(current, *producer, found, (), coordinator.now_ms()),
        partial(_answer_partitions, call, refused),
    )


def _answer_partitions(call: Call, refused: dict[tuple[str, int], int], error: int) -> None:
    """Answer with the errors of some partitions, and `error` for the others."""
    if call.connection.closed:
        return
    error = _for_version(call, error, 2)
    call.reply(
        {
            "results_by_topic_v3_and_below": [
                {
                    "name": each.name,
                    "results_by_partition": [
                        {"partition_index": index, "partition_error_code": refused.get((each.name, index), error)}
                        for index in each.partitions
                    ],
                }
                for each in call.request.v3_and_below_topics
            ]
        }
    )


def _add_offsets(call: Call) -> None:
    request = call.request
    error = _coordinator(call).error_for(request.transactional_id, call.session)
    error = error or call.connection.server.coordinator.error_for(request.group_id, call.session)

    def change(current: TransactionMetadata | None, now_ms: int) -> TransactionMetadata | int:
        return transactions.add(current, request.producer_id, request.producer_epoch, (), (request.group_id,), now_ms)

    _change(call, error, change)


def _change(
    call: Call, error: int, change: Callable[[TransactionMetadata | None, int], TransactionMetadata | int]
) -> None:
    """Change the transaction of a request whose answer is an error code. change: gets the time, too."""
    name, coordinator = call.request.transactional_id, _coordinator(call)

    def done(error: int) -> None:
        if not call.connection.closed:
            call.reply({"error_code": _for_version(call, error, 2)})

    if error:
        done(error)
    else:
        coordinator.change(call.session.vhost, name, lambda current: change(current, coordinator.now_ms()), done)


# -- TxnOffsetCommit


def _txn_offset_commit(call: Call) -> Steps[None]:
    """Add offsets to the transaction. They are the group's when it is committed."""
    request, coordinator = call.request, _coordinator(call)
    groups = call.connection.server.coordinator
    vhost = call.session.vhost
    if group_offsets.is_too_large(call):
        return
    results, offsets = yield from group_offsets.collect_offsets(call, {})
    error = coordinator.error_for(request.transactional_id, call.session)
    error = error or groups.error_for(request.group_id, call.session)
    if not error:
        producer = (request.producer_id, request.producer_epoch)
        error = coordinator.write_error(vhost, request.transactional_id, producer, request.group_id)
        error = _for_version(call, error, 127) or _member_error(call)
    if not error and not groups.offsets.has_pending_room(request.producer_id, offsets):
        error = errors.INVALID_COMMIT_OFFSET_SIZE
    if error:
        group_offsets.answer_offsets(call, group_offsets.with_error(results, error), True)
        return
    groups.offsets.add_pending(request.producer_id, offsets, partial(group_offsets.answer_offsets, call, results))


def _member_error(call: Call) -> int:
    """Return the error of the group for this commit. Producers that are no members send no member id."""
    request = call.request
    if request.generation_id < 0 and not request.member_id:
        return errors.NONE
    groups = call.connection.server.coordinator
    entry = groups.find(call.session.vhost, request.group_id)
    if entry is None:
        return errors.ILLEGAL_GENERATION
    error = entry.commit_error(request.member_id, request.group_instance_id, request.generation_id, groups.now_ms())
    groups.changed(entry)
    return error


# -- EndTxn


def _end_txn(call: Call) -> None:
    """Commit or abort. The answer is sent when all markers are synced."""
    request = call.request

    def change(current: TransactionMetadata | None, now_ms: int) -> TransactionMetadata | int:
        return transactions.end(current, request.producer_id, request.producer_epoch, request.committed, now_ms)

    _change(call, _coordinator(call).error_for(request.transactional_id, call.session), change)


APIS: Final = (
    typed_api(22, "InitProducerId", 0, 5, 2, _init_producer_id),
    typed_api(24, "AddPartitionsToTxn", 0, 3, 3, _add_partitions),
    typed_api(25, "AddOffsetsToTxn", 0, 4, 3, _add_offsets),
    typed_api(26, "EndTxn", 0, 4, 3, _end_txn),
    typed_api(28, "TxnOffsetCommit", 0, 4, 3, _txn_offset_commit),
)
