"""The consumer protocol by single requests over sockets."""

from __future__ import annotations

import asyncio
import struct
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from consumer_group_client import DESCRIBE, HEARTBEAT, GroupMember, describe, heartbeat_body, string, varint
from kafka.protocol.admin import DeleteGroupsRequest, DescribeGroupsRequest, ListGroupsRequest
from kafka.protocol.consumer import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)
from kafka.protocol.metadata import MetadataRequest
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest
from kafka_socket import KafkaSocket, address_of, build

from amqpd.kafka_server import coordinator
from amqpd.testing import BrokerProcess, embedded

SETTINGS = {"kafka.port": 0, "kafka.host": "127.0.0.1"}


def ask(socket: KafkaSocket, kind: Any, version: int, **fields: Any) -> Any:
    return socket.ask(build(kind, fields, version), version)


def declare(broker: BrokerProcess, name: str, vhost: str = "%2F") -> None:
    arguments = {"durable": True, "arguments": {"x-queue-type": "stream"}}
    broker.api("PUT", f"/api/queues/{vhost}/{name}", arguments)


def id_of(socket: KafkaSocket, name: str) -> bytes:
    answer = ask(socket, MetadataRequest, 12, topics=[{"name": name, "topic_id": None}])
    topic_id: uuid.UUID = answer.topics[0].topic_id
    return topic_id.bytes


def commit(
    socket: KafkaSocket, group: str, topic: str, offset: int, member: GroupMember | None, version: int = 9
) -> int:
    fields: dict[str, Any] = {"group_id": group, "generation_id_or_member_epoch": -1, "member_id": ""}
    if member is not None:
        fields |= {"generation_id_or_member_epoch": member.epoch, "member_id": member.id}
    partitions = [{"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}]
    answer = ask(socket, OffsetCommitRequest, version, topics=[{"name": topic, "partitions": partitions}], **fields)
    return int(answer.topics[0].partitions[0].error_code)


def fetch(socket: KafkaSocket, group: str, topic: str, member: str | None = None, epoch: int = -1) -> int:
    """Return the committed offset, or -1000 minus the error code of the group."""
    while True:
        topics = [{"name": topic, "partition_indexes": [0]}]
        wanted = {"group_id": group, "member_id": member, "member_epoch": epoch, "topics": topics}
        found = ask(socket, OffsetFetchRequest, 9, groups=[wanted]).groups[0]
        if found.error_code != 14:
            break
    return -1000 - found.error_code if found.error_code else int(found.topics[0].partitions[0].committed_offset)


def log_in(address: str, user: str, password: str) -> KafkaSocket:
    socket = KafkaSocket(address)
    ask(socket, SaslHandshakeRequest, 1, mechanism="PLAIN")
    assert ask(socket, SaslAuthenticateRequest, 2, auth_bytes=f"\0{user}\0{password}".encode()).error_code == 0
    return socket


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("consumer-groups"), settings=SETTINGS) as process:
        declare(process, "t")
        yield process
        assert "Traceback" not in process.stderr


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[KafkaSocket]:
    with KafkaSocket(address_of(broker)) as socket:
        fetch(socket, "warm", "t")  # the offsets are read
        yield socket


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex}"


@pytest.mark.parametrize("version", [0, 1])
def test_member_joins_and_is_described_in_every_version(client: KafkaSocket, group: str, version: int) -> None:
    member = GroupMember(client, group, version=version)
    assert member.join("t", instance="one", rack="r", assignor="range") == 0
    assert member.assignment == {id_of(client, "t"): [0]}
    assert (member.id, member.epoch, member.interval_ms) == ("m", 1, 1000)
    assert member.own() == 0
    described, absent = describe(client, version, group, "absent")
    (shown,) = described.pop("members")
    assert described == {
        "error": 0,
        "message": None,
        "name": group,
        "state": "Stable",
        "epoch": 1,
        "target_epoch": 1,
        "assignor": "range",
    }
    assert shown.pop("type", 1) == 1
    assert shown == {
        "id": "m",
        "instance": "one",
        "rack": "r",
        "epoch": 1,
        "client_id": "tests",
        "host": "/127.0.0.1",
        "names": ["t"],
        "pattern": None,
        "assignment": {"t": [0]},
        "target": {"t": [0]},
    }
    assert (absent["error"], absent["state"]) == (69, "")


def test_version_0_gives_a_member_id_and_version_1_needs_one(client: KafkaSocket, group: str) -> None:
    member = GroupMember(client, group, "", version=0)
    assert member.join("t") == 0
    assert uuid.UUID(member.id)
    assert GroupMember(client, group, "", version=0).heartbeat(1) == 42
    assert GroupMember(client, group, "", version=1).join("t") == 42


