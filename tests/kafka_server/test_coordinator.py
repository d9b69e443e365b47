"""Consumer groups and their committed offsets by single requests over sockets."""

from __future__ import annotations

import asyncio
import base64
import threading
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Self

import pika
import pytest
from consumer_group_client import GroupMember
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
from kafka.protocol.metadata import FindCoordinatorRequest
from kafka.protocol.producer import TxnOffsetCommitRequest
from kafka_socket import KafkaSocket, build

from amqpd.broker.session import Session
from amqpd.broker.vhost.declare import delete_queue
from amqpd.broker.vhost.vhost import VHost
from amqpd.errors import NotFound
from amqpd.kafka_server import committed_offsets, pace, topics
from amqpd.kafka_server.committed_offsets import ENTRY_BYTES, GROUP_BYTES, CommittedOffset, CommittedOffsets, OffsetKey
from amqpd.kafka_server.coordinator import OFFSETS_KEPT_MS, SWEEP_STEPS, GroupCoordinator, GroupEntry
from amqpd.kafka_server.groups import JoinRequest
from amqpd.kafka_server.server import KafkaFrontEnd
from amqpd.testing import BrokerFixture, BrokerProcess, BrokerThread, embedded

SETTINGS = {"kafka.port": 0, "kafka.host": "127.0.0.1"}


def declare(broker: BrokerFixture, name: str) -> None:
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        connection.channel().queue_declare(name, durable=True, arguments={"x-queue-type": "stream"})


def delete(broker: BrokerProcess, name: str) -> None:
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        connection.channel().queue_delete(name)


class Client:
    """A client that asks in plain values, and asks again while the broker reads its offsets."""

    def __init__(self, broker: BrokerFixture) -> None:
        self.socket = KafkaSocket(broker.kafka_bootstrap)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def ask(self, kind: Any, version: int, **fields: Any) -> Any:
        return self.socket.ask(build(kind, fields, version), version)

    def send(self, kind: Any, version: int, **fields: Any) -> None:
        self.socket.send(build(kind, fields, version), version)

    def receive(self, kind: Any, version: int) -> Any:
        return self.socket.decode(kind(version=version), version, self.socket.receive())

    def join(self, group: str, member: str = "", version: int = 7, **fields: Any) -> Any:
        values = {
            "group_id": group,
            "session_timeout_ms": 6000,
            "rebalance_timeout_ms": 6000,
            "member_id": member,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b"\0\0\0\0\0\1\0\1t"}],
            **fields,
        }
        return self.ask(JoinGroupRequest, version, **values)

    def member(self, group: str, **fields: Any) -> Any:
        """Join with the two steps of a new member."""
        first = self.join(group, **fields)
        assert first.error_code == 79
        return self.join(group, first.member_id, **fields)

    def sync(self, group: str, member: str, generation: int, assignments: dict[str, bytes] | None = None) -> Any:
        pairs = [{"member_id": name, "assignment": data} for name, data in (assignments or {}).items()]
        return self.ask(
            SyncGroupRequest, 3, group_id=group, generation_id=generation, member_id=member, assignments=pairs
        )

    def commit(
        self,
        group: str,
        topic: str,
        offset: int,
        generation: int = -1,
        member: str = "",
        metadata: str = "",
        at: int = 0,
    ) -> int:
        partition = {"partition_index": at, "committed_offset": offset, "committed_metadata": metadata}
        answer = self.ask(
            OffsetCommitRequest,
            7,
            group_id=group,
            generation_id_or_member_epoch=generation,
            member_id=member,
            topics=[{"name": topic, "partitions": [partition]}],
        )
        return int(answer.topics[0].partitions[0].error_code)

    def fetch(self, group: str, topic: str) -> tuple[int, str]:
        """Return offset and metadata. A broker that reads its offsets is asked again."""
        while True:
            topics = [{"name": topic, "partition_indexes": [0]}]
            answer = self.ask(OffsetFetchRequest, 7, group_id=group, topics=topics, require_stable=True)
            if answer.error_code != 14:
                break
        assert answer.error_code == 0
        partition = answer.topics[0].partitions[0]
        assert partition.error_code == 0
        return partition.committed_offset, partition.metadata


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("groups"), settings=SETTINGS) as process:
        declare(process, "t")
        yield process
        assert "Traceback" not in process.stderr


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[Client]:
    client = Client(broker)
    client.fetch("warm", "t")  # the offsets are read
    yield client
    client.socket.close()


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex}"


