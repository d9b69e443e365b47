"""Transactions over raw sockets: error codes, fencing, isolation levels, offsets, administration, hostile bytes."""

from __future__ import annotations

import itertools
import random
import struct
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pika
import pytest
from kafka.protocol.admin import (
    DeleteGroupsRequest,
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    ListTransactionsRequest,
)
from kafka.protocol.consumer import JoinGroupRequest, OffsetCommitRequest, OffsetDeleteRequest
from kafka.protocol.producer import EndTxnRequest, ProduceRequest, TxnOffsetCommitRequest
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest
from kafka_socket import KafkaSocket, build
from transaction_client import TransactionClient, batch, new_topic

from amqpd.kafka_server import transaction_admin
from amqpd.kafka_server.partition_admin import OpenedPartition
from amqpd.testing import BrokerProcess


@pytest.fixture
def client(kafka_address: str) -> Iterator[TransactionClient]:
    with TransactionClient(kafka_address) as made:
        yield made


@pytest.fixture
def topic(kafka_address: str) -> str:
    return new_topic(kafka_address)


def begun(client: TransactionClient, topic: str, *values: bytes) -> TransactionClient:
    assert client.init() == 0
    assert client.add(topic) == [0]
    assert client.produce(topic, *values) == 0
    return client


def test_committed_records_are_read_after_the_commit_and_not_before(client: TransactionClient, topic: str) -> None:
    begun(client, topic, b"a", b"b")
    found = client.fetch(topic, committed=True)
    assert (found.high_watermark, found.last_stable_offset, found.records or b"") == (2, 0, b"")
    assert client.values(topic, committed=False) == [b"a", b"b"]
    assert (client.latest(topic, True), client.latest(topic, False)) == (0, 2)
    assert client.end(True) == 0
    assert client.values(topic) == [b"a", b"b"]
    assert client.latest(topic, True) == client.latest(topic, False) == 3


def test_search_for_a_time_ends_at_the_last_stable_offset(client: TransactionClient, topic: str) -> None:
    begun(client, topic, b"a")
    assert (client.latest(topic, True, timestamp=0), client.latest(topic, False, timestamp=0)) == (-1, 0)
    assert client.end(True) == 0
    assert client.latest(topic, True, timestamp=0) == 0
    assert client.latest(topic, True, version=7, timestamp=-3) == 1, "the marker has the latest time, as in Kafka"


@pytest.mark.parametrize("version", range(4, 13))
def test_aborted_records_are_not_sent_and_each_abort_marker_has_an_aborted_transaction(
    client: TransactionClient, topic: str, version: int
) -> None:
    begun(client, topic, b"a")
    assert client.end(False) == 0
    assert client.add(topic) == [0]
    assert client.produce(topic, b"b") == 0
    assert client.end(True) == 0
    found = client.fetch(topic, committed=True, version=version)
    assert [(each.producer_id, each.first_offset) for each in found.aborted_transactions] == [(client.producer[0], 1)]
    assert client.values(topic) == client.values(topic, committed=False) == [b"b"]
    assert client.fetch(topic, committed=False, version=version).aborted_transactions == []


def test_amqp_consumer_gets_committed_records_in_order(
    client: TransactionClient, topic: str, kafka_broker: BrokerProcess, kafka_address: str
) -> None:
    """One transaction is aborted, one is committed late; messages of AMQP and a second producer are between."""
    connection = pika.BlockingConnection(pika.URLParameters(kafka_broker.url))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.basic_qos(prefetch_count=100)
    channel.basic_publish("", topic, b"first")
    begun(client, topic, b"a1")
    with TransactionClient(kafka_address) as other:
        begun(other, topic, b"gone1")
        channel.basic_publish("", topic, b"between")
        assert client.produce(topic, b"a2") == 0
        assert other.produce(topic, b"gone2") == 0
        assert other.end(False) == 0
        channel.basic_publish("", topic, b"last")
        got: list[bytes] = []
        consumed = channel.consume(topic, arguments={"x-stream-offset": "first"}, inactivity_timeout=0.3)
        for message, _, body in consumed:
            if message is None:
                break
            got.append(body)
        assert got == [b"first"], "the older transaction is open"
        assert client.end(True) == 0
        for message, _, body in consumed:
            if message is not None:
                got.append(body)
            if body == b"last":
                break
        assert got == [b"first", b"a1", b"between", b"a2", b"last"]
    connection.close()


