"""Members of share groups and AMQP consumers on the same classic and quorum queues."""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from kafka_socket import KafkaSocket, address_of
from share_client import ACCEPT, ACKNOWLEDGE, FETCH, GAP, REJECT, RELEASE, RENEW, ShareMember

from amqpd.testing import BrokerProcess

LOCK_MS = 1000
KINDS = pytest.mark.parametrize("kind", ["classic", "quorum"])


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker whose locks expire after a second."""
    settings = {"kafka.port": 0, "kafka.host": "127.0.0.1", "kafka.share_lock_ms": LOCK_MS}
    with BrokerProcess(tmp_path_factory.mktemp("share"), settings=settings) as found:
        yield found
        assert "Traceback" not in found.stderr


class Amqp:
    """A connection of pika with a channel in confirm mode."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.connection = pika.BlockingConnection(pika.URLParameters(broker.url))
        self.channel = self.connection.channel()
        self.channel.confirm_delivery()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def queue(self, kind: str = "quorum", **arguments: object) -> str:
        """Declare a queue with a name of its own."""
        name = f"q-{uuid.uuid4()}"
        more = {key.replace("_", "-"): value for key, value in arguments.items()}
        self.channel.queue_declare(name, durable=True, arguments={"x-queue-type": kind, **more})
        return name

    def publish(self, name: str, *bodies: bytes, **properties: Any) -> None:
        for body in bodies:
            self.channel.basic_publish("", name, body, pika.BasicProperties(delivery_mode=2, **properties))

    def count(self, name: str) -> int:
        """Return the number of ready messages."""
        found: int = self.channel.queue_declare(name, passive=True).method.message_count
        return found


@pytest.fixture
def amqp(broker: BrokerProcess) -> Iterator[Amqp]:
    with Amqp(broker) as found:
        yield found


@KINDS
def test_a_member_gets_the_messages_with_key_headers_and_count_and_accepts_them(
    broker: BrokerProcess, amqp: Amqp, kind: str
) -> None:
    name = amqp.queue(kind)
    amqp.publish(name, b"one", b"two", content_type="text/plain", headers={"a": "b"})
    with ShareMember(address_of(broker), "g", name) as member:
        records = member.take(2)
        assert [(each.value, each.key, each.count) for each in records] == [
            (b"one", name.encode(), 1),
            (b"two", name.encode(), 1),
        ]
        assert records[0].headers["a"] == b"b"
        assert records[0].headers["content-type"] == b"text/plain"
        member.end(name, records, ACCEPT)
        assert member.fetch().records == []
    assert amqp.channel.queue_delete(name).method.message_count == 0


def test_a_waiting_fetch_is_answered_when_a_message_arrives(broker: BrokerProcess, amqp: Amqp) -> None:
    name = amqp.queue()
    with ShareMember(address_of(broker), "g", name) as member:
        assert member.fetch().records == []
        member.send_fetch(wait_ms=60_000)
        amqp.publish(name, b"now")
        assert member.receive(FETCH).values == [b"now"]


@KINDS
def test_competing_consumers_of_both_kinds_get_each_message_once(broker: BrokerProcess, amqp: Amqp, kind: str) -> None:
    name = amqp.queue(kind)
    total = 600
    found: list[bytes] = []
    by_kind: Counter[str] = Counter()
    lock = threading.Lock()

    def note(what: str, body: bytes) -> bool:
        with lock:
            found.append(body)
            by_kind[what] += 1
            return len(found) >= total

    def share() -> None:
        with ShareMember(address_of(broker), "g", name) as member:
            while len(found) < total:
                answer = member.fetch(records=7, wait_ms=200)
                assert answer.error == 0
                if answer.records:
                    member.end(name, answer.records, ACCEPT)
                for record in answer.records:
                    note("share", record.value or b"")

    def consume() -> None:
        with Amqp(broker) as own:
            own.channel.basic_qos(prefetch_count=5)
            for method, _, body in own.channel.consume(name, inactivity_timeout=0.2):
                if method is not None:
                    own.channel.basic_ack(method.delivery_tag)
                    note("amqp", body)
                if len(found) >= total:
                    return

    threads = [threading.Thread(target=each) for each in (share, share, consume, consume)]
    for thread in threads:
        thread.start()
    amqp.publish(name, *(b"%d" % number for number in range(total)))
    for thread in threads:
        thread.join(60)
    assert sorted(found, key=int) == [b"%d" % number for number in range(total)]
    assert by_kind["share"] > 0
    assert by_kind["amqp"] > 0