@pytest.mark.parametrize("version", range(6))
def test_this_broker_is_the_coordinator_of_groups_and_transactions(
    client: Client, broker: BrokerProcess, version: int
) -> None:
    host, port = broker.kafka_bootstrap.rsplit(":", 1)
    if version < 4:
        answer = client.ask(FindCoordinatorRequest, version, key="g")
        assert (answer.error_code, answer.host, answer.port) == (0, host, int(port))
        if version >= 1:
            assert client.ask(FindCoordinatorRequest, version, key="g", key_type=1).error_code == 0
            assert client.ask(FindCoordinatorRequest, version, key="g", key_type=2).error_code == 42
        return
    answer = client.ask(FindCoordinatorRequest, version, key_type=0, coordinator_keys=["g", "h"])
    assert [(each.key, each.host, each.port) for each in answer.coordinators] == [
        ("g", host, int(port)),
        ("h", host, int(port)),
    ]
    for key_type, error in ((1, 0), (2, 42)):
        answer = client.ask(FindCoordinatorRequest, version, key_type=key_type, coordinator_keys=["g"])
        assert answer.coordinators[0].error_code == error


@pytest.mark.parametrize("version", range(10))
def test_member_joins_syncs_and_leaves_in_every_version(client: Client, group: str, version: int) -> None:
    joined = client.member(group, version=version) if version >= 4 else client.join(group, version=version)
    assert joined.error_code == 0 and joined.generation_id == 1 and joined.leader == joined.member_id
    assert [each.member_id for each in joined.members] == [joined.member_id]
    for sync in range(6):
        pairs = [{"member_id": joined.member_id, "assignment": b"mine"}]
        answer = client.ask(
            SyncGroupRequest, sync, group_id=group, generation_id=1, member_id=joined.member_id, assignments=pairs
        )
        assert answer.error_code == 0 and bytes(answer.assignment) == b"mine"
    for beat in range(5):
        answer = client.ask(HeartbeatRequest, beat, group_id=group, generation_id=1, member_id=joined.member_id)
        assert answer.error_code == 0
    if version < 3:
        assert client.ask(LeaveGroupRequest, version, group_id=group, member_id=joined.member_id).error_code == 0
        assert client.ask(LeaveGroupRequest, version, group_id=group, member_id=joined.member_id).error_code == 25
    else:
        leave = min(version, 5)
        members = [{"member_id": joined.member_id}, {"member_id": "nobody"}]
        left = client.ask(LeaveGroupRequest, leave, group_id=group, members=members)
        assert [each.error_code for each in left.members] == [0, 25]


def test_two_members_rebalance_and_one_that_dies_is_removed(broker: BrokerProcess, client: Client, group: str) -> None:
    first = client.member(group)
    client.sync(group, first.member_id, 1, {first.member_id: b"all"})
    other = Client(broker)
    given = other.join(group)
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(other.join(group, given.member_id)))
    thread.start()
    while True:
        beat = client.ask(HeartbeatRequest, 3, group_id=group, generation_id=1, member_id=first.member_id)
        if beat.error_code == 27:
            break
    again = client.join(group, first.member_id)
    thread.join()
    assert again.generation_id == answers[0].generation_id == 2
    assert {each.member_id for each in again.members} == {first.member_id, given.member_id}
    assert client.sync(group, first.member_id, 2, {given.member_id: b"half"}).error_code == 0
    assert bytes(other.sync(group, given.member_id, 2).assignment) == b"half"
    other.socket.close()
    while True:  # its session ends
        beat = client.ask(HeartbeatRequest, 3, group_id=group, generation_id=2, member_id=first.member_id)
        if beat.error_code == 27:
            break
    last = client.join(group, first.member_id)
    assert [each.member_id for each in last.members] == [first.member_id]


def test_join_of_a_closed_connection_is_dropped(broker: BrokerProcess, client: Client, group: str) -> None:
    other = Client(broker)
    other.send(
        JoinGroupRequest,
        3,
        group_id=group,
        session_timeout_ms=6000,
        rebalance_timeout_ms=6000,
        protocol_type="consumer",
        protocols=[{"name": "range", "metadata": b""}],
    )
    other.socket.close()
    joined = client.member(group)  # the group goes on without the lost one
    assert joined.error_code == 0
    assert [each.member_id for each in joined.members] == [joined.member_id]


