"""Share groups of streams: their states, offsets and waits, also over kills."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pika
import pytest
from kafka import KafkaProducer
from kafka.protocol.admin import DeleteGroupsRequest, ListGroupsRequest
from kafka_socket import KafkaSocket, address_of, until
from share_client import ACCEPT, DESCRIBE, FETCH, REJECT, RELEASE, ShareMember

from amqpd.broker.vhost.vhost import VHost
from amqpd.kafka_server import pace, share_groups, topics
from amqpd.kafka_server.connection import Call
from amqpd.kafka_server.pace import Steps
from amqpd.kafka_server.request_reader import BodyWriter, RequestReader
from amqpd.kafka_server.share_stream import ShareStreams
from amqpd.kafka_server.topics import PartitionedTopic, TopicPartition
from amqpd.testing import BrokerProcess, BrokerThread

LOCK_MS = 1000
SETTINGS = {
    "kafka.port": 0,
    "kafka.host": "127.0.0.1",
    "kafka.share_lock_ms": LOCK_MS,
    "kafka.share_auto_offset_reset": "earliest",
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("share"), settings=SETTINGS) as found:
        yield found
        assert "Traceback" not in found.stderr


def stream(broker: BrokerProcess, *bodies: bytes) -> str:
    """Declare a stream with these messages."""
    name = f"s-{uuid.uuid4()}"
    publish(broker, name, *bodies)
    return name


def publish(broker: BrokerProcess | BrokerThread, name: str, *bodies: bytes) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare(name, durable=True, arguments={"x-queue-type": "stream"})
    for body in bodies:
        channel.basic_publish("", name, body)
    connection.close()


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


def test_members_share_the_records_and_each_group_has_its_own_state(broker: BrokerProcess) -> None:
    name = stream(broker, *numbers(0, 30))
    for group in ("one", "two"):
        with ShareMember(address_of(broker), group, name) as a, ShareMember(address_of(broker), group, name) as b:
            mine = a.take(10)
            others = b.take(20)
            assert [each.value for each in (*mine, *others)] == numbers(0, 30)
            a.end(name, mine, ACCEPT)
            b.end(name, others, ACCEPT)
            assert a.fetch().records == []


def test_a_batch_of_a_kafka_producer_is_shared_by_its_records(broker: BrokerProcess) -> None:
    name = stream(broker)
    producer = KafkaProducer(bootstrap_servers=address_of(broker), linger_ms=200, compression_type="gzip")
    for number in range(50):
        producer.send(name, b"%d" % number, headers=[("h", b"v")])
    producer.close()
    with ShareMember(address_of(broker), "g", name) as a, ShareMember(address_of(broker), "g", name) as b:
        mine, others = a.take(20), b.take(30)
        assert [each.value for each in (*mine, *others)] == numbers(0, 50)
        assert others[0].headers == {"h": b"v"}


def test_a_batch_is_in_a_response_once_if_more_of_its_records_are_released_meanwhile(broker: BrokerProcess) -> None:
    name = stream(broker)
    producer = KafkaProducer(bootstrap_servers=address_of(broker), linger_ms=60_000)
    for number in range(4):
        producer.send(name, b"%d" % number)
    producer.close()
    with ShareMember(address_of(broker), "g", name) as member:
        records = member.take(4)
        member.end(name, records[1:2], RELEASE)
        # The last record is released when that is synced, after the second one was acquired again.
        answer = member.fetch({name: [(records[3].offset, records[3].offset, RELEASE)]}, wait_ms=20_000)
        assert answer.values == [b"1", b"3"]


def test_a_waiting_fetch_is_answered_when_a_record_arrives(broker: BrokerProcess) -> None:
    name = stream(broker)
    with ShareMember(address_of(broker), "g", name) as member:
        assert member.fetch().records == []
        member.send_fetch(wait_ms=60_000)
        publish(broker, name, b"now")
        assert member.receive(FETCH).values == [b"now"]


def test_released_and_expired_records_come_again_until_they_are_archived(broker: BrokerProcess) -> None:
    name = stream(broker, b"poison", b"next")
    with ShareMember(address_of(broker), "g", name) as member, ShareMember(address_of(broker), "g", name) as other:
        for count in (1, 2, 3):
            (record,) = member.take(1)
            assert (record.value, record.count) == (b"poison", count)
            member.end(name, [record], RELEASE)
        (record,) = member.take(1)
        (following,) = other.take(1)
        other.end(name, [following], ACCEPT)
        (last,) = other.take(1)  # after the lock of `member` has expired
        assert (last.value, last.count) == (b"poison", 5)
        assert member.acknowledge({name: [(record.offset, record.offset, ACCEPT)]}).ack_errors == {name: 121}
        other.end(name, [last], RELEASE)
        assert other.fetch().records == []


def test_the_first_of_two_responses_has_no_lower_offsets_after_higher_ones(broker: BrokerProcess) -> None:
    name = stream(broker, *numbers(0, 4))
    with ShareMember(address_of(broker), "g", name) as member:
        first = member.take(2)
        answer = member.fetch({name: [(first[0].offset, first[1].offset, RELEASE)]}, wait_ms=20_000)
        values = list(answer.values)
        while len(values) < 4:
            values += member.fetch(wait_ms=20_000).values
        assert sorted(value or b"" for value in values) == numbers(0, 4)


@pytest.mark.parametrize("how", ["socket", "session"])
def test_a_session_that_ends_releases_its_records(broker: BrokerProcess, how: str) -> None:
    name = stream(broker, b"a", b"b")
    with ShareMember(address_of(broker), "g", name) as member:
        a, _ = member.take(2)
        if how == "socket":
            member.end(name, [a], ACCEPT)
            member.socket.close()
        else:
            assert member.acknowledge({name: [(a.offset, a.offset, ACCEPT)]}, epoch=-1).ack_errors == {}
        with ShareMember(address_of(broker), "g", name) as other:
            assert [(each.value, each.count) for each in other.take(1)] == [(b"b", 2)]


def test_a_deleted_stream_answers_the_fetch_and_a_new_one_begins_anew(broker: BrokerProcess) -> None:
    name = stream(broker, b"old")
    with ShareMember(address_of(broker), "g", name) as member:
        member.end(name, member.take(1), ACCEPT)
        member.send_fetch(wait_ms=60_000)
        broker.ctl("delete_queue", name)
        assert member.receive(FETCH).errors == {name: 100}
    publish(broker, name, b"new")
    with ShareMember(address_of(broker), "g", name) as member:
        assert [each.value for each in member.take(1)] == [b"new"]


def test_a_partition_with_an_error_is_tried_again_until_the_client_forgets_it(broker: BrokerProcess) -> None:
    name = stream(broker, b"old")
    with ShareMember(address_of(broker), "g", name) as member:
        member.end(name, member.take(1), ACCEPT)
        broker.ctl("delete_queue", name)
        for _ in range(2):
            assert member.fetch(wait_ms=60_000).errors == {name: 100}
        answer = member.fetch(forget=[name])
        assert (answer.error, answer.errors) == (0, {})


def test_a_member_that_was_cut_off_while_its_streams_were_prepared_has_them_prepared_when_it_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare, prepared, cut = share_groups._prepare, [], []

    def recorded(_: ShareStreams, vhost: VHost, group: str, partition: TopicPartition) -> None:
        prepared.append(partition.topic.name)

    def cut_once(call: Call, group: str, topic: PartitionedTopic) -> Steps[None]:
        if not cut:
            cut.append(True)
            call.connection.close("the test")
        yield from prepare(call, group, topic)

    monkeypatch.setattr(ShareStreams, "prepare", recorded)
    monkeypatch.setattr(share_groups, "_prepare", cut_once)
    with BrokerThread(tmp_path, settings={"kafka.port": 0}) as broker:
        with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
            for name in ("a", "b"):
                connection.channel().queue_declare(name, durable=True, arguments={"x-queue-type": "stream"})
        with ShareMember(broker.kafka_bootstrap, "g", "a", "b") as first:
            monkeypatch.setattr(pace, "SLICE_S", 0.0)  # each step has a turn of its own
            with pytest.raises(ConnectionError):
                first.heartbeat(0, ["a", "b"])
        with ShareMember(broker.kafka_bootstrap, "g", "a", "b") as second:
            second.id = first.id
            assert second.heartbeat(0, ["a", "b"])[0] == 0
    assert sorted(prepared) == ["a", "b"]


def test_after_a_kill_only_unacknowledged_records_come_again(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, settings=SETTINGS) as broker:
        name = stream(broker, *numbers(0, 100))
        with ShareMember(address_of(broker), "g", name) as member:
            records = member.take(60)
            member.end(name, records[10:50], ACCEPT)
            member.end(name, records[:5], RELEASE)
            member.end(name, records[5:8], REJECT)
            broker.kill()
        broker.start()
        with ShareMember(address_of(broker), "g", name) as member:
            records = member.take(57)
            assert [each.value for each in records] == [*numbers(0, 5), *numbers(8, 10), *numbers(50, 100)]
            assert [each.count for each in records[:8]] == [2] * 8
            member.end(name, records, ACCEPT)
            assert member.fetch().records == []
        assert "Traceback" not in broker.stderr


@pytest.mark.slow
def test_a_member_that_joins_begins_its_group_at_that_time(tmp_path: Path) -> None:
    settings = SETTINGS | {"kafka.share_auto_offset_reset": "latest"}
    with BrokerProcess(tmp_path, settings=settings) as broker:
        name = stream(broker, b"before")
        with ShareMember(address_of(broker), "g", name) as member:
            assert member.heartbeat(0, [name])[0] == 0
            publish(broker, name, b"after")
            broker.kill()
            broker.start()
        with ShareMember(address_of(broker), "g", name) as member:
            assert [each.value for each in member.take(1)] == [b"after"]


def test_a_member_that_joins_begins_with_a_new_stream_while_another_still_uses_the_deleted_one(tmp_path: Path) -> None:
    settings = SETTINGS | {"kafka.share_auto_offset_reset": "latest"}
    with BrokerProcess(tmp_path, settings=settings) as broker:
        name = stream(broker, b"before")
        with ShareMember(address_of(broker), "g", name) as old:
            assert old.heartbeat(0, [name])[0] == 0
            publish(broker, name, b"old")
            assert [each.value for each in old.take(1)] == [b"old"]
            with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
                connection.channel().queue_delete(name)
            publish(broker, name, b"before")
            with ShareMember(address_of(broker), "g", name) as new:
                assert new.heartbeat(0, [name])[0] == 0
                publish(broker, name, b"after", b"last")
                assert new.take(1)[0].value == b"after"


# -- offsets and descriptions


def text(*texts: str) -> bytes:
    writer = BodyWriter(True)
    for each in texts:
        writer.string(each)
    return bytes(writer.data)


def int16(reader: RequestReader) -> int:
    return int.from_bytes(reader.take(2), "big", signed=True)


def offsets(member: ShareMember) -> tuple[int, Mapping[str, tuple[int, int]]]:
    """Return the error, and start offset and lag by topic."""
    reader = member.ask(90, 1, b"\x02" + text(member.group) + b"\0\0\0")
    reader.int32()
    assert reader.count(10) == 1
    assert reader.text() == member.group
    found = {}
    for _ in range(reader.count(10)):
        name = reader.text()
        assert reader.uuid() == member.names[name]
        assert reader.count(10) == 1
        assert reader.int32() == 0
        start = reader.int64()
        reader.int32()
        found[name] = (start, reader.int64())
        assert int16(reader) == 0
        reader.nullable_text()
        reader.end_struct()
        reader.end_struct()
    return int16(reader), found


def alter(member: ShareMember, name: str, offset: int) -> tuple[int, list[int]]:
    body = text(member.group) + b"\x02" + text(name) + b"\x02" + bytes(4) + offset.to_bytes(8, "big", signed=True)
    reader = member.ask(91, 0, body + b"\0\0\0")
    reader.int32()
    error = int16(reader)
    reader.nullable_text()
    errors: list[int] = []
    for _ in range(reader.count(10)):
        reader.text()
        reader.uuid()
        for _ in range(reader.count(10)):
            assert reader.int32() == 0
            errors.append(int16(reader))
            reader.nullable_text()
            reader.end_struct()
        reader.end_struct()
    return error, errors


def delete(member: ShareMember, name: str) -> tuple[int, list[int]]:
    reader = member.ask(92, 0, text(member.group) + b"\x02" + text(name) + b"\0\0")
    reader.int32()
    error = int16(reader)
    reader.nullable_text()
    errors: list[int] = []
    for _ in range(reader.count(10)):
        reader.text()
        reader.uuid()
        errors.append(int16(reader))
        reader.nullable_text()
        reader.end_struct()
    return error, errors


def described(member: ShareMember) -> tuple[int, str, RequestReader]:
    """Return error and state of the group, and a reader of its members."""
    reader = member.ask(DESCRIBE, 1, b"\x02" + text(member.group) + b"\0\0")
    reader.int32()
    assert reader.count(10) == 1
    error = int16(reader)
    reader.nullable_text()
    assert reader.text() == member.group
    name = reader.text()
    reader.int32()
    reader.int32()
    assert reader.text() == "simple"
    return error, name, reader


def state(member: ShareMember) -> tuple[int, str, int]:
    """Return error, state and number of members of the group."""
    error, name, reader = described(member)
    return error, name, reader.count(10)


def test_a_member_is_described_with_its_address_as_in_other_groups(broker: BrokerProcess) -> None:
    name = stream(broker)
    with ShareMember(address_of(broker), f"g-{name}", name) as member:
        assert member.heartbeat(0, [name])[0] == 0
        _, _, reader = described(member)
        assert reader.count(10) == 1
        assert (reader.text(), reader.nullable_text(), reader.int32() > 0) == (member.id, None, True)
        reader.text()
        assert reader.text() == "/127.0.0.1"


def test_offsets_are_described_altered_and_deleted(broker: BrokerProcess) -> None:
    name = stream(broker, *numbers(0, 10))
    with ShareMember(address_of(broker), f"g-{uuid.uuid4()}", name) as member:
        assert offsets(member) == (69, {})
        assert alter(member, name, 5) == (69, [])
        assert state(member) == (69, "Dead", 0)
        assert member.heartbeat(0, [name])[0] == 0
        assert state(member) == (0, "Stable", 1)
        records = member.take(6)
        member.end(name, records[:4], ACCEPT)
        assert offsets(member) == (0, {name: (4, 6)})
        assert alter(member, name, 5) == (68, [])
        assert member.heartbeat(-1)[0] == 0
        assert state(member) == (0, "Empty", 0)
        assert alter(member, name, -3) == (0, [42])
        assert alter(member, "absent", 1) == (0, [3])
        assert alter(member, name, 8) == (0, [68])  # the session may still have acknowledgements
        assert member.acknowledge({}, epoch=-1).error == 0
        assert alter(member, name, 8) == (0, [0])
        assert offsets(member) == (0, {name: (8, 2)})
        member.epoch = 0
        assert [each.value for each in member.take(2)] == [b"8", b"9"]
        assert delete(member, name) == (0, [68])  # a session without a member
        assert member.acknowledge({}, epoch=-1).error == 0
        assert delete(member, name) == (0, [0])
        assert offsets(member) == (69, {})


def listed(broker: BrokerProcess, **filters: list[str]) -> dict[str, str]:
    with KafkaSocket(address_of(broker)) as client:
        request = ListGroupsRequest(**{"states_filter": [], "types_filter": [], **filters}, version=5)
        answer = client.ask(request, 5)
    return {each.group_id: each.group_state for each in answer.groups if each.group_type == "share"}


def test_a_request_about_too_many_partitions_closes_the_connection(broker: BrokerProcess) -> None:
    one_topic = b"\x02t" + b"\xf1\x2e" + b"\0\0\0\0" * 6000 + b"\0"  # 6,000 partitions
    with ShareMember(address_of(broker), "g") as member, pytest.raises(ConnectionError):
        member.ask(90, 1, b"\x02" + text("g") + b"\x03" + one_topic * 2 + b"\0\0")


def test_share_groups_are_listed_and_deleted(broker: BrokerProcess) -> None:
    name = stream(broker, b"a")
    group = f"g-{uuid.uuid4()}"
    with ShareMember(address_of(broker), group, name) as member:
        assert group not in listed(broker)
        member.heartbeat(0, [name])
        member.take(1)
        assert listed(broker, types_filter=["share"])[group] == "Stable"
        assert group not in listed(broker, types_filter=["classic"])
        with KafkaSocket(address_of(broker)) as client:
            wanted = DeleteGroupsRequest(groups_names=[group], version=2)
            assert client.ask(wanted, 2).results[0].error_code == 68
            member.heartbeat(-1)
            assert listed(broker, states_filter=["Empty"])[group] == "Empty"
            assert client.ask(wanted, 2).results[0].error_code == 0
            assert client.ask(wanted, 2).results[0].error_code == 69
    assert group not in listed(broker)


def test_the_session_of_a_deleted_share_group_writes_nothing(broker: BrokerProcess) -> None:
    name = stream(broker, b"a", b"b")
    group = f"g-{uuid.uuid4()}"
    with (
        ShareMember(address_of(broker), group, name) as member,
        ShareMember(address_of(broker), f"g-{uuid.uuid4()}", name) as other,
    ):
        member.heartbeat(0, [name])
        records = member.take(1)
        member.heartbeat(-1)
        with KafkaSocket(address_of(broker)) as client:
            wanted = DeleteGroupsRequest(groups_names=[group], version=2)
            assert client.ask(wanted, 2).results[0].error_code == 0
        assert member.fetch({name: [(records[0].offset, records[0].offset, ACCEPT)]}).error == 122
        assert member.acknowledge({}, epoch=-1).error == 122
        other.heartbeat(0, [name])
        other.end(name, other.take(1), ACCEPT)  # written after all that the first member may have written
    assert group not in listed(broker)


def test_a_share_group_is_deleted_with_a_state_that_is_still_being_written(broker: BrokerProcess) -> None:
    old, new = stream(broker, b"a"), stream(broker, b"b")
    with (
        ShareMember(address_of(broker), f"g-{uuid.uuid4()}", old) as member,
        ShareMember(address_of(broker), f"g-{uuid.uuid4()}", old) as other,
    ):
        member.end(old, member.take(1), ACCEPT)
        # All three requests are handled in one turn of the event loop, before the state of `new` is synced.
        member.socket.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
        member.send_heartbeat(0, [new])
        member.send_heartbeat(-1)
        wanted = DeleteGroupsRequest(groups_names=[member.group], version=2)
        member.socket.send(wanted, 2)
        member.socket.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 0)
        assert [member.receive_heartbeat()[0] for _ in range(2)] == [0, 0]
        assert member.socket.decode(wanted, 2, member.socket.receive()).results[0].error_code == 0
        other.end(old, other.take(1), ACCEPT)  # written after all that the first member may have written
        assert member.group not in listed(broker)


def test_a_member_that_joins_while_its_share_group_is_deleted_begins_anew(tmp_path: Path) -> None:
    settings = {"kafka.port": 0, "kafka.share_auto_offset_reset": "earliest"}
    with BrokerThread(tmp_path, settings=settings) as broker:
        publish(broker, "s", b"first")
        with ShareMember(broker.kafka_bootstrap, "g", "s") as member:
            member.end("s", member.take(1), ACCEPT)
            assert member.acknowledge({}, epoch=-1).error == 0
            member.heartbeat(-1)
            # Both requests are handled in one turn of the event loop, before the removal is synced.
            member.socket.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
            wanted = DeleteGroupsRequest(groups_names=["g"], version=2)
            member.socket.send(wanted, 2)
            member.send_heartbeat(0, ["s"])
            member.socket.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 0)
            assert member.socket.decode(wanted, 2, member.socket.receive()).results[0].error_code == 0
            assert member.receive_heartbeat()[0] == 0
            assert state(member)[1] == "Stable"
            assert offsets(member)[1]["s"][0] == 0


def test_the_session_of_a_deleted_stream_does_not_overwrite_the_state_of_a_new_one(tmp_path: Path) -> None:
    settings = {"kafka.port": 0, "kafka.share_auto_offset_reset": "earliest"}
    with BrokerThread(tmp_path, settings=settings) as broker:
        address = broker.kafka_bootstrap
        publish(broker, "s", b"old")
        with ShareMember(address, "g", "s") as old:
            old.take(1)
            with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
                connection.channel().queue_delete("s")
            publish(broker, "s", b"new", b"next")
            with ShareMember(address, "g", "s") as new:
                new.end("s", new.take(1), ACCEPT)
                assert new.acknowledge({}, epoch=-1).error == 0
            assert old.acknowledge({}, epoch=-1).error == 0  # releases the record of the deleted stream
            with ShareMember(address, "other", "s") as other:
                other.end("s", other.take(1), ACCEPT)  # written after all that the first member may have written
        with ShareMember(address, "g", "s") as member:
            assert [each.value for each in member.take(1)] == [b"next"]


def test_a_stream_that_is_opened_after_its_share_group_was_deleted_has_no_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_queue, remove_group, waiting = topics.open_queue, ShareStreams.remove_group, []

    def open_later(queue: Any, then: Any) -> None:
        if queue.name == "late":
            waiting.append(partial(open_queue, queue, then))
        else:
            open_queue(queue, then)

    def remove_then_open(self: Any, *arguments: Any) -> None:
        remove_group(self, *arguments)
        for call in waiting:
            call()

    monkeypatch.setattr(topics, "open_queue", open_later)
    monkeypatch.setattr(ShareStreams, "remove_group", remove_then_open)
    with BrokerThread(tmp_path, settings={"kafka.port": 0}) as broker:
        for name in ("late", "early"):
            publish(broker, name)
        with ShareMember(broker.kafka_bootstrap, "g", "early") as member:
            assert member.heartbeat(0, ["early", "late"])[0] == 0
            member.heartbeat(-1)
            until(lambda: waiting and state(member)[1] == "Empty")
            wanted = DeleteGroupsRequest(groups_names=["g"], version=2)
            assert member.socket.ask(wanted, 2).results[0].error_code == 0
            assert state(member)[0] == 69
