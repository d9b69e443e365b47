"""Byte rates of users: levels, throttle times, and the requests that change and show them."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pika
import pytest
from kafka import KafkaConsumer, KafkaProducer
from kafka.protocol.admin import AlterClientQuotasRequest, DescribeClientQuotasRequest
from kafka.protocol.consumer import FetchRequest
from kafka.protocol.producer import ProduceRequest
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest
from kafka.record.default_records import DefaultRecordBatchBuilder
from kafka_socket import KafkaSocket, address_of, audit_records, until
from share_client import ShareMember

from amqpd.broker.vhost.limits import CONSUMER_BYTE_RATE, NO_LIMITS, PRODUCER_BYTE_RATE, Limits
from amqpd.kafka_server.quotas import BURST_MS, THROTTLE_MS_MAX, ClientQuotas
from amqpd.testing import BrokerProcess

# -- levels


class Clock:
    """The clock and the limits of users, as `ClientQuotas` needs them."""

    def __init__(self, **rates: int) -> None:
        self.ms = 1_000_000
        self.limits = Limits(rates) if rates else NO_LIMITS

    def now_ms(self) -> int:
        return self.ms

    def quotas(self) -> ClientQuotas:
        users: Any = SimpleNamespace(of=lambda user: self.limits if user == "alice" else NO_LIMITS)
        clock: Any = self
        return ClientQuotas(users, clock)


def test_bytes_above_the_rate_are_paid_by_time() -> None:
    clock = Clock(producer_byte_rate=1000)
    quotas = clock.quotas()
    assert quotas.throttle_ms("alice", PRODUCER_BYTE_RATE, 1000) == 0  # a burst of BURST_MS
    assert quotas.throttle_ms("alice", PRODUCER_BYTE_RATE, 500) == 500
    assert quotas.throttle_ms("alice", PRODUCER_BYTE_RATE, 500) == 1000  # another connection of the user
    clock.ms += 400
    assert quotas.throttle_ms("alice", PRODUCER_BYTE_RATE) == 600
    clock.ms += 10 * BURST_MS
    assert quotas.throttle_ms("alice", PRODUCER_BYTE_RATE, 1001) == 1
    total = 1001
    for _ in range(200):
        clock.ms += quotas.throttle_ms("alice", PRODUCER_BYTE_RATE, 700)
        total += 700
    assert total * 1000 // (clock.ms - 1_000_000) <= 1100


def test_users_and_rates_are_counted_apart() -> None:
    clock = Clock(producer_byte_rate=1000)
    quotas = clock.quotas()
    assert quotas.throttle_ms("alice", CONSUMER_BYTE_RATE, 1 << 30) == 0
    assert quotas.throttle_ms("bob", PRODUCER_BYTE_RATE, 1 << 30) == 0
    assert quotas.throttle_ms("alice", PRODUCER_BYTE_RATE, 1 << 30) == THROTTLE_MS_MAX
    clock.ms += THROTTLE_MS_MAX
    assert quotas.throttle_ms("alice", PRODUCER_BYTE_RATE) == 0
    clock.limits = Limits({PRODUCER_BYTE_RATE: -1})
    assert quotas.throttle_ms("alice", PRODUCER_BYTE_RATE, 1 << 30) == 0


def test_levels_of_users_below_their_rate_are_not_kept() -> None:
    clock = Clock(producer_byte_rate=1000)
    users: Any = SimpleNamespace(of=lambda _: clock.limits)
    timers: Any = clock
    quotas = ClientQuotas(users, timers)
    for number in range(20_000):
        quotas.throttle_ms(f"user{number}", PRODUCER_BYTE_RATE, 1)
        clock.ms += 1
    assert len(quotas._levels) <= 4 * BURST_MS


def fetch_in_turn(count: int, time_ms: int) -> list[int]:
    """Return the bytes that each of several connections of a user with 1 kB/s gets in this time."""
    clock = Clock(consumer_byte_rate=1000)
    quotas = clock.quotas()
    session = SimpleNamespace(user=SimpleNamespace(name="alice"))
    calls: list[Any] = [
        SimpleNamespace(session=session, connection=SimpleNamespace(has_waited=False)) for _ in range(count)
    ]
    found = [0] * count
    began_ms = clock.ms
    due = [(clock.ms, number) for number in range(count)]
    while due[0][0] < began_ms + time_ms:
        clock.ms, number = due.pop(0)
        size_bytes = quotas.fetch_bytes(calls[number])
        assert 0 <= size_bytes <= 1000
        found[number] += size_bytes
        throttle_ms = quotas.throttle_ms("alice", CONSUMER_BYTE_RATE, size_bytes)
        calls[number].connection.has_waited = throttle_ms > 0
        # The first client asks at once, the others a little later.
        due = sorted([*due, (clock.ms + throttle_ms + 20 * (number > 0) + 1, number)])
    return found


@pytest.mark.parametrize("count", [1, 2, 5, 100])
def test_each_connection_gets_its_part_of_the_rate_also_if_it_comes_late(count: int) -> None:
    found = fetch_in_turn(count, 300_000)
    assert 250_000 < sum(found) < 330_000
    assert min(found) > 0.7 * sum(found) / count


def test_none_of_very_many_connections_gets_nothing() -> None:
    assert min(fetch_in_turn(1000, 3 * THROTTLE_MS_MAX)) > 0


# -- clients


class Client(KafkaSocket):
    """One connection of a user."""

    def __init__(self, address: str, user: str) -> None:
        super().__init__(address)
        assert self.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1).error_code == 0
        token = f"\0{user}\0secret".encode()
        assert self.ask(SaslAuthenticateRequest(auth_bytes=token), 2).error_code == 0

    def produce_request(self, topic: str, size: int, acks: int) -> ProduceRequest:
        """Return a request with one record."""
        builder = DefaultRecordBatchBuilder(
            magic=2, compression_type=0, is_transactional=False, producer_id=-1, producer_epoch=-1, base_sequence=-1,
            batch_size=1 << 20,
        )  # fmt: skip
        builder.append(0, 1, None, b"v" * size, [])
        kinds = ProduceRequest.TopicProduceData
        partition = kinds.PartitionProduceData(index=0, records=bytes(builder.build()))
        data = [kinds(name=topic, partition_data=[partition])]
        return ProduceRequest(transactional_id=None, acks=acks, timeout_ms=1000, topic_data=data)

    def produce(self, topic: str, size: int, acks: int = 1, version: int = 11) -> Any:
        """Send one record, and return the response; None for acks 0."""
        request = self.produce_request(topic, size, acks)
        if acks == 0:
            self.send(request, version)
            return None
        return self.ask(request, version)

    def fetch(self, topic: str, version: int = 12, offset: int = 0) -> Any:
        return self.ask(self.fetch_request(topic, offset), version)

    def send_fetch(self, topic: str) -> FetchRequest:
        request = self.fetch_request(topic, 0)
        self.send(request, 12)
        return request

    def fetch_request(self, topic: str, offset: int) -> FetchRequest:
        kinds = FetchRequest.FetchTopic
        partition = kinds.FetchPartition(
            partition=0, current_leader_epoch=-1, fetch_offset=offset, last_fetched_epoch=-1, log_start_offset=-1,
            partition_max_bytes=1 << 20,
        )  # fmt: skip
        return FetchRequest(
            replica_id=-1, max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, isolation_level=0, session_id=0,
            session_epoch=-1, topics=[kinds(topic=topic, partitions=[partition])], forgotten_topics_data=[], rack_id="",
        )  # fmt: skip


@pytest.fixture
def user(kafka_broker: BrokerProcess) -> Iterator[str]:
    name = f"u-{secrets.token_hex(4)}"
    kafka_broker.api("PUT", f"/api/users/{name}", {"password": "secret", "tags": ""})
    kafka_broker.api("PUT", f"/api/permissions/%2F/{name}", {"configure": ".*", "write": ".*", "read": ".*"})
    yield name
    kafka_broker.api("DELETE", f"/api/users/{name}")


@pytest.fixture
def topic(kafka_broker: BrokerProcess) -> str:
    name = f"t-{secrets.token_hex(4)}"
    kafka_broker.api("PUT", f"/api/queues/%2F/{name}", {"durable": True, "arguments": {"x-queue-type": "stream"}})
    return name


def states(broker: BrokerProcess, user: str) -> set[str]:
    """Return the states of the user's connections."""
    listed: Any = broker.api("GET", "/api/connections")
    return {each["state"] for each in listed if each["user"] == user}


