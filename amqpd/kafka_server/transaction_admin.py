"""Requests about transactions for administrators: DescribeTransactions, ListTransactions, DescribeProducers.

They show those transactional ids of the vhost that the user may read, and those of their topics that the user may read
or write. DescribeProducers needs read permission on the topic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from amqpd.kafka_server import errors, topics
from amqpd.kafka_server.connection import Call, typed_api
from amqpd.kafka_server.pace import Steps
from amqpd.kafka_server.partition_admin import Found, OpenedPartition, open_all
from amqpd.kafka_server.transactions import STATE_NAMES
from amqpd.storage.local_log import LocalLog

if TYPE_CHECKING:
    from amqpd.kafka_server.transactions import TransactionMetadata

NAMES_MAX: Final = 1000
"""Transactional ids, filters or partitions in one request."""
PRODUCERS_MAX: Final = 20_000
"""Producers in one answer of DescribeProducers; further partitions get an error."""

_DESCRIBE: Final[tuple[topics.Permission, ...]] = ("read", "write")
"""Permissions of which one is enough to see a topic."""

Fields = dict[str, Any]


def _describe_transactions(call: Call) -> Steps[None]:
    topics.check_count(len(call.request.transactional_ids), NAMES_MAX)
    coordinator = call.connection.server.coordinator.transactions
    states: list[Fields] = []
    for name in call.request.transactional_ids:
        yield
        error = coordinator.error_for(name, call.session, "read")
        current = None if error else coordinator.find(call.session.vhost, name)
        states.append(_described(call, name, current, error))
    call.reply({"transaction_states": states})


def _described(call: Call, name: str, current: TransactionMetadata | None, error: int) -> Fields:
    if current is None:
        return {
            "error_code": error or errors.TRANSACTIONAL_ID_NOT_FOUND,
            "transactional_id": name,
            "transaction_state": "",
            "transaction_timeout_ms": 0,
            "transaction_start_time_ms": -1,
            "producer_id": -1,
            "producer_epoch": -1,
            "topics": [],
        }
    partitions: dict[str, list[int]] = {}
    session = call.session
    for each in sorted(current.partitions):
        if any(topics.is_topic_permitted(session, each.topic, kind) for kind in _DESCRIBE):
            partitions.setdefault(each.topic, []).append(each.partition)
    return {
        "error_code": errors.NONE,
        "transactional_id": name,
        "transaction_state": current.state.kafka_name,
        "transaction_timeout_ms": current.timeout_ms,
        "transaction_start_time_ms": current.start_ms,
        "producer_id": current.producer_id,
        "producer_epoch": current.epoch,
        "topics": [{"topic": topic, "partitions": indexes} for topic, indexes in partitions.items()],
    }


def _list_transactions(call: Call) -> Steps[None]:
    request = call.request
    topics.check_count(len(request.state_filters) + len(request.producer_id_filters), NAMES_MAX)
    coordinator = call.connection.server.coordinator.transactions
    error = coordinator.load_error()
    if error:
        call.reply({"error_code": error, "unknown_state_filters": [], "transaction_states": []})
        return
    unknown = [name for name in request.state_filters if name not in STATE_NAMES]
    wanted = {STATE_NAMES[name] for name in request.state_filters if name in STATE_NAMES}
    producers = set(request.producer_id_filters)
    longer_ms = request.duration_filter
    now_ms = coordinator.now_ms()
    found: list[Fields] = []
    for name, each in coordinator.of_vhost(call.session.vhost).items():
        yield
        if (
            topics.is_permitted(call.session, name, "read")
            and (not request.state_filters or each.state in wanted)
            and (not producers or each.producer_id in producers)
            and (longer_ms < 0 or (each.start_ms >= 0 and now_ms - each.start_ms > longer_ms))
        ):
            found.append(
                {
                    "transactional_id": name,
                    "producer_id": each.producer_id,
                    "transaction_state": each.state.kafka_name,
                }
            )
    call.reply({"error_code": errors.NONE, "unknown_state_filters": unknown, "transaction_states": found})


def _describe_producers(call: Call) -> Steps[None]:
    asked = call.request.topics
    topics.check_partitions((each.partition_indexes for each in asked), NAMES_MAX)
    found = [(each.name, [OpenedPartition(index) for index in each.partition_indexes]) for each in asked]
    pace, connection = call.connection.server.pace, call.connection
    return open_all(call, found, "read", lambda: pace.run(connection, _reply_producers(call, found)))


def _reply_producers(call: Call, found: Found) -> Steps[None]:
    left = PRODUCERS_MAX
    answered: list[Fields] = []
    for name, partitions in found:
        own: list[Fields] = []
        answered.append({"name": name, "partitions": own})
        for each in partitions:
            yield
            producers = [] if each.store is None else each.store.producers().all()
            left -= len(producers)
            if left < 0 and each.store is not None:
                each.error_code, producers = errors.POLICY_VIOLATION, []
            transactions = each.store.log.transactions if isinstance(each.store, LocalLog) else None
            active: list[Fields] = []
            own.append({"partition_index": each.index, "error_code": each.error_code, "active_producers": active})
            for one in producers:
                active.append(
                    {
                        "producer_id": one.producer_id,
                        "producer_epoch": one.epoch,
                        "last_sequence": one.sequence,
                        "last_timestamp": one.time_ms,
                        "coordinator_epoch": -1,
                        "current_txn_start_offset": (
                            -1 if transactions is None else transactions.first_open(one.producer_id)
                        ),
                    }
                )
                yield
    call.reply({"topics": answered})


APIS: Final = (
    typed_api(61, "DescribeProducers", 0, 0, 0, _describe_producers),
    typed_api(65, "DescribeTransactions", 0, 0, 0, _describe_transactions),
    typed_api(66, "ListTransactions", 0, 1, 0, _list_transactions),
)