def test_two_members_share_the_topics_and_one_leaves(broker: BrokerProcess, client: KafkaSocket, group: str) -> None:
    names = [f"{group}-{number}" for number in range(4)]
    for name in names:
        declare(broker, name)
    first, second = GroupMember(client, group, "one"), GroupMember(client, group, "two")
    assert first.join(*names) == 0 and len(first.assignment or ()) == 4
    assert second.join(*names) == 0 and second.assignment == {}
    owned = first.assignment
    assert first.heartbeat(owned=owned) == 0 and first.epoch == 1
    assert second.heartbeat() == 0 and second.assignment == {}  # nothing was given back yet
    assert first.own() == 0 and first.epoch == 2
    assert second.heartbeat() == 0
    assert len(first.assignment or ()) == len(second.assignment or ()) == 2
    assert not set(first.assignment or ()) & set(second.assignment or ())
    assert first.heartbeat(-1) == 0 and first.epoch == -1
    assert second.heartbeat() == 0 and second.assignment == owned


def test_refused_heartbeats(client: KafkaSocket, group: str) -> None:
    member = GroupMember(client, group)
    assert member.heartbeat(1) == 25
    assert member.join("t", assignor="sticky") == 112
    assert member.join("t", pattern="(") == 128
    assert member.join("t", pattern="a)|(b") == 128
    assert member.join("t", instance="") == 42
    assert member.join("t", rack="") == 42
    assert member.join("t", instance="x" * 256) == 42
    assert member.join("t", timeout_ms=-1) == 42
    assert member.heartbeat(-3) == 42
    assert GroupMember(client, group, "m" * 256).join("t") == 42
    assert GroupMember(client, "").join("t") == 24
    assert group not in listed(client)
    assert member.join("t", instance="one") == 0
    assert member.heartbeat(7) == 110 and "epoch is 1" in (member.message or "")
    other = GroupMember(client, group, "other")
    assert other.join("t", instance="one") == 111
    assert other.heartbeat(1, instance="one") == 82
    assert member.heartbeat(-2) == 0 and member.epoch == -2
    assert other.join("t", instance="one") == 0
    assert member.heartbeat(1, instance="one") == 82
    assert other.join(*[f"n{number}" for number in range(10_001)]) == 44


def test_topics_of_a_pattern_come_and_go(broker: BrokerProcess, client: KafkaSocket, group: str) -> None:
    declare(broker, f"{group}-a")
    member = GroupMember(client, group)
    assert member.join(pattern=f"{group}-[ab]") == 0
    topic_a = id_of(client, f"{group}-a")
    assert member.assignment == {topic_a: [0]} and member.own() == 0
    declare(broker, f"{group}-abc")  # the whole name must match
    declare(broker, f"{group}-b")
    assert member.heartbeat() == 0
    topic_b = id_of(client, f"{group}-b")
    assert member.assignment == {topic_a: [0], topic_b: [0]} and member.own() == 0
    broker.api("DELETE", f"/api/queues/%2F/{group}-a")
    assert member.heartbeat() == 0
    assert member.assignment == {topic_b: [0]}
    epoch = member.epoch
    assert member.own() == 0 and member.epoch == epoch + 1
    assert describe(client, 1, group)[0]["members"][0]["pattern"] == f"{group}-[ab]"


def test_commit_and_fetch_check_member_and_epoch(client: KafkaSocket, group: str) -> None:
    assert commit(client, group, "t", 1, GroupMember(client, group, "absent")) == 69
    assert commit(client, group, "t", 3, None) == 0
    member = GroupMember(client, group)
    assert member.join("t") == 0
    assert commit(client, group, "t", 5, member) == 0
    assert commit(client, group, "t", 6, member, version=8) == 35
    assert commit(client, group, "t", 6, None) == 25
    assert commit(client, group, "t", 6, GroupMember(client, group, "other")) == 25
    assert fetch(client, group, "t", member.id, member.epoch) == 5
    assert fetch(client, group, "t") == 5
    assert fetch(client, group, "t", "other", 1) == -1025
    member.epoch += 1
    assert commit(client, group, "t", 6, member) == 113
    assert fetch(client, group, "t", member.id, member.epoch) == -1113
    assert member.heartbeat(-1) == 0
    assert commit(client, group, "t", 7, None) == 0
    assert fetch(client, group, "t") == 7


def join_classic(client: KafkaSocket, group: str) -> Any:
    fields = {"session_timeout_ms": 6000, "rebalance_timeout_ms": 6000, "protocol_type": "consumer"}
    protocols = [{"name": "range", "metadata": b"\0\0\0\0\0\1\0\1t"}]
    return ask(client, JoinGroupRequest, 3, group_id=group, member_id="", protocols=protocols, **fields)