def test_static_member_keeps_its_assignment_and_fences_the_earlier_one(client: Client, group: str) -> None:
    first = client.join(group, group_instance_id="one")
    client.sync(group, first.member_id, 1, {first.member_id: b"kept"})
    second = client.join(group, group_instance_id="one", version=9)
    assert second.error_code == 0 and second.generation_id == 1 and second.skip_assignment
    assert bytes(client.sync(group, second.member_id, 1).assignment) == b"kept"
    fields = {"group_id": group, "generation_id": 1, "member_id": first.member_id, "group_instance_id": "one"}
    assert client.ask(HeartbeatRequest, 4, **fields).error_code == 82


def test_joins_with_invalid_fields_are_refused(client: Client, group: str) -> None:
    assert client.join("").error_code == 24
    assert client.join("g" * 256).error_code == 24
    assert client.join(group, session_timeout_ms=5999).error_code == 26
    assert client.join(group, session_timeout_ms=30 * 60_000 + 1).error_code == 26
    assert client.join(group, "nobody").error_code == 25
    assert client.join(group, protocols=[]).error_code == 23
    assert client.join(group, group_instance_id="").error_code == 42
    many = [{"name": f"p{number}", "metadata": b""} for number in range(101)]
    assert client.join(group, protocols=many).error_code == 44
    large = [{"name": "range", "metadata": b"x" * (256 * 1024)}]
    assert client.join(group, protocols=large).error_code == 44
    assert client.sync(group, "nobody", 1).error_code == 25
    assert group not in listed(client)


def listed(client: Client) -> dict[str, str]:
    answer = client.ask(ListGroupsRequest, 4)
    return {each.group_id: each.group_state for each in answer.groups}


def test_offsets_are_committed_by_members_and_by_simple_consumers_of_empty_groups(client: Client, group: str) -> None:
    assert client.fetch(group, "t") == (-1, "")
    assert client.commit(group, "t", 5, metadata="some text é") == 0
    assert client.fetch(group, "t") == (5, "some text é")
    joined = client.member(group)
    client.sync(group, joined.member_id, 1, {joined.member_id: b""})
    assert client.commit(group, "t", 6) == 25
    assert client.commit(group, "t", 6, 7, joined.member_id) == 22
    assert client.commit(group, "t", 6, 1, "nobody") == 25
    assert client.commit(group, "t", 6, 1, joined.member_id) == 0
    assert client.fetch(group, "t") == (6, "")


def test_invalid_commits_are_refused_and_change_nothing(client: Client, group: str) -> None:
    assert client.commit(group, "missing", 5) == 3
    assert client.commit(group, "t", 5, at=1) == 3
    assert client.commit(group, "t", 5, metadata="é" * 4096) == 0
    assert client.commit(group, "t", 6, metadata="x" * 4097) == 12
    assert client.commit(group + "2", "t", 5, generation=3) == 22
    assert client.commit("", "t", 5) == 24
    assert client.fetch(group, "t")[0] == 5
    assert group + "2" not in listed(client)


@pytest.mark.parametrize("version", range(2, 10))
def test_every_version_of_commit_stores_the_offset(client: Client, group: str, version: int) -> None:
    partition = {"partition_index": 0, "committed_offset": version, "committed_metadata": None}
    fields = {"group_id": group, "topics": [{"name": "t", "partitions": [partition]}]}
    answer = client.ask(OffsetCommitRequest, version, **fields)
    assert answer.topics[0].partitions[0].error_code == 0
    assert client.fetch(group, "t") == (version, "")


@pytest.mark.parametrize("version", range(1, 10))
def test_every_version_of_offset_fetch_returns_the_offset(client: Client, group: str, version: int) -> None:
    client.commit(group, "t", 7, metadata="m")
    wanted = [{"name": "t", "partition_indexes": [0, 1]}, {"name": "missing", "partition_indexes": [0]}]
    if version < 8:
        answer = client.ask(OffsetFetchRequest, version, group_id=group, topics=wanted)
    else:
        answer = client.ask(OffsetFetchRequest, version, groups=[{"group_id": group, "topics": wanted}]).groups[0]
    found = [(each.name, p.partition_index, p.committed_offset) for each in answer.topics for p in each.partitions]
    assert found == [("t", 0, 7), ("t", 1, -1), ("missing", 0, -1)]
    if version == 1:
        return
    if version < 8:
        answer = client.ask(OffsetFetchRequest, version, group_id=group, topics=None)
    else:
        answer = client.ask(OffsetFetchRequest, version, groups=[{"group_id": group, "topics": None}]).groups[0]
    assert [(each.name, p.committed_offset) for each in answer.topics for p in each.partitions] == [("t", 7)]