@pytest.mark.parametrize("version", range(6))
def test_init_producer_id_in_every_version(kafka_address: str, version: int) -> None:
    with TransactionClient(kafka_address) as client:
        assert client.init(version) == 0
        first = client.producer
        assert client.init(version) == 0
        assert client.producer == (first[0], first[1] + 1)
        assert client.init(version, timeout_ms=900_001) == client.init(version, timeout_ms=0) == 50
        if version >= 3:
            assert client.init(version, producer=client.producer) == 0
            assert client.producer[1] == 2
            assert client.init(version, producer=first) == (90 if version >= 4 else 47)
        client.name = ""
        assert client.init(version) == 42
        client.name = "x" * 256
        assert client.init(version) == 42


def test_new_producer_of_an_id_fences_the_old_one_and_aborts_its_transaction(
    client: TransactionClient, topic: str, kafka_address: str
) -> None:
    begun(client, topic, b"old")
    with TransactionClient(kafka_address, client.name) as new:
        assert new.init() == 0
        assert new.producer == (client.producer[0], client.producer[1] + 2), "one for the abort"
        assert client.produce(topic, b"zombie") == 47
        assert client.add(topic) == [90]
        assert client.add(topic, version=1) == [47]
        assert client.add_offsets("g") == 90
        assert client.end(True) == 90
        assert client.end(True, version=1) == 47
        assert new.add(topic) == [0]
        assert new.produce(topic, b"new") == 0
        assert new.end(True) == 0
        assert new.values(topic) == [b"new"]


def test_requests_without_a_transaction_are_refused(client: TransactionClient, topic: str) -> None:
    other = new_topic_of(client)
    assert client.add(topic) == [49]
    assert client.end(True) == client.add_offsets("g") == 49
    assert client.init() == 0
    assert client.end(True) == client.end(False) == 48
    assert client.produce(topic, b"too early") == 48
    assert client.add(topic) == [0]
    assert client.produce(other, b"not added") == 48
    assert client.produce(topic, b"unnamed", named=False) == 53
    assert client.commit_offset("g", topic, 1) == 48
    client.producer = (client.producer[0] + 1, 0)
    assert client.produce(topic, b"other producer") == 49
    assert client.commit_offset("g", topic, 1) == 49


def new_topic_of(client: TransactionClient) -> str:
    host, port = client.socket.getpeername()[:2]
    return new_topic(f"{host}:{port}")


def test_batches_outside_of_the_open_transaction_of_their_producer_are_refused(
    client: TransactionClient, topic: str
) -> None:
    begun(client, topic, b"a")
    assert client.produce(topic, b"b", transactional=False) == 48
    assert client.end(True) == 0
    assert client.values(topic) == [b"a"]


def test_one_wrong_partition_refuses_them_all(client: TransactionClient, topic: str) -> None:
    assert client.init() == 0
    assert client.add(topic, 0, 7) == [55, 3]
    assert client.add("no-such-topic") == [3]
    assert client.add("in/valid") == [17]
    assert client.end(True) == 48, "nothing was added"


def test_end_is_answered_again_and_the_other_outcome_is_refused(client: TransactionClient, topic: str) -> None:
    begun(client, topic, b"a")
    for version in range(5):
        assert client.end(True, version) == 0
    assert client.end(False) == 48