def set_rates(broker: BrokerProcess, user: str, **rates: int) -> None:
    broker.api("PUT", f"/api/amqpd/user-limits/{user}", {"value": rates})


@pytest.mark.parametrize("version", [3, 8, 11])
def test_a_produce_above_the_rate_is_stored_and_its_connection_waits(
    kafka_broker: BrokerProcess, user: str, topic: str, version: int
) -> None:
    with Client(address_of(kafka_broker), user) as client:
        assert client.produce(topic, 5000, version=version).throttle_time_ms == 0
        set_rates(kafka_broker, user, producer_byte_rate=400)
        answer = client.produce(topic, 5000, version=version)
        assert answer.responses[0].partition_responses[0].base_offset == 1
        assert 10_000 < answer.throttle_time_ms < THROTTLE_MS_MAX
        until(lambda: states(kafka_broker, user) == {"flow"})
        with Client(address_of(kafka_broker), user) as other:  # it shares the rate
            assert other.produce(topic, 5000, version=version).throttle_time_ms > answer.throttle_time_ms


def test_a_throttled_connection_is_not_read_and_continues_after_the_time(
    kafka_broker: BrokerProcess, user: str, topic: str
) -> None:
    with Client(address_of(kafka_broker), user) as client:
        set_rates(kafka_broker, user, producer_byte_rate=100_000)
        began_s = time.monotonic()
        throttle_ms = client.produce(topic, 150_000).throttle_time_ms
        assert 500 <= throttle_ms <= 510
        assert client.produce(topic, 10).responses[0].partition_responses[0].base_offset == 1
        assert (time.monotonic() - began_s) * 1000 >= throttle_ms
        until(lambda: states(kafka_broker, user) == {"running"})