def test_groups_are_listed_described_and_deleted(client: Client, group: str) -> None:
    joined = client.member(group)
    assert listed(client)[group] == "CompletingRebalance"
    client.sync(group, joined.member_id, 1, {joined.member_id: b"mine"})
    assert client.commit(group, "t", 4, 1, joined.member_id) == 0
    for version in range(6):
        described = client.ask(DescribeGroupsRequest, version, groups=[group, "missing"]).groups
        assert [each.group_state for each in described] == ["Stable", "Dead"]
        assert described[0].protocol_data == "range"
        assert described[0].members[0].member_id == joined.member_id
        assert bytes(described[0].members[0].member_assignment) == b"mine"
        assert client.ask(ListGroupsRequest, version).error_code == 0
    states = client.ask(ListGroupsRequest, 5, states_filter=["empty"], types_filter=["classic"]).groups
    assert group not in [each.group_id for each in states]
    assert client.ask(DeleteGroupsRequest, 2, groups_names=[group]).results[0].error_code == 68
    client.ask(LeaveGroupRequest, 1, group_id=group, member_id=joined.member_id)
    assert listed(client)[group] == "Empty"
    for version, error in ((0, 0), (1, 69), (2, 69)):
        assert client.ask(DeleteGroupsRequest, version, groups_names=[group]).results[0].error_code == error
    assert client.fetch(group, "t") == (-1, "")
    assert group not in listed(client)


def test_offsets_are_deleted_unless_a_member_subscribes_to_the_topic(client: Client, group: str) -> None:
    topics = [{"name": "t", "partitions": [{"partition_index": 0}, {"partition_index": 9}]}]
    assert client.ask(OffsetDeleteRequest, 0, group_id=group, topics=topics).error_code == 69
    client.commit(group, "t", 9)
    joined = client.member(group)
    client.sync(group, joined.member_id, 1)
    answer = client.ask(OffsetDeleteRequest, 0, group_id=group, topics=topics)
    assert answer.topics[0].partitions[0].error_code == 86
    client.ask(LeaveGroupRequest, 1, group_id=group, member_id=joined.member_id)
    answer = client.ask(OffsetDeleteRequest, 0, group_id=group, topics=topics)
    assert [each.error_code for each in answer.topics[0].partitions] == [0, 3]
    assert client.fetch(group, "t") == (-1, "")
    assert group not in listed(client)


def test_offset_of_a_deleted_topic_is_void_for_a_new_one_of_its_name(
    broker: BrokerProcess, client: Client, group: str
) -> None:
    declare(broker, "short")
    client.commit(group, "short", 3)
    delete(broker, "short")
    assert client.fetch(group, "short") == (-1, "")
    declare(broker, "short")
    assert client.fetch(group, "short") == (-1, "")


def test_too_many_partitions_close_the_connection(client: Client, group: str) -> None:
    topics = [{"name": "t", "partition_indexes": list(range(20_001))}]
    client.send(OffsetFetchRequest, 5, group_id=group, topics=topics)
    assert client.socket.is_closed()


@pytest.mark.parametrize(("kind", "fields"), [(OffsetCommitRequest, {}), (TxnOffsetCommitRequest, {"producer_id": 1})])
def test_a_commit_of_too_many_partitions_is_answered(client: Client, group: str, kind: Any, fields: Any) -> None:
    """A client would repeat it for ever on new connections."""
    partitions = [
        {"partition_index": index, "committed_offset": 1, "committed_metadata": ""} for index in range(20_001)
    ]
    topics = [{"name": "t", "partitions": partitions}]
    answer = client.ask(kind, 3, group_id=group, topics=topics, **fields)
    assert {each.error_code for each in answer.topics[0].partitions} == {28}
    assert len(answer.topics[0].partitions) == 20_001