def test_transaction_is_aborted_after_its_time_out(
    client: TransactionClient, topic: str, kafka_broker: BrokerProcess
) -> None:
    assert client.init(timeout_ms=50) == 0
    assert client.add(topic) == [0]
    client.produce(topic, b"late")
    assert kafka_broker.says(f"transaction '{client.name}' is aborted")
    while client.latest(topic, True) < client.latest(topic, False):
        pass
    assert client.values(topic) == []
    assert client.end(True) == 90
    assert client.init() == 0
    assert client.end(True) == 48


def test_offsets_of_a_transaction_are_the_groups_after_the_commit(client: TransactionClient, topic: str) -> None:
    group = f"g-{uuid.uuid4().hex}"
    for commits, expected in ((True, 5), (False, 5), (True, 9)):
        assert client.init() == 0
        assert client.add_offsets(group) == 0
        before = client.offset_of(group, topic)
        assert client.commit_offset(group, topic, 5 if expected == 5 and commits else 9) == 0
        assert client.offset_of(group, topic) == before
        assert client.offset_of(group, topic, stable=True) == (-1, 88)
        assert client.end(commits) == 0
        assert client.offset_of(group, topic) == client.offset_of(group, topic, stable=True) == (expected, 0)


@pytest.mark.parametrize("has_offset", [True, False])
def test_a_deleted_group_is_not_brought_back_by_a_transaction(
    client: TransactionClient, topic: str, has_offset: bool
) -> None:
    """As in Kafka, where a group is deleted together with its pending offsets."""
    group = f"g-{uuid.uuid4().hex}"
    for ends in [True, False] if has_offset else [False]:
        assert client.init() == 0
        assert client.add_offsets(group) == 0
        assert client.commit_offset(group, topic, 5) == 0
        if ends:
            assert client.end(True) == 0
    deleted = client.request(DeleteGroupsRequest, 2, groups_names=[group])
    assert deleted.results[0].error_code == 0
    assert client.end(True) == 0
    assert client.offset_of(group, topic, stable=True) == (-1, 0)
    assert client.request(DeleteGroupsRequest, 2, groups_names=[group]).results[0].error_code == 69


def test_offset_of_a_transaction_for_a_deleted_topic_is_not_that_of_a_new_one(
    client: TransactionClient, topic: str, kafka_broker: BrokerProcess
) -> None:
    """As in Kafka, which removes pending offsets with their topic."""
    group = f"g-{uuid.uuid4().hex}"
    assert client.init() == 0
    assert client.add_offsets(group) == 0
    assert client.commit_offset(group, topic, 100) == 0
    with pika.BlockingConnection(pika.URLParameters(kafka_broker.url)) as connection:
        connection.channel().queue_delete(topic)
        connection.channel().queue_declare(topic, durable=True, arguments={"x-queue-type": "stream"})
    assert client.offset_of(group, topic, stable=True) == (-1, 0)
    partition = {"partition_index": 0, "committed_offset": 3, "committed_metadata": ""}
    answer = client.request(
        OffsetCommitRequest,
        7,
        group_id=group,
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=[{"name": topic, "partitions": [partition]}],
    )
    assert answer.topics[0].partitions[0].error_code == 0
    assert client.end(True) == 0
    assert client.offset_of(group, topic, stable=True) == (3, 0)