def test_records_without_acks_count_too(kafka_broker: BrokerProcess, user: str, topic: str) -> None:
    set_rates(kafka_broker, user, producer_byte_rate=1000)
    with Client(address_of(kafka_broker), user) as client:
        client.produce(topic, 20_000, acks=0)
        until(lambda: states(kafka_broker, user) == {"flow"})


def test_records_of_a_client_that_has_gone_count_too(kafka_broker: BrokerProcess, user: str, topic: str) -> None:
    set_rates(kafka_broker, user, producer_byte_rate=1000)
    with Client(address_of(kafka_broker), user) as client:
        client.send(client.produce_request(topic, 20_000, acks=1), 11)
    with Client(address_of(kafka_broker), user) as client:
        until(lambda: len(client.fetch(topic).responses[0].partitions[0].records or b"") > 0)
        assert client.produce(topic, 10).throttle_time_ms > 1000


@pytest.mark.parametrize("version", [4, 12])
def test_a_fetch_gets_what_a_second_allows_and_nothing_while_the_user_is_above_the_rate(
    kafka_broker: BrokerProcess, user: str, topic: str, version: int
) -> None:
    with Client(address_of(kafka_broker), user) as client:
        for _ in range(20):
            client.produce(topic, 2000)
    with Client(address_of(kafka_broker), user) as client, Client(address_of(kafka_broker), user) as other:
        set_rates(kafka_broker, user, consumer_byte_rate=5000)
        answer = client.fetch(topic, version)
        (partition,) = answer.responses[0].partitions
        assert 4000 < len(partition.records) < 5000
        assert answer.throttle_time_ms == 0
        set_rates(kafka_broker, user, consumer_byte_rate=100)
        answer = client.fetch(topic, version, 2)
        assert answer.throttle_time_ms > 10_000
        (partition,) = answer.responses[0].partitions
        assert 2000 < len(partition.records) < 3000  # the first batch is always sent
        answer = other.fetch(topic, version)
        assert (answer.responses, answer.throttle_time_ms > 0) == ([], True)
        until(lambda: states(kafka_broker, user) == {"flow"})