def test_a_released_record_comes_again_with_a_higher_count_for_any_consumer(broker: BrokerProcess, amqp: Amqp) -> None:
    name = amqp.queue()
    amqp.publish(name, b"again")
    with ShareMember(address_of(broker), "g", name) as one, ShareMember(address_of(broker), "g", name) as two:
        member = one
        for count in (1, 2, 3):
            (record,) = member.take(1)
            assert (record.value, record.count) == (b"again", count)
            member.end(name, [record], RELEASE)
            member = two if member is one else one
    method, properties, body = amqp.channel.basic_get(name)
    assert body == b"again"
    assert method.redelivered
    assert properties.headers["x-delivery-count"] == 3


def test_a_rejected_record_is_dead_lettered(broker: BrokerProcess, amqp: Amqp) -> None:
    dead = amqp.queue()
    name = amqp.queue(x_dead_letter_exchange="", x_dead_letter_routing_key=dead)
    amqp.publish(name, b"good", b"bad", b"unseen")
    with ShareMember(address_of(broker), "g", name) as member:
        good, bad, unseen = member.take(3)
        acks = [(good.offset, good.offset, ACCEPT), (bad.offset, bad.offset, REJECT)]
        assert member.acknowledge({name: [*acks, (unseen.offset, unseen.offset, GAP)]}).ack_errors == {}
        with ShareMember(address_of(broker), "g", dead) as other:
            letters = other.take(2)
            assert [letter.value for letter in letters] == [b"bad", b"unseen"]
            assert b"rejected" in letters[0].headers["properties"]
            other.end(dead, letters, ACCEPT)
    assert amqp.count(name) == 0


def test_the_delivery_limit_of_the_queue_applies(broker: BrokerProcess, amqp: Amqp) -> None:
    dead = amqp.queue()
    name = amqp.queue(x_dead_letter_exchange="", x_dead_letter_routing_key=dead, x_delivery_limit=1)
    amqp.publish(name, b"poison")
    with ShareMember(address_of(broker), "g", name) as member:
        for count in (1, 2):
            (record,) = member.take(1)
            assert record.count == count
            member.end(name, [record], RELEASE)
        assert member.fetch().records == []
    with ShareMember(address_of(broker), "g", dead) as other:
        assert [letter.value for letter in other.take(1)] == [b"poison"]


def test_a_lock_that_expires_gives_the_record_to_another_member(broker: BrokerProcess, amqp: Amqp) -> None:
    name = amqp.queue()
    amqp.publish(name, b"slow")
    with ShareMember(address_of(broker), "g", name) as one, ShareMember(address_of(broker), "g", name) as two:
        (slow,) = one.take(1)
        (again,) = two.take(1)
        assert (again.value, again.count) == (b"slow", 2)
        late = one.acknowledge({name: [(slow.offset, slow.offset, ACCEPT)]})
        assert late.ack_errors == {name: 121}
        two.end(name, [again], ACCEPT)


def test_a_renewed_lock_lasts_longer(broker: BrokerProcess, amqp: Amqp) -> None:
    name = amqp.queue()
    amqp.publish(name, b"long")
    with ShareMember(address_of(broker), "g", name) as one, ShareMember(address_of(broker), "g", name) as two:
        begin = time.monotonic()
        (record,) = one.take(1)
        two.send_fetch(wait_ms=60_000)
        while time.monotonic() - begin < 2 * LOCK_MS / 1000:
            time.sleep(LOCK_MS / 4000)  # work that takes longer than a lock
            answer = one.acknowledge({name: [(record.offset, record.offset, RENEW)]}, renews=True)
            assert answer.ack_errors == {}
        one.end(name, [record], RELEASE)
        assert [(each.value, each.count) for each in two.receive(FETCH).records] == [(b"long", 2)]


@pytest.mark.parametrize("how", ["socket", "session", "heartbeat"])
def test_a_member_that_ends_releases_its_records(broker: BrokerProcess, amqp: Amqp, how: str) -> None:
    name = amqp.queue()
    amqp.publish(name, b"left")
    with ShareMember(address_of(broker), "g", name) as member:
        assert member.heartbeat(0, [name]) == (0, {member.names[name]})
        assert member.take(1)[0].value == b"left"
        assert amqp.count(name) == 0
        if how == "socket":
            member.socket.close()
        elif how == "session":
            assert member.acknowledge({}, epoch=-1).error == 0
        else:
            assert member.heartbeat(-1)[0] == 0
        with ShareMember(address_of(broker), "g", name) as other:
            assert [(each.value, each.count) for each in other.take(1)] == [(b"left", 2)]