def listed(client: KafkaSocket, **fields: Any) -> dict[str, tuple[str, str]]:
    groups = ask(client, ListGroupsRequest, 5, **fields).groups
    return {each.group_id: (each.group_type, each.group_state) for each in groups}


def test_group_has_one_protocol_while_it_has_members(client: KafkaSocket, group: str) -> None:
    member = GroupMember(client, group)
    assert member.join("t") == 0
    assert join_classic(client, group).error_code == 23
    fields = {"group_id": group, "generation_id": 1, "member_id": "m"}
    assert ask(client, HeartbeatRequest, 4, **fields).error_code == 25
    assert ask(client, SyncGroupRequest, 5, **fields).error_code == 25
    left = ask(client, LeaveGroupRequest, 5, group_id=group, members=[{"member_id": "m"}])
    assert [each.error_code for each in left.members] == [25]
    assert commit(client, group, "t", 5, member) == 0
    assert member.heartbeat(-1) == 0
    assert listed(client)[group] == ("consumer", "Empty")
    joined = join_classic(client, group)
    assert joined.error_code == 0
    assert member.join("t") == 69
    assert describe(client, 1, group)[0]["error"] == 69
    assert listed(client)[group] == ("classic", "CompletingRebalance")
    ask(client, LeaveGroupRequest, 5, group_id=group, members=[{"member_id": joined.member_id}])
    assert member.join("t") == 0
    assert fetch(client, group, "t", member.id, member.epoch) == 5


def test_groups_are_listed_by_type_and_deleted_without_members(client: KafkaSocket, group: str) -> None:
    member = GroupMember(client, group)
    assert member.join("t") == 0 and commit(client, group, "t", 5, member) == 0
    assert listed(client, types_filter=["Consumer"])[group] == ("consumer", "Stable")
    assert group not in listed(client, types_filter=["classic"])
    assert group in listed(client, states_filter=["stable"])
    assert group not in listed(client, states_filter=["Empty"])
    for version in range(6):
        (found,) = ask(client, DescribeGroupsRequest, version, groups=[group]).groups
        assert (found.error_code, found.group_state) == (0, "Dead")
    (found,) = ask(client, DescribeGroupsRequest, 6, groups=[group]).groups
    assert (found.error_code, found.group_state) == (69, "Dead") and "classic" in found.error_message
    topics = [{"name": name, "partitions": [{"partition_index": 0}]} for name in ("t", "absent")]
    found = ask(client, OffsetDeleteRequest, 0, group_id=group, topics=topics)
    assert [each.partitions[0].error_code for each in found.topics] == [86, 3]
    assert ask(client, DeleteGroupsRequest, 2, groups_names=[group]).results[0].error_code == 68
    assert member.heartbeat(-1) == 0
    assert (
        ask(client, OffsetDeleteRequest, 0, group_id=group, topics=topics[:1]).topics[0].partitions[0].error_code == 0
    )
    assert group not in listed(client)
    assert member.join("t") == 0 and commit(client, group, "t", 5, member) == 0 and member.heartbeat(-1) == 0
    assert ask(client, DeleteGroupsRequest, 2, groups_names=[group]).results[0].error_code == 0
    assert group not in listed(client) and fetch(client, group, "t") == -1


def test_only_topics_that_the_user_may_read_are_assigned(
    broker: BrokerProcess, client: KafkaSocket, group: str
) -> None:
    for name in (f"{group}-open", f"{group}-closed"):
        declare(broker, name)
    broker.api("PUT", "/api/users/reader", {"password": "x", "tags": ""})
    broker.api("PUT", "/api/permissions/%2F/reader", {"configure": "", "write": "", "read": f"^{group}(-open)?$"})
    with log_in(address_of(broker), "reader", "x") as limited:
        member = GroupMember(limited, group)
        assert member.join(f"{group}-open", f"{group}-closed") == 29
        assert member.join(pattern=f"{group}-.*") == 0
        assert member.assignment == {id_of(client, f"{group}-open"): [0]}
        other = GroupMember(client, group, "other")
        assert other.join(pattern=f"{group}-.*") == 0
        assert other.assignment == {id_of(client, f"{group}-closed"): [0]}


def test_groups_of_one_name_in_two_vhosts_are_two(broker: BrokerProcess, client: KafkaSocket, group: str) -> None:
    broker.api("PUT", "/api/vhosts/other")
    broker.api("PUT", "/api/permissions/other/guest", {"configure": ".*", "write": ".*", "read": ".*"})
    declare(broker, "t", "other")
    with log_in(address_of(broker), "other:guest", "guest") as socket:
        first, second = GroupMember(client, group), GroupMember(socket, group)
        assert first.join("t") == second.join("t") == 0
        assert first.epoch == second.epoch == 1
        assert first.assignment != second.assignment == {id_of(socket, "t"): [0]}
    broker.api("DELETE", "/api/vhosts/other")
    assert first.heartbeat() == 0