def test_each_of_two_connections_gets_records_after_its_wait(
    kafka_broker: BrokerProcess, user: str, topic: str
) -> None:
    with Client(address_of(kafka_broker), user) as client:
        for _ in range(20):
            client.produce(topic, 2000)
    set_rates(kafka_broker, user, consumer_byte_rate=10_000)
    with Client(address_of(kafka_broker), user) as client, Client(address_of(kafka_broker), user) as other:
        while client.fetch(topic).throttle_time_ms == 0:
            pass
        assert other.fetch(topic).responses == []
        requests = [each.send_fetch(topic) for each in (client, other)]  # handled when the waits are over
        for each, request in zip((client, other), requests, strict=True):
            assert len(each.decode(request, 12, each.receive()).responses[0].partitions[0].records) > 2000


def test_a_share_member_gets_what_a_second_allows(kafka_broker: BrokerProcess, user: str, topic: str) -> None:
    address = address_of(kafka_broker)
    with Client(address, user) as client, ShareMember(address, f"g-{topic}", topic) as member:
        member.socket.close()
        member.socket = client
        until(lambda: member.heartbeat(topics=[topic])[1])
        assert member.fetch(epoch=0).records == []
        for _ in range(20):
            client.produce(topic, 2000)
        set_rates(kafka_broker, user, consumer_byte_rate=5000)
        assert 1 <= len(member.fetch(wait_ms=10_000).records) <= 3


@pytest.mark.slow
def test_stock_clients_wait_and_lose_nothing(kafka_broker: BrokerProcess, user: str, topic: str) -> None:
    set_rates(kafka_broker, user, producer_byte_rate=40_000, consumer_byte_rate=40_000)
    login: dict[str, Any] = {
        "bootstrap_servers": address_of(kafka_broker),
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": user,
        "sasl_plain_password": "secret",
    }
    producer = KafkaProducer(**login, batch_size=4000)
    sent = [producer.send(topic, b"%d" % number + b"." * 3000) for number in range(30)]
    assert [each.get(60).offset for each in sent] == list(range(30))
    producer.close()
    consumer = KafkaConsumer(topic, **login, auto_offset_reset="earliest", consumer_timeout_ms=300_000)
    found = [record.value.partition(b".")[0] for _, record in zip(range(30), consumer, strict=False)]
    assert found == [b"%d" % number for number in range(30)]
    consumer.close()


def test_amqp_has_no_rate(kafka_broker: BrokerProcess, user: str, topic: str) -> None:
    set_rates(kafka_broker, user, producer_byte_rate=1, consumer_byte_rate=1)
    url = kafka_broker.url.replace("guest:guest", f"{user}:secret")
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.confirm_delivery()
    for _ in range(10):
        channel.basic_publish("", topic, b"x" * 10_000)
    connection.close()


# -- requests


def alter(client: KafkaSocket, entity: list[tuple[str, str | None]], version: int = 1, **ops: Any) -> tuple[int, str]:
    """Set quotas of one entity, or remove those with None. Return error code and text."""
    kinds = AlterClientQuotasRequest.EntryData
    changes = [kinds.OpData(key=key, value=value or 0.0, remove=value is None) for key, value in ops.items()]
    named = [kinds.EntityData(entity_type=kind, entity_name=name) for kind, name in entity]
    entries = [kinds(entity=named, ops=changes)]
    (result,) = client.ask(AlterClientQuotasRequest(entries=entries, validate_only=False), version).entries
    assert [(each.entity_type, each.entity_name) for each in result.entity] == entity
    return result.error_code, result.error_message or ""


def described(client: KafkaSocket, *filters: tuple[str, int, str | None], strict: bool = False) -> dict[str, Any]:
    kinds = DescribeClientQuotasRequest.ComponentData
    components = [kinds(entity_type=kind, match_type=how, match=match) for kind, how, match in filters]
    answer = client.ask(DescribeClientQuotasRequest(components=components, strict=strict), 1)
    assert answer.error_code == 0, answer.error_message
    return {each.entity[0].entity_name: {value.key: value.value for value in each.values} for each in answer.entries}