def test_the_last_acknowledgements_may_come_after_the_member_has_left(broker: BrokerProcess, amqp: Amqp) -> None:
    name = amqp.queue()
    amqp.publish(name, b"last")
    with ShareMember(address_of(broker), "g", name) as member, ShareMember(address_of(broker), "g") as leaving:
        leaving.id = member.id
        assert leaving.heartbeat(0, [name])[0] == 0
        taken = member.take(1)
        member.send_fetch(wait_ms=60_000)
        assert leaving.heartbeat(-1)[0] == 0
        answer = member.receive(FETCH)
        assert (answer.error, answer.records) == (0, [])
        member.end(name, taken, ACCEPT)
        assert member.fetch(wait_ms=60_000).error == 122  # the session has ended meanwhile
        assert amqp.count(name) == 0


def test_priorities_keep_their_order_over_the_responses(broker: BrokerProcess, amqp: Amqp) -> None:
    name = amqp.queue("classic", x_max_priority=3)
    for priority in (1, 3, 2, 3, 1):
        amqp.publish(name, b"%d" % priority, priority=priority)
    with ShareMember(address_of(broker), "g", name) as member:
        records = member.take(5)
        assert [record.value for record in records] == [b"3", b"3", b"2", b"1", b"1"]
        member.end(name, records, ACCEPT)


def test_a_single_active_consumer_excludes_members(broker: BrokerProcess, amqp: Amqp) -> None:
    name = amqp.queue(x_single_active_consumer=True)
    tag = amqp.channel.basic_consume(name, lambda *_: None)
    with ShareMember(address_of(broker), "g", name) as member:
        assert member.fetch().records == []
        amqp.channel.basic_cancel(tag)
        amqp.publish(name, b"mine")
        assert [record.value for record in member.take(1)] == [b"mine"]


def test_members_get_what_the_filters_of_other_consumers_leave(broker: BrokerProcess, amqp: Amqp) -> None:
    name = amqp.queue("classic")
    amqp.channel.basic_qos(prefetch_count=10)
    found: list[bytes] = []
    arguments = {"x-filter": "color = 'red'"}
    amqp.channel.basic_consume(name, lambda _c, _m, _p, body: found.append(body), arguments=arguments)
    with ShareMember(address_of(broker), "g", name) as member:
        assert member.fetch().records == []
        for color in ("blue", "green", "blue"):
            amqp.publish(name, color.encode(), headers={"color": color})
        assert [record.value for record in member.take(3)] == [b"blue", b"green", b"blue"]
        amqp.publish(name, b"red", headers={"color": "red"})
        while not found:
            amqp.connection.process_data_events(1)
    assert found == [b"red"]


def test_a_queue_in_exclusive_use_is_refused(broker: BrokerProcess, amqp: Amqp) -> None:
    name = amqp.queue("classic")
    amqp.channel.basic_consume(name, lambda *_: None, exclusive=True)
    with ShareMember(address_of(broker), "g", name) as member:
        assert member.fetch(wait_ms=60_000).errors == {name: 29}


def test_members_are_in_the_list_of_consumers(broker: BrokerProcess, amqp: Amqp) -> None:
    name = amqp.queue()
    with ShareMember(address_of(broker), "list", name) as member:
        member.fetch()
        consumers = broker.api("GET", "/api/consumers/%2F")
        assert isinstance(consumers, list)
        tags = [each["consumer_tag"] for each in consumers if each["queue"]["name"] == name]
        assert tags == [f"kafka-share list {member.id}"]


def test_a_deleted_queue_answers_the_fetch_that_waits(broker: BrokerProcess, amqp: Amqp) -> None:
    name = amqp.queue()
    amqp.publish(name, b"gone")
    with ShareMember(address_of(broker), "g", name) as member:
        (record,) = member.take(1)
        member.send_fetch(wait_ms=60_000)
        amqp.channel.queue_delete(name)
        assert member.receive(FETCH).errors == {name: 100}
        assert member.acknowledge({name: [(record.offset, record.offset, ACCEPT)]}).ack_errors == {name: 100}