def test_committed_offsets_survive_a_kill_and_a_clean_stop(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, settings=SETTINGS) as broker:
        declare(broker, "t")
        with Client(broker) as client:
            client.fetch("g", "t")
            for number in range(300):
                assert client.commit(f"g{number % 20}", "t", number, metadata=str(number)) == 0
            assert client.ask(DeleteGroupsRequest, 1, groups_names=["g0"]).results[0].error_code == 0
            broker.kill()
        for _ in range(2):
            broker.start(same_ports=False)
            with Client(broker) as client:
                assert client.fetch("g0", "t") == (-1, "")
                for number in range(281, 300):
                    assert client.fetch(f"g{number % 20}", "t") == (number, str(number))
            broker.stop()
        assert "Traceback" not in broker.stderr


def test_offsets_of_a_deleted_vhost_are_removed(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, settings={**SETTINGS, "kafka.vhost": "other"}) as broker:
        for _ in range(2):
            vhost_url = broker.url.removesuffix("%2F") + "other"
            request(broker, "PUT", "vhosts/other", b"{}")
            with pika.BlockingConnection(pika.URLParameters(vhost_url)) as connection:
                connection.channel().queue_declare("t", durable=True, arguments={"x-queue-type": "stream"})
            with Client(broker) as client:
                assert client.fetch("g", "t") == (-1, "")
                assert client.commit("g", "t", 5) == 0
                client.send(JoinGroupRequest, 0, group_id="g", session_timeout_ms=6000, protocol_type="consumer")
                request(broker, "DELETE", "vhosts/other", None)
        assert "Traceback" not in broker.stderr


def request(broker: BrokerProcess, method: str, path: str, body: bytes | None) -> None:
    asked = urllib.request.Request(f"{broker.http_url}/api/{path}", data=body, method=method)
    asked.add_header("Authorization", "Basic " + base64.b64encode(b"guest:guest").decode())
    urllib.request.urlopen(asked).close()


def test_offsets_need_read_permission_on_the_topic(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, settings={**SETTINGS, "kafka.anonymous_user": "reader"}) as broker:
        declare(broker, "open")
        declare(broker, "closed")
        request(broker, "PUT", "users/reader", b'{"password": "x", "tags": ""}')
        every = b'{"configure": "", "write": "", "read": ".*"}'
        request(broker, "PUT", "permissions/%2F/reader", every)
        with Client(broker) as client:
            client.fetch("g", "open")
            assert client.commit("g", "open", 1) == client.commit("g", "closed", 2) == 0
            request(broker, "PUT", "permissions/%2F/reader", b'{"configure": "", "write": "", "read": "^(open|g)$"}')
            assert client.commit("g", "closed", 3) == 29
            answer = client.ask(OffsetFetchRequest, 7, group_id="g", topics=None)
            assert [(each.name, each.partitions[0].committed_offset) for each in answer.topics] == [("open", 1)]
            wanted = [{"name": "closed", "partition_indexes": [0]}]
            answer = client.ask(OffsetFetchRequest, 7, group_id="g", topics=wanted)
            assert (answer.topics[0].partitions[0].error_code, answer.topics[0].partitions[0].committed_offset) == (
                29,
                -1,
            )
            topics = [{"name": "closed", "partitions": [{"partition_index": 0}]}]
            deleted = client.ask(OffsetDeleteRequest, 0, group_id="g", topics=topics)
            assert deleted.topics[0].partitions[0].error_code == 29


def test_group_listed_while_its_removal_is_written_does_not_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    delete, groups = GroupCoordinator.delete, []

    def listed_meanwhile(coordinator: GroupCoordinator, entry: GroupEntry, done: Callable[[bool], None]) -> None:
        delete(coordinator, entry, done)
        groups.extend(each.group.name for each in coordinator.entries(coordinator.broker.vhosts["/"]))

    monkeypatch.setattr(GroupCoordinator, "delete", listed_meanwhile)
    with BrokerThread(tmp_path, settings={"kafka.port": 0}) as broker:
        declare(broker, "t")
        with Client(broker) as client:
            assert client.commit("g", "t", 4) == 0
            assert client.ask(DeleteGroupsRequest, 2, groups_names=["g"]).results[0].error_code == 0
            assert groups == ["g"]
            assert listed(client) == {}