@pytest.mark.parametrize("order", list(itertools.permutations(["commit", "end", "delete"])), ids="-".join)
@pytest.mark.parametrize("has_offset", [True, False])
@pytest.mark.parametrize("connections", [1, 2])
def test_requests_without_waiting_bring_no_deleted_group_back(
    client: TransactionClient,
    topic: str,
    kafka_address: str,
    order: tuple[str, ...],
    has_offset: bool,
    connections: int,
) -> None:
    """A commit in a transaction, its end, and the deletion of the group, each sent without waiting for answers."""
    group = f"g-{uuid.uuid4().hex}"
    for _ in range(2 if has_offset else 1):
        assert client.init() == 0
        assert client.add_offsets(group) == 0
        if has_offset and client.producer[1] == 0:
            assert client.commit_offset(group, topic, 4) == 0
            assert client.end(True) == 0
    partition = {"partition_index": 0, "committed_offset": 5, "committed_leader_epoch": -1, "committed_metadata": ""}
    identity = {
        "transactional_id": client.name,
        "producer_id": client.producer[0],
        "producer_epoch": client.producer[1],
    }
    fields: dict[str, tuple[Any, int, dict[str, Any]]] = {
        "commit": (
            TxnOffsetCommitRequest,
            3,
            {"group_id": group, "topics": [{"name": topic, "partitions": [partition]}], **identity},
        ),
        "end": (EndTxnRequest, 3, {"committed": True, **identity}),
        "delete": (DeleteGroupsRequest, 2, {"groups_names": [group]}),
    }
    with KafkaSocket(kafka_address) as second:
        sockets = {name: second if connections == 2 and name == "delete" else client for name in order}
        for name in order:
            kind, version, values = fields[name]
            sockets[name].send(build(kind, values, version), version)
        answers = {}
        for name in order:
            kind, version, _ = fields[name]
            answers[name] = sockets[name].decode(kind(version=version), version, sockets[name].receive())
    committed = answers["commit"].topics[0].partitions[0].error_code
    deleted = answers["delete"].results[0].error_code
    assert (answers["end"].error_code, committed in (0, 15, 48), deleted in (0, 69)) == (0, True, True)
    found, error = client.offset_of(group, topic, stable=True)
    assert error == 0
    if connections == 1:
        is_late = committed == 0 and order.index("commit") > order.index("delete")
        assert found == (5 if is_late else -1)
        assert deleted == 0 or not has_offset
    else:
        assert found in ((-1, 5) if deleted == 0 or not has_offset else (5,))


def test_a_deleted_offset_is_not_brought_back_by_a_transaction(client: TransactionClient, topic: str) -> None:
    group = f"g-{uuid.uuid4().hex}"
    assert client.init() == 0
    assert client.add_offsets(group) == 0
    assert client.commit_offset(group, topic, 5) == 0
    wanted = [{"name": topic, "partitions": [{"partition_index": 0}]}]
    answer = client.request(OffsetDeleteRequest, 0, group_id=group, topics=wanted)
    assert (answer.error_code, answer.topics[0].partitions[0].error_code) == (0, 0)
    assert client.end(True) == 0
    assert client.offset_of(group, topic, stable=True) == (-1, 0)


@pytest.mark.parametrize("version", range(5))
def test_offset_commit_of_a_transaction_in_every_version(client: TransactionClient, topic: str, version: int) -> None:
    group = f"g-{uuid.uuid4().hex}"
    assert client.init() == 0
    assert client.add_offsets(group, version) == 0
    assert client.commit_offset("other", topic, 1, version) == 48
    assert client.commit_offset(group, "no-such-topic", 1, version) == 3
    assert client.commit_offset(group, topic, 1, version) == 0
    assert client.end(True, version) == 0
    assert client.offset_of(group, topic) == (1, 0)


def test_offset_commit_names_a_member_of_the_group(client: TransactionClient, topic: str) -> None:
    group = f"g-{uuid.uuid4().hex}"
    assert client.init() == 0
    assert client.add_offsets(group) == 0
    assert client.commit_offset(group, topic, 1, member_id="m", generation_id=3) == 22
    joined = client.request(
        JoinGroupRequest,
        2,
        group_id=group,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        member_id="",
        protocol_type="consumer",
        protocols=[{"name": "range", "metadata": b""}],
    )
    assert client.commit_offset(group, topic, 1, member_id="m", generation_id=1) == 25
    assert client.commit_offset(group, topic, 1, member_id=joined.member_id, generation_id=9) == 22
    assert client.commit_offset(group, topic, 1) == 0, "a producer that is no member"