def test_acknowledgements_in_a_fetch_come_before_its_records(broker: BrokerProcess, amqp: Amqp) -> None:
    name = amqp.queue()
    amqp.publish(name, b"a", b"b", b"c")
    with ShareMember(address_of(broker), "g", name) as member:
        first, second = member.take(2)
        answer = member.fetch(
            {name: [(first.offset, first.offset, ACCEPT), (second.offset, second.offset, RELEASE)]}, wait_ms=20_000
        )
        assert answer.ack_errors == {}
        assert [(record.value, record.count) for record in answer.records] == [(b"b", 2), (b"c", 1)]
        wrong = member.fetch({name: [(first.offset, second.offset, ACCEPT)]})
        assert wrong.ack_errors == {name: 121}
        assert member.fetch({name: [(second.offset, second.offset, ACCEPT)]}).ack_errors == {}


def test_a_forgotten_topic_releases_its_records_after_the_acknowledgements(broker: BrokerProcess, amqp: Amqp) -> None:
    name = amqp.queue()
    amqp.publish(name, b"kept", b"acked")
    with ShareMember(address_of(broker), "g", name) as member:
        _, acked = member.take(2)
        assert member.fetch({name: [(acked.offset, acked.offset, ACCEPT)]}, forget=[name]).ack_errors == {}
    assert [amqp.channel.basic_get(name)[2] for _ in range(2)] == [b"kept", None]


def test_session_epochs_and_unknown_sessions_are_checked(broker: BrokerProcess, amqp: Amqp) -> None:
    name = amqp.queue()
    with ShareMember(address_of(broker), "g", name) as member:
        assert member.fetch(epoch=7).error == 122
        assert member.acknowledge({}, epoch=0).error == 123
        assert member.fetch(epoch=0).error == 0
        assert member.fetch(epoch=5).error == 123
        assert member.fetch().error == 0  # 1 was still expected
        assert member.fetch({name: [(0, 0, ACCEPT)]}, epoch=0).error == 42
        with ShareMember(address_of(broker), "g", name) as other:
            other.id = member.id
            assert other.fetch(epoch=2).error == 122  # another connection
        assert member.acknowledge({}, epoch=-1).error == 0
        assert member.fetch(epoch=2).error == 122


@pytest.mark.parametrize("acks", [[(0, 0, RENEW)], [(0, 0, 9)], [(1, 0, ACCEPT)], [(1, 1, ACCEPT), (-1, 0, ACCEPT)]])
def test_impossible_acknowledgements_are_refused_for_their_topic(
    broker: BrokerProcess, amqp: Amqp, acks: list[tuple[int, int, int]]
) -> None:
    name = amqp.queue()
    amqp.publish(name, b"0", b"1")
    with ShareMember(address_of(broker), "g", name) as member:
        taken = member.take(2)
        for answer in (member.acknowledge({name: acks}), member.fetch({name: acks})):
            assert (answer.error, answer.ack_errors) == (0, {name: 42})
        member.end(name, taken, ACCEPT)


def test_heartbeats_join_leave_and_fence(broker: BrokerProcess, amqp: Amqp) -> None:
    name, other = amqp.queue(), f"later-{uuid.uuid4()}"
    with ShareMember(address_of(broker), f"g-{uuid.uuid4()}", name) as member:
        assert member.heartbeat(3)[0] == 25
        assert member.heartbeat(0, [])[0] == 42
        assert member.heartbeat(0, [name, other]) == (0, {member.names[name]})
        assert member.heartbeat() == (0, set())  # nothing has changed
        amqp.channel.queue_declare(other, durable=True)
        assert member.heartbeat() == (0, {member.names[name], member.find(other)})
        assert member.heartbeat(member.member_epoch + 5)[0] == 110
        assert member.heartbeat(-1)[0] == 0
        assert member.heartbeat(1)[0] == 25


def test_after_a_kill_only_unacknowledged_records_come_again(tmp_path: Path) -> None:
    settings = {"kafka.port": 0, "kafka.host": "127.0.0.1"}
    with BrokerProcess(tmp_path, settings=settings) as broker:
        with Amqp(broker) as amqp:
            name = amqp.queue()
            amqp.publish(name, *(b"%d" % number for number in range(100)))
        with ShareMember(address_of(broker), "g", name) as member:
            records = member.take(60)
            member.end(name, records[:50], ACCEPT)
            broker.kill()
        broker.start()
        with ShareMember(address_of(broker), "g", name) as member:
            records = member.take(50)
            assert [int(record.value or b"") for record in records] == list(range(50, 100))
            assert all(record.count == 2 for record in records[:10])
            assert member.fetch().records == []
        assert "Traceback" not in broker.stderr