@pytest.mark.parametrize("version", [0, 1])
def test_quotas_of_a_user_are_set_shown_and_removed(
    kafka_broker: BrokerProcess, kafka_address: str, user: str, version: int
) -> None:
    set_limits = {"max-connections": 7}
    kafka_broker.api("PUT", f"/api/amqpd/user-limits/{user}", {"value": set_limits})
    with KafkaSocket(kafka_address) as admin:
        rates = {"producer_byte_rate": 1000.0, "consumer_byte_rate": 2000.0}
        assert alter(admin, [("user", user)], version, **rates) == (0, "")
        assert described(admin, ("user", 0, user)) == {user: rates}
        assert described(admin, ("user", 2, None))[user] == rates
        assert described(admin)[user] == rates
        assert described(admin, ("user", 1, None)) == {}
        assert described(admin, ("user", 0, user), ("client-id", 2, None)) == {}
        assert described(admin, strict=True) == {}
        shown: Any = kafka_broker.api("GET", f"/api/user-limits/{user}")
        assert shown[0]["value"] == {**set_limits, "producer_byte_rate": 1000, "consumer_byte_rate": 2000}
        assert alter(admin, [("user", user)], version, producer_byte_rate=None) == (0, "")
        assert described(admin, ("user", 0, user)) == {user: {"consumer_byte_rate": 2000.0}}
        listed = kafka_broker.ctl("-q", "list_user_limits", "--user", user)
        assert '"consumer_byte_rate":2000' in listed.stdout.replace(" ", "")
        kafka_broker.ctl("clear_user_limits", user, "consumer_byte_rate")
        assert described(admin, ("user", 0, user)) == {}
    records = [each for each in audit_records(kafka_broker) if each["name"] == user and "limits" in each["event"]]
    assert [each["event"] for each in records] == ["user.limits.set"] * 2


def test_what_is_no_quota_of_a_user_is_refused(kafka_broker: BrokerProcess, kafka_address: str, user: str) -> None:
    with KafkaSocket(kafka_address) as admin:
        one = [("user", user)]
        for entity, ops, text in (
            ([("client-id", "x")], {"producer_byte_rate": 1.0}, "only users have quotas here"),
            ([("user", user), ("client-id", "x")], {"producer_byte_rate": 1.0}, "only users have quotas here"),
            ([("user", None)], {"producer_byte_rate": 1.0}, "no default quota"),
            (one, {"request_percentage": 1.0}, "request_percentage is not supported"),
            (one, {"producer_byte_rate": 0.0}, "must be a whole number"),
            (one, {"producer_byte_rate": 1.5}, "must be a whole number"),
            (one, {"producer_byte_rate": float("nan")}, "must be a whole number"),
            (one, {"producer_byte_rate": float("inf")}, "must be a whole number"),
        ):
            code, why = alter(admin, entity, **ops)
            assert (code, text in why) == (42, True), why
        assert alter(admin, [("user", "nosuch")], producer_byte_rate=1.0)[0] == 91
        assert described(admin, ("user", 0, user)) == {}
        answer = admin.ask(
            DescribeClientQuotasRequest(
                components=[DescribeClientQuotasRequest.ComponentData(entity_type="x", match_type=0, match="y")],
                strict=False,
            ),
            1,
        )
        assert (answer.error_code, answer.error_message) == (42, "unknown entity type 'x'")
    with pytest.raises(Exception, match="producer_byte_rate should be greater than 0"):
        set_rates(kafka_broker, user, producer_byte_rate=0)
    with Client(kafka_address, user) as client:
        assert alter(client, one, producer_byte_rate=1.0)[0] == 31
        answer = client.ask(DescribeClientQuotasRequest(components=[], strict=False), 1)
        assert (answer.error_code, answer.entries) == (31, None)


def test_validate_only_changes_nothing(kafka_broker: BrokerProcess, kafka_address: str, user: str) -> None:
    kinds = AlterClientQuotasRequest.EntryData
    entry = kinds(
        entity=[kinds.EntityData(entity_type="user", entity_name=user)],
        ops=[kinds.OpData(key="producer_byte_rate", value=5.0, remove=False)],
    )
    with KafkaSocket(kafka_address) as admin:
        (result,) = admin.ask(AlterClientQuotasRequest(entries=[entry], validate_only=True), 1).entries
        assert result.error_code == 0
        assert described(admin, ("user", 0, user)) == {}
        twice = admin.ask(AlterClientQuotasRequest(entries=[entry, entry], validate_only=False), 1).entries
        assert [each.error_code for each in twice] == [42, 42]
        assert described(admin, ("user", 0, user)) == {}
