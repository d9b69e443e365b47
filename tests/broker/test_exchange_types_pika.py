"""Exchange types beyond AMQP's four, over AMQP with pika: routing, errors, restarts, kill -9."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from decimal import Decimal
from pathlib import Path
from threading import Thread
from time import monotonic, sleep
from typing import Any

import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from amqpd.testing import BrokerProcess

PERSISTENT = 2


@pytest.fixture(scope="module")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("types") / "data") as process:
        yield process


@contextmanager
def channel_of(process: BrokerProcess, confirms: bool = True) -> Iterator[BlockingChannel]:
    with pika.BlockingConnection(pika.URLParameters(process.url)) as connection:
        channel = connection.channel()
        if confirms:
            channel.confirm_delivery()
        yield channel


def publish(
    channel: BlockingChannel,
    exchange: str,
    body: str,
    key: str = "",
    mandatory: bool = False,
    mode: int = PERSISTENT,
    **properties: Any,
) -> bool:
    """Publish. Return False if the message was returned as unroutable."""
    message_properties = pika.BasicProperties(delivery_mode=mode, **properties)
    try:
        channel.basic_publish(exchange, key, body.encode(), message_properties, mandatory)
    except pika.exceptions.UnroutableError:
        return False
    return True


def publish_with_id(channel: BlockingChannel, exchange: str, ident: object, body: str = "", **more: Any) -> bool:
    return publish(channel, exchange, body or str(ident), headers={"x-deduplication-header": ident}, **more)


def drain(channel: BlockingChannel, queue: str) -> list[str]:
    found: list[str] = []
    while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
        found.append(got[2].decode())
    return found


def declare_bound(
    channel: BlockingChannel, exchange: str, kind: str, *queues: str, key: str = "", **arguments: Any
) -> None:
    named = {name.replace("_", "-"): value for name, value in arguments.items()}
    channel.exchange_declare(exchange, kind, durable=True, arguments=named)
    for queue in queues:
        channel.queue_declare(queue, durable=True)
        channel.queue_bind(queue, exchange, key)


def api(process: BrokerProcess, path: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{process.http_url}/api/{path}", data)
    request.add_header("Authorization", "Basic Z3Vlc3Q6Z3Vlc3Q=")
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read() or b"null")


def exchange_status(process: BrokerProcess, exchange: str) -> Any:
    return api(process, f"exchanges/%2F/{exchange}")


def test_consistent_hash_routes_by_key_and_keeps_assignment(shared_broker: BrokerProcess, tmp_path: Path) -> None:
    with channel_of(shared_broker) as channel:
        declare_bound(channel, "ch", "x-consistent-hash", "ch0", "ch1", "ch2", key="1")
        assert all(publish(channel, "ch", f"{n}", f"order-{n % 50}", mandatory=True) for n in range(200))
        queues = [drain(channel, f"ch{n}") for n in range(3)]
        assert sum(map(len, queues)) == 200 and all(queues)
        keys_by_queue = [{int(body) % 50 for body in queue} for queue in queues]
        assert (
            not keys_by_queue[0] & keys_by_queue[1]
            and not keys_by_queue[0] & keys_by_queue[2]
            and not keys_by_queue[1] & keys_by_queue[2]
        )
        assert publish(channel, "ch", "once", "order-1", headers={"CC": ["order-2", "order-3"], "BCC": ["order-4"]})
        assert sum(len(drain(channel, f"ch{n}")) for n in range(3)) == 1
        channel.queue_unbind("ch1", "ch", "1")
        for n in range(50):
            publish(channel, "ch", f"{n}", f"order-{n}")
        after = [set(map(int, drain(channel, f"ch{n}"))) for n in range(3)]
        assert after[0] >= keys_by_queue[0] and after[2] >= keys_by_queue[2] and not after[1]


def test_consistent_hash_by_header_and_property(shared_broker: BrokerProcess) -> None:
    with channel_of(shared_broker) as channel:
        declare_bound(channel, "ch-header", "x-consistent-hash", "chh0", "chh1", key="1", hash_header="customer")
        declare_bound(channel, "ch-id", "x-consistent-hash", "chi0", "chi1", key="1", hash_property="message_id")
        for n in range(40):
            publish(channel, "ch-header", f"{n % 8}", f"key {n}", headers={"customer": f"c{n % 8}"})
            publish(channel, "ch-id", f"{n % 8}", f"key {n}", message_id=f"m{n % 8}")
        for prefix in ("chh", "chi"):
            first, second = (drain(channel, f"{prefix}{n}") for n in range(2))
            assert first and second and len(first) + len(second) == 40 and not set(first) & set(second)
        for n in range(10):
            publish(channel, "ch-id", "none", f"key {n}")
        assert sorted(len(drain(channel, f"chi{n}")) for n in range(2)) == [0, 10]


def test_modulus_hash_routes_by_key_and_random_types_do_not(shared_broker: BrokerProcess) -> None:
    with channel_of(shared_broker) as channel:
        for name, kind in (("mod", "x-modulus-hash"), ("rand", "x-random"), ("local", "x-local-random")):
            declare_bound(channel, name, kind, f"{name}0", f"{name}1")
            for n in range(60):
                assert publish(channel, name, f"{n % 6}", f"key {n % 6}", mandatory=True, headers={"CC": ["more"]})
            first, second = (drain(channel, f"{name}{n}") for n in range(2))
            assert first and second and len(first) + len(second) == 60
            assert bool(set(first) & set(second)) is (kind != "x-modulus-hash")


@pytest.mark.parametrize(
    ("kind", "arguments", "text"),
    [
        ("x-consistent-hash", {"hash-header": "a", "hash-property": "message_id"}, "mutually exclusive"),
        ("x-consistent-hash", {"hash-property": "app_id"}, "Unsupported property: app_id"),
        ("x-consistent-hash", {"hash-header": 5}, "invalid type 'signedint' for arg 'hash-header'"),
        ("x-recent-history", {"x-recent-history-length": 0}, "Invalid argument 0, 'x-recent-history-length' must be"),
        ("x-recent-history", {"x-recent-history-length": "9"}, 'Invalid argument <<"9">>, \'x-recent-history-length'),
        (
            "x-recent-history",
            {"x-recent-history-length": Decimal("2.5")},
            "Invalid argument {1,25}, 'x-recent-history-length'",
        ),
        ("x-message-deduplication", {}, "Missing or invalid argument, 'x-cache-size' must be an integer greater"),
        ("x-delayed-message", {"x-delayed-type": "x-message-deduplication"}, "'x-cache-size' must be an integer"),
        ("x-message-deduplication", {"x-cache-size": 0}, "'x-cache-size' must be an integer greater than 0"),
        ("x-message-deduplication", {"x-cache-size": "9" * 5000}, "'x-cache-size' must be an integer greater than 0"),
        ("x-message-deduplication", {"x-cache-size": 9, "x-cache-ttl": -1}, "'x-cache-ttl' must be an integer"),
        ("x-message-deduplication", {"x-cache-size": 9, "x-cache-persistence": "ram"}, "either 'disk' or 'memory'"),
    ],
)
def test_invalid_arguments_close_channel(
    shared_broker: BrokerProcess, kind: str, arguments: dict[str, Any], text: str
) -> None:
    with channel_of(shared_broker) as channel, pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
        channel.exchange_declare("bad", kind, arguments=arguments)
    assert closed.value.reply_code == 406 and text in closed.value.reply_text


def test_redeclaration_must_have_equal_arguments(shared_broker: BrokerProcess) -> None:
    with channel_of(shared_broker) as channel:
        channel.exchange_declare("agree", "x-message-deduplication", arguments={"x-cache-size": 9})
        channel.exchange_declare("agree", "x-message-deduplication", arguments={"x-cache-size": 9})
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="inequivalent arg 'x-cache-size'"):
            channel.exchange_declare("agree", "x-message-deduplication", arguments={"x-cache-size": 10})


def test_invalid_bindings_close_channel(shared_broker: BrokerProcess) -> None:
    for kind, queue_type, key, text in (
        ("x-consistent-hash", "classic", "x", 'The binding key must be an integer: <<"x">>'),
        ("x-consistent-hash", "classic", "0", "The binding key must be greater than 0"),
        ("x-local-random", "classic", "k", "Non empty binding 'k' key not permitted"),
        ("x-local-random", "quorum", "", "Queue type rabbit_quorum_queue not valid for this exchange type"),
    ):
        with channel_of(shared_broker) as channel:
            channel.exchange_declare(f"bb-{kind}", kind)
            channel.queue_declare(f"bb-{queue_type}", durable=True, arguments={"x-queue-type": queue_type})
            with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
                channel.queue_bind(f"bb-{queue_type}", f"bb-{kind}", key)
            assert closed.value.reply_code == 406 and text in closed.value.reply_text


def test_recent_history_is_delivered_to_new_bindings(shared_broker: BrokerProcess) -> None:
    with channel_of(shared_broker) as channel:
        declare_bound(channel, "rh", "x-recent-history", x_recent_history_length=3)
        assert not publish(channel, "rh", "0", mandatory=True)
        for n in range(1, 6):
            publish(channel, "rh", f"{n}")
        publish(channel, "rh", "secret", headers={"x-recent-history-no-store": True})
        declare_bound(channel, "rh", "x-recent-history", "rh0", x_recent_history_length=3)
        assert drain(channel, "rh0") == ["3", "4", "5"]
        channel.queue_bind("rh0", "rh", "")  # the binding exists: the history is not delivered again
        assert publish(channel, "rh", "6", mandatory=True)
        assert drain(channel, "rh0") == ["6"]
        for n in range(40):
            assert publish(channel, "rh", f"{n}", f"key {n}", mandatory=True)
        assert len(drain(channel, "rh0")) == 40
        for n in range(4, 7):
            publish(channel, "rh", f"{n}")
        assert drain(channel, "rh0") == ["4", "5", "6"]
        channel.queue_bind("rh0", "rh", "again")
        assert drain(channel, "rh0") == ["4", "5", "6"]
        channel.exchange_declare("rh-behind", "topic")
        channel.queue_declare("rh1")
        channel.queue_bind("rh1", "rh-behind", "#")
        channel.exchange_bind("rh-behind", "rh")
        assert drain(channel, "rh1") == ["4", "5", "6"]
    assert exchange_status(shared_broker, "rh")["recent_history_count"] == 3


def test_deduplication_drops_repeated_ids(shared_broker: BrokerProcess) -> None:
    with channel_of(shared_broker) as channel:
        channel.exchange_declare("twice", "fanout")
        channel.queue_declare("twice", durable=True)
        channel.queue_bind("twice", "twice")
        declare_bound(channel, "dd", "x-message-deduplication", x_cache_size=3, alternate_exchange="twice")
        assert publish_with_id(channel, "dd", 0, mandatory=True) and drain(channel, "twice") == [
            "0"
        ]  # no queue is bound yet
        declare_bound(
            channel, "dd", "x-message-deduplication", "dd0", "dd1", x_cache_size=3, alternate_exchange="twice"
        )
        for ident in (0, "0", 0, [1], "0", [1], True):
            publish_with_id(channel, "dd", ident)
        publish(channel, "dd", "without")
        publish(channel, "dd", "without")
        assert drain(channel, "dd0") == drain(channel, "dd1") == ["0", "0", "[1]", "True", "without", "without"]
        assert drain(channel, "twice") == ["0", "0", "[1]"]
        publish_with_id(channel, "dd", 0, "the oldest has gone")
        assert drain(channel, "dd0") == ["the oldest has gone"]
    assert exchange_status(shared_broker, "dd")["cache_info"] == {"entries": 3, "size": 3, "duplicates": 3}


def wait_for_messages(channel: BlockingChannel, queue: str, count: int) -> None:
    """Wait until the queue has `count` messages, then 0.3 s for an excess one."""
    deadline = monotonic() + 30
    while channel.queue_declare(queue, passive=True).method.message_count < count and monotonic() < deadline:
        channel.connection.sleep(0.02)
    channel.connection.sleep(0.3)


def test_delayed_duplicate_is_dropped(shared_broker: BrokerProcess) -> None:
    with channel_of(shared_broker) as channel:
        arguments = {"x-delayed-type": "x-message-deduplication", "x-cache-size": 9}
        channel.exchange_declare("later-once", "x-delayed-message", durable=True, arguments=arguments)
        channel.queue_declare("later-once", durable=True)
        channel.queue_bind("later-once", "later-once")
        for _ in range(2):
            publish(channel, "later-once", "a", headers={"x-deduplication-header": "a", "x-delay": 50})
        wait_for_messages(channel, "later-once", 1)
        assert drain(channel, "later-once") == ["a"]


def test_mandatory_duplicate_is_returned_and_confirmed(shared_broker: BrokerProcess) -> None:
    with channel_of(shared_broker) as channel:
        declare_bound(channel, "ddm", "x-message-deduplication", "ddm", x_cache_size=100)
        assert publish_with_id(channel, "ddm", "a", mandatory=True)
        assert not publish_with_id(channel, "ddm", "a", mandatory=True)
        assert drain(channel, "ddm") == ["a"]


def test_id_is_forgotten_after_ttl(shared_broker: BrokerProcess, in_time: Callable[[float], Any]) -> None:
    with channel_of(shared_broker) as channel:
        for scene in in_time(0.3):
            name = f"ddt{scene.ms}"
            declare_bound(channel, name, "x-message-deduplication", name, x_cache_size=100, x_cache_ttl=scene.ms)
            headers_with_ttl = {"x-deduplication-header": "own", "x-cache-ttl": 600_000}
            with scene:
                for body in ("a", "a"):
                    publish_with_id(channel, name, body)
                    publish(channel, name, "own", headers=headers_with_ttl)
        channel.connection.sleep(scene.seconds * 1.5)
        publish_with_id(channel, name, "a")
        publish(channel, name, "own", headers=headers_with_ttl)
        assert drain(channel, name) == ["a", "own", "a"]


def test_id_of_nacked_message_is_not_remembered(shared_broker: BrokerProcess) -> None:
    with channel_of(shared_broker) as channel:
        channel.queue_declare("full", durable=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
        declare_bound(channel, "ddf", "x-message-deduplication", x_cache_size=100)
        channel.queue_bind("full", "ddf")
        assert publish_with_id(channel, "ddf", "a")
        for _ in range(2):
            with pytest.raises(pika.exceptions.NackError):
                publish_with_id(channel, "ddf", "b")
        assert drain(channel, "full") == ["a"]
        publish_with_id(channel, "ddf", "b")
        publish_with_id(channel, "ddf", "b")
        assert drain(channel, "full") == ["b"]


def test_id_is_remembered_at_commit(shared_broker: BrokerProcess) -> None:
    with channel_of(shared_broker, confirms=False) as channel, channel_of(shared_broker, confirms=False) as other:
        declare_bound(channel, "ddx", "x-message-deduplication", "ddx", x_cache_size=100)
        channel.tx_select()
        publish_with_id(channel, "ddx", "a", "first")
        publish_with_id(channel, "ddx", "a", "copy")
        channel.tx_rollback()
        publish_with_id(channel, "ddx", "a", "second")
        publish_with_id(channel, "ddx", "a", "copy")
        channel.tx_commit()
        publish_with_id(other, "ddx", "a", "copy")
        assert drain(other, "ddx") == ["second"]
        publish_with_id(channel, "ddx", "b", "first")
        channel.close()
        publish_with_id(other, "ddx", "b", "second")
        assert drain(other, "ddx") == ["second"]


def test_duplicate_dead_letters_are_dropped(shared_broker: BrokerProcess) -> None:
    with channel_of(shared_broker) as channel:
        declare_bound(channel, "ddl", "x-message-deduplication", "ddl", x_cache_size=100)
        channel.queue_declare("dying", arguments={"x-dead-letter-exchange": "ddl", "x-message-ttl": 0})
        for ident in "abba":
            channel.basic_publish("", "dying", b"x", pika.BasicProperties(headers={"x-deduplication-header": ident}))
        wait_for_messages(channel, "ddl", 2)
        assert len(drain(channel, "ddl")) == 2


def test_equal_dead_letters_are_routed_at_random(shared_broker: BrokerProcess) -> None:
    with channel_of(shared_broker) as channel:
        declare_bound(channel, "dlr", "x-random", "dlr0", "dlr1")
        channel.queue_declare("dying-alike", arguments={"x-dead-letter-exchange": "dlr", "x-message-ttl": 0})
        for _ in range(100):
            channel.basic_publish("", "dying-alike", b"x")
        counts = (0, 0)
        for _ in range(1500):
            counts = tuple(channel.queue_declare(f"dlr{n}", passive=True).method.message_count for n in range(2))
            if sum(counts) == 100:
                break
            channel.connection.sleep(0.02)
        assert sum(counts) == 100 and min(counts) > 10


@pytest.mark.slow
def test_assignment_of_keys_survives_kill(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as process:
        queue_contents: list[list[set[str]]] = []
        for binding_order in ((2, 0, 1), ()):
            with channel_of(process) as channel:
                for name, kind, key in (("ring", "x-consistent-hash", "1"), ("modulus", "x-modulus-hash", "")):
                    for n in binding_order:
                        declare_bound(channel, name, kind, f"{name}{n}", key=key)
                    for n in range(60):
                        publish(channel, name, f"{n}", f"key {n}")
                    queue_contents.append([set(drain(channel, f"{name}{n}")) for n in range(3)])
            process.kill()
            process.start()
        assert queue_contents[:2] == queue_contents[2:] and all(map(all, queue_contents))


@pytest.mark.slow
def test_ids_of_confirmed_messages_survive_kill(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as process:
        with channel_of(process) as channel:
            declare_bound(
                channel, "dk", "x-message-deduplication", "dk", x_cache_size=100_000, x_cache_persistence="disk"
            )
        confirmed: list[int] = []

        def publish_until_killed() -> None:
            with suppress(pika.exceptions.AMQPError, OSError), channel_of(process) as channel:
                while True:
                    publish_with_id(channel, "dk", len(confirmed))
                    confirmed.append(len(confirmed))

        publisher = Thread(target=publish_until_killed)
        publisher.start()
        deadline = monotonic() + 30
        while len(confirmed) < 300 and monotonic() < deadline:
            sleep(0.005)
        process.kill()
        publisher.join(30)
        assert len(confirmed) >= 300
        process.start()
        with channel_of(process) as channel:
            for n in range(len(confirmed) + 1):
                publish_with_id(channel, "dk", n)
            found = list(map(int, drain(channel, "dk")))
            assert found[: len(confirmed)] == confirmed
            # The unconfirmed message may have been stored before the kill, but not its id.
            assert found[len(confirmed) :] in ([len(confirmed)], [len(confirmed)] * 2)


def test_definitions_restore_exchanges_and_are_checked(shared_broker: BrokerProcess) -> None:
    with channel_of(shared_broker) as channel:
        channel.queue_declare("defs", durable=True)
        declare_bound(channel, "defs", "x-message-deduplication", x_cache_size=7, x_cache_ttl=1000)
        declare_bound(channel, "defs-hash", "x-consistent-hash", "defs", key="3", hash_header="h")
    definitions = api(shared_broker, "definitions")
    with channel_of(shared_broker) as channel:
        channel.exchange_delete("defs")
        channel.exchange_delete("defs-hash")
    api(shared_broker, "definitions", definitions)
    assert exchange_status(shared_broker, "defs")["cache_info"] == {"entries": 0, "size": 7, "duplicates": 0}
    assert exchange_status(shared_broker, "defs-hash")["arguments"] == {"hash-header": "h"}
    with channel_of(shared_broker) as channel:
        assert publish(channel, "defs-hash", "x", mandatory=True) and drain(channel, "defs") == ["x"]
    for exchange in definitions["exchanges"]:
        if exchange["name"] == "defs":
            exchange.update(name="defs-wrong", arguments={})
    with pytest.raises(urllib.error.HTTPError) as refused:
        api(shared_broker, "definitions", definitions)
    assert refused.value.code == 400 and b"'x-cache-size' must be an integer" in refused.value.read()
    names = {each["name"] for each in api(shared_broker, "overview")["exchange_types"]}
    assert names >= {"x-consistent-hash", "x-local-random", "x-message-deduplication", "x-recent-history"}


@pytest.mark.slow
@pytest.mark.parametrize("kill", [False, True])
def test_cache_on_disk_survives_restart(tmp_path: Path, kill: bool) -> None:
    with BrokerProcess(tmp_path / "data") as process:
        with channel_of(process) as channel:
            for name, persistence in (("on-disk", "disk"), ("in-memory", "memory")):
                declare_bound(
                    channel,
                    name,
                    "x-message-deduplication",
                    name,
                    x_cache_size=50,
                    x_cache_ttl=600_000,
                    x_cache_persistence=persistence,
                )
                for n in range(60):
                    publish_with_id(channel, name, n)
                publish_with_id(channel, name, "transient", mode=1)
            declare_bound(
                channel, "deleted", "x-message-deduplication", "d", x_cache_size=9, x_cache_persistence="disk"
            )
            publish_with_id(channel, "deleted", "a")
            channel.exchange_delete("deleted")
            declare_bound(
                channel, "deleted", "x-message-deduplication", "d", x_cache_size=9, x_cache_persistence="disk"
            )
        if kill:
            process.kill()
        else:
            process.stop()
        process.start()
        with channel_of(process) as channel:
            assert len(drain(channel, "on-disk")) >= 60 and len(drain(channel, "in-memory")) >= 60
            for n in (59, 30, 12, 1):
                publish_with_id(channel, "on-disk", n)
            publish_with_id(channel, "in-memory", 59)
            publish_with_id(channel, "on-disk", "transient")
            publish_with_id(channel, "deleted", "a")
            assert drain(channel, "on-disk") == ["1", "transient"]
            assert drain(channel, "in-memory") == ["59"]
            assert drain(channel, "d") == ["a", "a"]