@pytest.mark.slow
def test_a_broker_that_stops_keeps_what_members_had_acquired(tmp_path: Path) -> None:
    settings = {"kafka.port": 0, "kafka.host": "127.0.0.1"}
    with BrokerProcess(tmp_path, settings=settings) as broker:
        with Amqp(broker) as amqp:
            name = amqp.queue()
            amqp.publish(name, b"a", b"b", b"c")
        with ShareMember(address_of(broker), "g", name) as member:
            member.heartbeat(0, [name])
            records = member.take(2)
            member.end(name, records[:1], ACCEPT)
            member.send_fetch(wait_ms=60_000)
            broker.stop()
        broker.start()
        with ShareMember(address_of(broker), "g", name) as member:
            assert [(record.value, record.count) for record in member.take(2)] == [(b"b", 2), (b"c", 2)]
        assert "Traceback" not in broker.stderr


def test_a_deleted_vhost_ends_its_sessions(tmp_path: Path) -> None:
    settings = {"kafka.port": 0, "kafka.host": "127.0.0.1", "kafka.vhost": "own"}
    with BrokerProcess(tmp_path, settings=settings) as broker:
        broker.add_vhost("own")
        for name, kind in (("queue", "quorum"), ("stream", "stream")):
            broker.api("PUT", f"/api/queues/own/{name}", {"durable": True, "arguments": {"x-queue-type": kind}})
        with ShareMember(address_of(broker), "g", "queue", "stream") as member:
            member.heartbeat(0, ["queue", "stream"])
            broker.api("POST", "/api/exchanges/own/amq.default/publish", _message("queue"))
            member.take(1)
            member.send_fetch(wait_ms=60_000)
            broker.delete_vhost("own")
            assert member.socket.is_closed()
        broker.add_vhost("own")
        broker.api("PUT", "/api/queues/own/queue", {"durable": True})
        with ShareMember(address_of(broker), "g", "queue") as member:
            assert member.fetch().records == []
        assert "Traceback" not in broker.stderr


def _message(key: str) -> dict[str, object]:
    return {"routing_key": key, "payload": "x", "payload_encoding": "string", "properties": {"delivery_mode": 2}}


def _frames() -> list[tuple[int, bytes]]:
    text, huge = b"\x02g", b"\xff\xff\xff\xff\x07"
    fetch = text + text + bytes(4) + bytes(20)
    uid = bytes(16)
    return [
        (FETCH, b""),
        (FETCH, huge),
        (FETCH, fetch + b"\0\0" + huge),
        (FETCH, fetch + b"\0\0\x02" + uid + huge),
        (FETCH, fetch + b"\0\0\x02" + uid + b"\x02" + bytes(4) + huge),
        (FETCH, fetch + b"\0\0\x02" + uid + b"\x02" + bytes(4) + b"\x02" + bytes(8) + b"\x7f" * 8 + b"\x02\x01\0"),
        (ACKNOWLEDGE, text + b"\x03\xff\xff"),
        (76, text + text + bytes(4) + b"\0" + huge),
        (77, huge),
        (90, huge),
        (91, text + huge),
        (92, text + huge),
    ]


@pytest.mark.parametrize(("key", "body"), _frames())
def test_bytes_that_cannot_be_read_close_the_connection(broker: BrokerProcess, key: int, body: bytes) -> None:
    with KafkaSocket(address_of(broker)) as client:
        client.send_frame(key, 2 if key in (FETCH, ACKNOWLEDGE) else 0 if key > 80 else 1, body, b"\0")
        assert client.is_closed()


def test_fetches_that_replace_each_other_are_all_answered(broker: BrokerProcess, amqp: Amqp) -> None:
    name = amqp.queue()
    with ShareMember(address_of(broker), "g", name) as member:
        for _ in range(40):
            member.send_fetch(wait_ms=60_000, epoch=0)  # each begins the session anew
        amqp.publish(name, b"x")
        assert all(member.receive(FETCH).values in ([], [b"x"]) for _ in range(40))
    with ShareMember(address_of(broker), "g", name) as member:
        assert [record.value for record in member.take(1)] == [b"x"]