def test_deleted_topic_does_not_hold_up_a_transaction(
    client: TransactionClient, topic: str, kafka_broker: BrokerProcess
) -> None:
    gone = new_topic_of(client)
    begun(client, topic, b"a")
    assert client.add(gone) == [0]
    assert client.produce(gone, b"b") == 0
    connection = pika.BlockingConnection(pika.URLParameters(kafka_broker.url))
    connection.channel().queue_delete(gone)
    assert client.end(True) == 0
    assert client.values(topic) == [b"a"]
    connection.close()


def test_id_of_a_deleted_vhost_is_unknown(kafka_broker: BrokerProcess, kafka_address: str) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(kafka_broker.url))
    connection.close()
    with TransactionClient(kafka_address) as client:
        answer = client.request(DescribeTransactionsRequest, 0, transactional_ids=["unknown", "", "x" * 300])
        assert [each.error_code for each in answer.transaction_states] == [105, 42, 42]


def test_administrators_see_transactions_and_producers(client: TransactionClient, topic: str) -> None:
    begun(client, topic, b"a")
    (state,) = client.request(DescribeTransactionsRequest, 0, transactional_ids=[client.name]).transaction_states
    assert (state.error_code, state.transaction_state, state.transaction_timeout_ms) == (0, "Ongoing", 60_000)
    assert (state.producer_id, state.producer_epoch) == client.producer
    assert [(each.topic, each.partitions) for each in state.topics] == [(topic, [0])]
    for filters, is_listed in (
        ({}, True),
        ({"state_filters": ["Ongoing"]}, True),
        ({"state_filters": ["Empty", "Dead"]}, False),
        ({"producer_id_filters": [client.producer[0]]}, True),
        ({"producer_id_filters": [1]}, False),
        ({"duration_filter": 1_000_000}, False),
    ):
        given: dict[str, Any] = {"state_filters": [], "producer_id_filters": [], "duration_filter": -1, **filters}
        answer = client.request(ListTransactionsRequest, 1, **given)
        found = {each.transactional_id: each.transaction_state for each in answer.transaction_states}
        assert (client.name in found) == is_listed
        assert answer.unknown_state_filters == (["Dead"] if "Dead" in given["state_filters"] else [])

    def producers() -> Any:
        wanted = [{"name": topic, "partition_indexes": [0, 4]}, {"name": "no-such", "partition_indexes": [0]}]
        answer = client.request(DescribeProducersRequest, 0, topics=wanted)
        assert [each.error_code for every in answer.topics for each in every.partitions] == [0, 3, 3]
        (found,) = answer.topics[0].partitions[0].active_producers
        return found

    assert producers().current_txn_start_offset == 0
    assert (producers().producer_id, producers().producer_epoch, producers().last_sequence) == (*client.producer, 0)
    assert client.end(True) == 0
    assert producers().current_txn_start_offset == -1


@pytest.fixture
def stranger(kafka_broker: BrokerProcess, kafka_address: str, topic: str) -> Iterator[KafkaSocket]:
    """A client whose user may write to the topic and read ids that begin with `own`."""
    kafka_broker.api("PUT", "/api/users/stranger", {"password": "s", "tags": ""})
    rights = {"configure": "", "write": f"^{topic}$", "read": "^own"}
    kafka_broker.api("PUT", "/api/permissions/%2F/stranger", rights)
    with KafkaSocket(kafka_address) as raw:
        assert raw.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1).error_code == 0
        assert raw.ask(SaslAuthenticateRequest(auth_bytes=b"\0stranger\0s"), 2).error_code == 0
        yield raw
    kafka_broker.api("DELETE", "/api/users/stranger")