@pytest.mark.slow
def test_members_join_again_after_a_restart_and_offsets_are_there(tmp_path: Path, group: str) -> None:
    with BrokerProcess(tmp_path, settings=SETTINGS) as broker:
        declare(broker, "t")
        with KafkaSocket(address_of(broker)) as client:
            fetch(client, group, "t")
            member = GroupMember(client, group)
            assert member.join("t") == 0 and commit(client, group, "t", 5, member) == 0
        broker.kill()
        broker.start()
        with KafkaSocket(address_of(broker)) as client:
            assert fetch(client, group, "t") == 5
            member.socket = client
            assert commit(client, group, "t", 6, member) == 25
            assert member.heartbeat() == 25
            assert member.join("t") == 0
            assert fetch(client, group, "t", member.id, member.epoch) == 5


def test_metadata_by_id_with_an_empty_name_finds_the_topic(client: KafkaSocket) -> None:
    topic_id = uuid.UUID(bytes=id_of(client, "t"))
    answer = ask(client, MetadataRequest, 12, topics=[{"name": "", "topic_id": topic_id}])
    assert [(each.name, each.error_code) for each in answer.topics] == [("t", 0)]
    answer = ask(client, MetadataRequest, 12, topics=[{"name": "", "topic_id": None}])
    assert answer.topics[0].error_code == 17


JOINED = heartbeat_body(1, "g", "m", 0, names=["t"], timeout_ms=1000, owned={b"x" * 16: [0, 1]})


@pytest.mark.parametrize("size", range(len(JOINED)))
def test_heartbeat_that_ends_too_early_closes_the_connection(client: KafkaSocket, size: int) -> None:
    client.send_frame(HEARTBEAT, 1, JOINED[:size], b"\0")
    assert client.is_closed()


HUGE = b"\xff\xff\xff\xff\x0f"
_BEGIN = string("g") + string("m") + struct.pack(">i", 0) + b"\0\0" + struct.pack(">i", 1000)


@pytest.mark.parametrize(
    ("key", "body"),
    [
        (HEARTBEAT, b"\0"),
        (HEARTBEAT, HUGE),
        (HEARTBEAT, varint(3) + b"\xff\xfe" + JOINED[2:]),
        (HEARTBEAT, _BEGIN + HUGE),
        (HEARTBEAT, _BEGIN + b"\0\0\0" + HUGE),
        (HEARTBEAT, _BEGIN + b"\0\0\0\2" + b"x" * 16 + HUGE),
        (HEARTBEAT, _BEGIN + b"\0" * 4 + HUGE),
        (HEARTBEAT, heartbeat_body(1, "g", "m", 0, owned={b"x" * 16: list(range(100_001))})),
        (HEARTBEAT, heartbeat_body(1, "g", "m", 0, names=["x" * 100] * 11_000)),
        (DESCRIBE, b""),
        (DESCRIBE, b"\0\0\0"),
        (DESCRIBE, HUGE + b"\0\0"),
        (DESCRIBE, varint(1002) + b"".join(string(f"g{number}") for number in range(1001)) + b"\0\0"),
    ],
)
def test_hostile_bytes_close_the_connection(client: KafkaSocket, key: int, body: bytes) -> None:
    client.send_frame(key, 1, body, b"\0")
    assert client.is_closed()


async def test_group_that_grows_above_the_memory_of_all_groups_loses_its_members(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with embedded(tmp_path, settings=SETTINGS) as server:
        ports = {each.protocol: each.port for each in server.listeners}
        url = f"amqp://guest:guest@127.0.0.1:{ports['amqp']}/"
        await asyncio.to_thread(grow_above_the_limit, url, f"127.0.0.1:{ports['kafka']}", monkeypatch)


def grow_above_the_limit(url: str, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        for name in ("one", "two"):
            connection.channel().queue_declare(name, durable=True, arguments={"x-queue-type": "stream"})
    with KafkaSocket(address) as client:
        fetch(client, "g", "one")
        member = GroupMember(client, "g")
        monkeypatch.setattr(coordinator, "METADATA_BYTES_MAX", 600)
        assert member.join(pattern="one") == 0
        assert member.heartbeat(pattern=".*") == 44
        assert member.heartbeat() == 25
        assert member.join(pattern="one") == 0
        monkeypatch.setattr(coordinator, "METADATA_BYTES_MAX", 300)
        assert GroupMember(client, "h").join(pattern="one") == 44
        assert set(listed(client)) == {"g"}