def test_a_commit_between_the_steps_of_a_deletion_is_not_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    delete = GroupCoordinator.delete

    def commit(coordinator: GroupCoordinator) -> None:
        vhost = coordinator.broker.vhosts["/"]
        value = CommittedOffset(7, -1, "", 1, bytes.fromhex(vhost.queues["t"].id))
        coordinator.offsets.change([(OffsetKey(vhost.id, "g", "t", 0), value)], lambda _: None)

    def commit_in_the_next_turn(coordinator: GroupCoordinator, entry: GroupEntry, done: Callable[[bool], None]) -> None:
        delete(coordinator, entry, done)
        coordinator.broker.loop.call_soon(commit, coordinator)

    monkeypatch.setattr(GroupCoordinator, "delete", commit_in_the_next_turn)
    with BrokerThread(tmp_path, settings={"kafka.port": 0}) as broker:
        declare(broker, "t")
        with Client(broker) as client:
            assert client.commit("g", "t", 4) == 0
            monkeypatch.setattr(pace, "SLICE_S", 0.0)  # each step has a turn of its own
            names = ["g", *(f"missing-{number}" for number in range(20))]
            answer = client.ask(DeleteGroupsRequest, 2, groups_names=names)
            assert [each.error_code for each in answer.results] == [0] + [69] * 20
            assert client.fetch("g", "t") == (7, "")


def test_requests_about_a_group_that_is_being_deleted_are_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove_group = CommittedOffsets.remove_group
    held: list[Callable[[], object]] = []

    def hold(*arguments: Any) -> None:
        held.append(partial(asyncio.get_running_loop().call_soon_threadsafe, remove_group, *arguments))

    with BrokerThread(tmp_path, settings={"kafka.port": 0}) as broker:
        declare(broker, "t")
        with Client(broker) as client:
            client.fetch("g", "t")
            assert client.commit("g", "t", 4) == 0
            with Client(broker) as other:
                monkeypatch.setattr(CommittedOffsets, "remove_group", hold)
                other.send(DeleteGroupsRequest, 2, groups_names=["g"])
                while not held:
                    time.sleep(0.001)
                assert client.commit("g", "t", 5) == 15
                assert client.join("g").error_code == 15
                assert client.ask(DeleteGroupsRequest, 2, groups_names=["g"]).results[0].error_code == 15
                held[0]()
                assert other.receive(DeleteGroupsRequest, 2).results[0].error_code == 0
            assert client.fetch("g", "t") == (-1, "")
            assert client.commit("g", "t", 6) == 0
            assert client.fetch("g", "t") == (6, "")


@pytest.mark.parametrize("kind", [DeleteGroupsRequest, OffsetDeleteRequest])
def test_a_commit_that_is_not_synced_is_deleted_by_the_next_request(client: Client, group: str, kind: Any) -> None:
    """A client may send a commit and the removal without waiting for the first answer."""
    partition = {"partition_index": 0, "committed_offset": 5, "committed_metadata": ""}
    committed = {"group_id": group, "topics": [{"name": "t", "partitions": [partition]}]}
    fields: dict[str, Any] = {"groups_names": [group]}
    if kind is OffsetDeleteRequest:
        fields = {"group_id": group, "topics": [{"name": "t", "partitions": [{"partition_index": 0}]}]}
    version = 2 if kind is DeleteGroupsRequest else 0
    client.send(OffsetCommitRequest, 7, generation_id_or_member_epoch=-1, member_id="", **committed)
    client.send(kind, version, **fields)
    assert client.receive(OffsetCommitRequest, 7).topics[0].partitions[0].error_code == 0
    answer = client.receive(kind, version)
    assert (answer.results[0] if kind is DeleteGroupsRequest else answer).error_code == 0
    assert client.fetch(group, "t") == (-1, "")
    assert group not in listed(client)