def test_ids_and_topics_that_the_user_may_not_read_are_not_shown(
    kafka_address: str, client: TransactionClient, stranger: KafkaSocket, topic: str
) -> None:
    begun(client, topic, b"a")
    other_topic = new_topic(kafka_address, "secret")
    with TransactionClient(kafka_address, f"own-{uuid.uuid4().hex}") as own:
        begun(own, topic, b"b")
        assert own.add(other_topic) == [0]
        asked = build(ListTransactionsRequest, {"state_filters": [], "producer_id_filters": []}, 0)
        listed = {each.transactional_id for each in stranger.ask(asked, 0).transaction_states}
        assert own.name in listed
        assert client.name not in listed
        names = build(DescribeTransactionsRequest, {"transactional_ids": [client.name, own.name]}, 0)
        refused, shown = stranger.ask(names, 0).transaction_states
        assert (refused.error_code, refused.producer_id) == (53, -1)
        assert [each.topic for each in shown.topics] == [topic]


def test_batch_of_a_transaction_needs_the_permission_for_its_id(
    client: TransactionClient, stranger: KafkaSocket, topic: str
) -> None:
    begun(client, topic, b"a")
    partition = {"index": 0, "records": batch(client.producer, 1, [b"forged"])}
    fields = {
        "transactional_id": client.name,
        "acks": -1,
        "timeout_ms": 30_000,
        "topic_data": [{"name": topic, "partition_data": [partition]}],
    }
    answer = stranger.ask(build(ProduceRequest, fields, 9), 9)
    assert answer.responses[0].partition_responses[0].error_code == 53
    assert client.produce(topic, b"b") == 0


def test_producers_are_described_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer has up to 20,000 of them, at some 2 us each."""
    call = MagicMock()
    call.request.topics = [SimpleNamespace(name="a", partition_indexes=[0, 1])]

    def open_all(
        _: object, found: list[tuple[str, list[OpenedPartition]]], __: object, done: Callable[[], None]
    ) -> None:
        for each in found[0][1]:
            each.store = MagicMock()
            each.store.producers().all.return_value = [MagicMock() for _ in range(100)]
        done()

    monkeypatch.setattr(transaction_admin, "open_all", open_all)
    transaction_admin._describe_producers(call)
    ((_, steps),) = (each.args for each in call.connection.server.pace.run.call_args_list)
    assert sum(1 for _ in steps) >= 200
    ((answer,),) = (each.args for each in call.reply.call_args_list)
    assert [len(each["active_producers"]) for each in answer["topics"][0]["partitions"]] == [100, 100]


def test_random_bytes_close_the_connection_and_nothing_else(kafka_broker: BrokerProcess, kafka_address: str) -> None:
    chance = random.Random(7)
    flexible = {24: 3, 25: 3, 26: 3, 28: 3, 22: 2, 61: 0, 65: 0, 66: 0}
    for key, first in flexible.items():
        for _ in range(40):
            with KafkaSocket(kafka_address) as client:
                version = chance.choice([max(first - 1, 0), first])
                body = chance.randbytes(chance.randint(0, 60))
                if chance.random() < 0.3:
                    body = struct.pack(">i", 0x7FFFFFFF) + body
                client.send_frame(key, version, body, b"\0" if version >= first else b"")
                client.socket.shutdown(1)
                client.is_closed()
    with TransactionClient(kafka_address) as client:
        assert client.init() == 0
    assert "Traceback" not in kafka_broker.stderr


def test_many_ids_at_once_are_independent(kafka_address: str, topic: str) -> None:
    """20 producers in threads, each with 5 transactions; every second one is aborted."""

    def run(number: int) -> None:
        with TransactionClient(kafka_address) as client:
            assert client.init() == 0
            for round_number in range(5):
                assert client.add(topic) == [0]
                assert client.produce(topic, b"%d.%d" % (number, round_number)) == 0
                assert client.end((number + round_number) % 2 == 0) == 0

    with ThreadPoolExecutor(20) as pool:
        list(pool.map(run, range(20)))
    with TransactionClient(kafka_address) as client:
        found = client.values(topic)
    expected = {b"%d.%d" % (one, two) for one in range(20) for two in range(5) if (one + two) % 2 == 0}
    assert len(found) == len(expected) and set(found) == expected
