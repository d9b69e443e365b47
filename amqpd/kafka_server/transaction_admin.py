"""Requests about transactions for administrators: DescribeTransactions, ListTransactions, DescribeProducers.

They show the transactional ids of the vhost. DescribeProducers needs read permission on the topic.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from amqpd.kafka_server import topics
from amqpd.kafka_server.connection import Api, Call
from amqpd.kafka_server.messages import (
    NONE,
    POLICY_VIOLATION,
    STORAGE_ERROR,
    TRANSACTIONAL_ID_NOT_FOUND,
    UNKNOWN_TOPIC_OR_PARTITION,
    api_types,
)
from amqpd.kafka_server.pace import Steps
from amqpd.kafka_server.transactions import STATE_NAMES
from amqpd.storage.local_log import LocalLog

if TYPE_CHECKING:
    from amqpd.broker.queue.queue import Queue
    from amqpd.kafka_server.transactions import TransactionMetadata

NAMES_MAX: Final = 1000
"""Transactional ids, filters or partitions in one request."""
PRODUCERS_MAX: Final = 20_000
"""Producers in one answer of DescribeProducers; further partitions get an error."""

Fields = dict[str, Any]


def _describe_transactions(call: Call) -> Steps[None]:
    topics.check_count(len(call.request.transactional_ids), NAMES_MAX)
    coordinator = call.connection.server.coordinator.transactions
    states: list[Fields] = []
    for name in call.request.transactional_ids:
        yield
        error = coordinator.error_for(name, call.session, "read")
        current = None if error else coordinator.find(call.session.vhost, name)
        states.append(_described(name, current, error))
    call.reply({"transaction_states": states})


def _described(name: str, current: TransactionMetadata | None, error: int) -> Fields:
    if current is None:
        return {
            "error_code": error or TRANSACTIONAL_ID_NOT_FOUND,
            "transactional_id": name,
            "transaction_state": "",
            "transaction_timeout_ms": 0,
            "transaction_start_time_ms": -1,
            "producer_id": -1,
            "producer_epoch": -1,
            "topics": [],
        }
    partitions: dict[str, list[int]] = {}
    for each in sorted(current.partitions):
        partitions.setdefault(each.topic, []).append(each.partition)
    return {
        "error_code": NONE,
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
            (not request.state_filters or each.state in wanted)
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
    call.reply({"error_code": NONE, "unknown_state_filters": unknown, "transaction_states": found})


class _ProducersQuery:
    """A DescribeProducers request, until all of its logs are open."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._left = 1
        self._producer_count = 0
        self._answered: list[Fields] = []

    def begin(self) -> Steps[None]:
        """Open the logs, then answer."""
        request = self._call.request
        topics.check_count(sum(1 + len(each.partition_indexes) for each in request.topics), NAMES_MAX)
        for each in request.topics:
            found = topics.find_topic(self._call.session, each.name, "read")
            partitions: list[Fields] = []
            self._answered.append({"name": each.name, "partitions": partitions})
            for index in each.partition_indexes:
                yield
                answer: Fields = {"partition_index": index, "error_code": NONE, "active_producers": []}
                partitions.append(answer)
                own = found if isinstance(found, int) else topics.partition_of(self._call.session, found, index, "read")
                if isinstance(own, int):
                    answer["error_code"] = own
                else:
                    self._left += 1
                    topics.open_queue(own.queue, partial(self._opened, answer, own.queue))
        self._one_done()

    def _opened(self, answer: Fields, queue: Queue, is_open: bool) -> None:
        store = queue.store
        if queue.deleted:
            answer["error_code"] = UNKNOWN_TOPIC_OR_PARTITION
        elif not is_open or store is None:
            answer["error_code"] = STORAGE_ERROR
        else:
            producers = store.producers().all()
            self._producer_count += len(producers)
            if self._producer_count > PRODUCERS_MAX:
                answer["error_code"], producers = POLICY_VIOLATION, []
            transactions = store.log.transactions if isinstance(store, LocalLog) else None
            answer["active_producers"] = [
                {
                    "producer_id": each.producer_id,
                    "producer_epoch": each.epoch,
                    "last_sequence": each.sequence,
                    "last_timestamp": each.time_ms,
                    "coordinator_epoch": -1,
                    "current_txn_start_offset": (
                        -1 if transactions is None else transactions.first_open(each.producer_id)
                    ),
                }
                for each in producers
            ]
        self._one_done()

    def _one_done(self) -> None:
        self._left -= 1
        if self._left == 0 and not self._call.connection.closed:
            self._call.reply({"topics": self._answered})


def _describe_producers(call: Call) -> Steps[None]:
    return _ProducersQuery(call).begin()


APIS: Final = (
    Api(61, "DescribeProducers", 0, 0, 0, _describe_producers, *api_types("DescribeProducers")),
    Api(65, "DescribeTransactions", 0, 0, 0, _describe_transactions, *api_types("DescribeTransactions")),
    Api(66, "ListTransactions", 0, 1, 0, _list_transactions, *api_types("ListTransactions")),
)