def test_only_groups_with_members_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Offsets of groups without members are kept for a week, and must not keep others out."""
    monkeypatch.setattr("amqpd.kafka_server.coordinator.GROUPS_MAX", 1)
    with BrokerThread(tmp_path, settings={"kafka.port": 0}) as limited:
        declare(limited, "t")
        with Client(limited) as client:
            client.fetch("a", "t")
            assert [client.commit(name, "t", 1) for name in "abc"] == [0, 0, 0]
            first = client.member("a")
            assert client.join("a").error_code == 79, "a second member of the same group"
            assert client.join("b").error_code == client.join("new").error_code == 44
            member = GroupMember(client.socket, "c")
            assert member.join("t") == 44
            assert client.commit("d", "t", 1) == 0
            client.ask(LeaveGroupRequest, 1, group_id="a", member_id=first.member_id)
            assert client.join("b").error_code == 44, "one member of the first group has its id and may still join"


def test_a_full_vhost_refuses_new_offsets_and_replaces_known_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committed_offsets, "VHOST_BYTES_MAX", GROUP_BYTES + ENTRY_BYTES)
    with BrokerThread(tmp_path, settings={"kafka.port": 0}) as broker:
        declare(broker, "t")
        declare(broker, "u")
        with Client(broker) as client:
            client.fetch("g", "t")
            assert [client.commit("g", "t", number) for number in (1, 2, 3)] == [0, 0, 0]
            assert client.commit("g", "u", 1) == client.commit("h", "t", 1) == 28
            assert client.commit("g", "t", 4, metadata="longer") == 28
            assert client.fetch("g", "t") == (3, "")
            partition = {"partition_index": 0, "committed_offset": 5, "committed_metadata": ""}
            topics = [{"name": name, "partitions": [partition]} for name in "utu"]
            simple = {"group_id": "g", "generation_id_or_member_epoch": -1, "member_id": ""}
            answer = client.ask(OffsetCommitRequest, 7, topics=topics, **simple)
            assert {each.name: each.partitions[0].error_code for each in answer.topics} == {"u": 28, "t": 0}
            assert client.fetch("g", "t") == (5, "")
            assert client.ask(DeleteGroupsRequest, 2, groups_names=["g"]).results[0].error_code == 0
            assert client.commit("h", "t", 1) == 0


async def test_a_group_with_many_offsets_is_swept_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with embedded(tmp_path, settings=SETTINGS) as server:
        (front_end,) = [each for each in server.front_ends if isinstance(each, KafkaFrontEnd)]
        coordinator = front_end.server.coordinator
        vhost = server.broker.vhosts["/"]
        while coordinator.load_error():  # noqa: ASYNC110  # it is told to no one
            await asyncio.sleep(0)
        done = asyncio.get_running_loop().create_future()
        value = CommittedOffset(5, -1, "", 1, bytes(16))
        places = [OffsetKey(vhost.id, "g", "gone", number) for number in range(3 * SWEEP_STEPS)]
        looked_at: list[int] = [0]
        committed = coordinator.committed

        def counted(vhost: VHost, key: OffsetKey) -> CommittedOffset | None:
            looked_at[-1] += 1
            return committed(vhost, key)

        async def look_at_next_turn() -> None:
            looked_at.append(0)
            await asyncio.sleep(0)

        monkeypatch.setattr(coordinator, "committed", counted)
        # The sweep at the start of the broker may see some of the offsets already.
        coordinator.offsets.change([(key, value) for key in places], done.set_result)
        while not done.done():
            await look_at_next_turn()
        assert done.result()
        coordinator._sweep_now()
        while coordinator.offsets.has_group(vhost.id, "g"):
            await look_at_next_turn()
        assert max(looked_at) <= SWEEP_STEPS and sum(looked_at) >= 3 * SWEEP_STEPS


async def test_a_reset_has_no_offset_for_a_topic_that_is_made_again_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The offset was found in the log of the old one."""
    async with embedded(tmp_path, settings=SETTINGS) as server:
        (front_end,) = [each for each in server.front_ends if isinstance(each, KafkaFrontEnd)]
        operations, coordinator = front_end.server.operations, front_end.server.coordinator
        vhost = server.broker.vhosts["/"]
        (port,) = {each.port for each in server.listeners if each.protocol == "amqp"}
        await asyncio.to_thread(declare_at, port, "t", {"x-queue-type": "stream"})
        while coordinator.load_error():  # noqa: ASYNC110  # it is told to no one
            await asyncio.sleep(0)

        async def replaced(*_: object) -> int:
            delete_queue(vhost, vhost.queues["t"])
            await asyncio.to_thread(declare_at, port, "t", {"x-queue-type": "stream"})
            return 7

        monkeypatch.setattr(operations, "_offset", replaced)
        with pytest.raises(NotFound):
            await operations.reset(vhost, "g", "t", None, "latest", 0, False)
        assert coordinator.find(vhost, "g") is None


def test_a_commit_has_no_offset_for_a_topic_that_is_deleted_between_its_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The offset could replace one that was committed for a new topic of this name."""
    find_topic = topics.find_topic

    def delete_first(session: Session, name: str, kind: Any) -> Any:
        if name == "other" and "t" in session.vhost.queues:
            delete_queue(session.vhost, session.vhost.queues["t"])
        return find_topic(session, name, kind)

    with BrokerThread(tmp_path, settings={"kafka.port": 0}) as broker:
        declare(broker, "t")
        declare(broker, "other")
        with Client(broker) as client:
            assert client.commit("g", "t", 4) == 0
            monkeypatch.setattr(topics, "find_topic", delete_first)
            wanted = [
                {"name": name, "partitions": [{"partition_index": 0, "committed_offset": 5, "committed_metadata": ""}]}
                for name in ("t", "other")
            ]
            answer = client.ask(OffsetCommitRequest, 7, group_id="g", topics=wanted)
            assert [each.partitions[0].error_code for each in answer.topics] == [3, 0]
            assert client.fetch("g", "other") == (5, "")


async def test_offsets_of_an_idle_group_expire_and_those_of_members_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with embedded(tmp_path, settings=SETTINGS) as server:
        (front_end,) = [each for each in server.front_ends if isinstance(each, KafkaFrontEnd)]
        coordinator = front_end.server.coordinator
        vhost = server.broker.vhosts["/"]
        (port,) = {each.port for each in server.listeners if each.protocol == "amqp"}
        await asyncio.to_thread(declare_at, port, "t", {"x-queue-type": "stream"})
        while coordinator.load_error():  # noqa: ASYNC110  # it is told to no one
            await asyncio.sleep(0)
        topic_id = bytes.fromhex(vhost.queues["t"].id)

        async def commit(group: str, topic: str, ident: bytes, vhost_id: str = vhost.id, commit_ms: int = 1) -> None:
            done = asyncio.get_running_loop().create_future()
            value = CommittedOffset(5, -1, "", commit_ms, ident)
            coordinator.offsets.change([(OffsetKey(vhost_id, group, topic, 0), value)], done.set_result)
            assert await done

        await commit("idle", "t", topic_id)
        await commit("busy", "t", topic_id)
        await commit("busy", "missing", bytes(16))
        await commit("lost", "t", topic_id, "0" * 32)
        entry = coordinator.find(vhost, "busy")
        assert entry is not None
        joining = JoinRequest("", None, "c", "h", 60_000, 60_000, "consumer", (("range", b""),), False)
        entry.group.join(joining, "m", coordinator.now_ms(), lambda _: None)
        coordinator.changed(entry)
        await sweep(coordinator)
        assert set(coordinator.offsets.groups(vhost.id)) == {"idle", "busy"}
        assert set(coordinator.offsets.of_group(vhost.id, "busy")) == {("t", 0)}
        assert coordinator.offsets.vhost_ids() == [vhost.id]
        await commit("transaction", "t", topic_id, commit_ms=server.broker.timers.wall_ms())
        for name in ("idle", "transaction"):
            idle = coordinator.find(vhost, name)
            assert idle is not None
            idle.group.idle_since_ms -= OFFSETS_KEPT_MS
        await sweep(coordinator)
        assert set(coordinator.offsets.groups(vhost.id)) == {"transaction", "busy"}, "a new offset stays"
        monkeypatch.setattr("amqpd.kafka_server.coordinator.OFFSETS_KEPT_MS", 0)
        await sweep(coordinator)
        assert set(coordinator.offsets.groups(vhost.id)) == {"busy"}
        await sweep(coordinator)
        assert [each.group.name for each in coordinator.entries(vhost)] == ["busy"]


async def sweep(coordinator: GroupCoordinator) -> None:
    """Run one sweep, and wait until its removals are synced."""
    coordinator._sweep()
    coordinator.broker.turn.schedule()
    while coordinator.offsets._is_removing:  # noqa: ASYNC110  # it is told to no one
        await asyncio.sleep(0)


def declare_at(port: int, name: str, arguments: dict[str, object]) -> None:
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port)) as connection:
        connection.channel().queue_declare(name, durable=True, arguments=arguments)
