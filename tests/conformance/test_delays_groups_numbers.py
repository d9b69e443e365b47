"""Delays, retries, groups, producer sequence numbers and the exchange types of RabbitMQ's plugins: refusals, their
texts, and headers on delivery.

Any header value ends in a 403, a 406 or a delivery.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from typing import Any

import pytest
from cases import Case, ChannelClose, Chunked, ConnectionClose, both, own_queue, run
from deliveries import eventually
from peer import Peer
from wire import Field, method, properties, publish

OURS = "has this by plugins, or not at all"
Arguments = dict[str, Any]
InTime = Callable[[float], Any]


def refused_exchange(id_: str, kind: str, arguments: Arguments, why: str) -> Case:
    """An exchange.declare that is refused."""
    return Case(
        id_,
        lambda peer: method("exchange.declare", exchange=peer.x, type=kind, auto_delete=True, arguments=arguments),
        ChannelClose(406, 40, 10, why),
        ours=OURS,
    )


def refused_queue(id_: str, arguments: Arguments, name: str, why: str) -> Case:
    """A queue.declare that is refused for this argument."""
    return Case(
        id_,
        lambda peer: method("queue.declare", queue=peer.q, durable=True, auto_delete=True, arguments=arguments),
        ChannelClose(406, 50, 10, f"invalid arg '{name}' for queue '{{q}}' in vhost '/': {why}"),
        ours=OURS,
    )


def declare_queue_and_exchange(kind: str, arguments: Arguments | None = None) -> Callable[[Peer], None]:
    """Declare the peer's own queue and an exchange of this type."""

    def declare(peer: Peer) -> None:
        peer.queue()
        peer.exchange(kind, arguments=arguments or {})

    return declare


def refused_binding(id_: str, kind: str, key: str, arguments: Arguments, why: str) -> Case:
    return Case(
        id_,
        lambda peer: method("queue.bind", queue=peer.q, exchange=peer.x, routing_key=key, arguments=arguments),
        ChannelClose(406, 50, 20, why),
        declare_queue_and_exchange(kind),
        ours=OURS,
    )


HISTORY = "'x-recent-history-length' must be a positive integer"
SIZE = "Missing or invalid argument, 'x-cache-size' must be an integer greater than 0"
TTL = "Invalid argument, 'x-cache-ttl' must be an integer greater than 0"
DEDUP = "x-message-deduplication"
REFUSED_EXCHANGES = [
    refused_exchange(
        "delayed-nothing",
        "x-delayed-message",
        {},
        "Invalid argument, 'x-delayed-type' must be an existing exchange type",
    ),
    refused_exchange(
        "delayed-integer",
        "x-delayed-message",
        {"x-delayed-type": 5},
        "Invalid argument, 'x-delayed-type' must be an existing exchange type",
    ),
    Case(
        "delayed-unknown",
        lambda peer: method(
            "exchange.declare",
            exchange=peer.x,
            type="x-delayed-message",
            auto_delete=True,
            arguments={"x-delayed-type": "nosuch"},
        ),
        ConnectionClose(503, 40, 10, "unknown exchange type 'nosuch'"),
        ours=OURS,
    ),
    refused_exchange(
        "delayed-itself",
        "x-delayed-message",
        {"x-delayed-type": "x-delayed-message"},
        "Invalid argument, 'x-delayed-type' can't be used for 'x-delayed-message'",
    ),
    refused_exchange(
        "delayed-text",
        "direct",
        {"x-delayed": "true"},
        "invalid arg 'x-delayed' for exchange '{x}' in vhost '/': {unacceptable_type,longstr}",
    ),
    refused_exchange(
        "hash-header-integer",
        "x-consistent-hash",
        {"hash-header": 5},
        "invalid type 'signedint' for arg 'hash-header' in exchange '{x}' in vhost '/'",
    ),
    refused_exchange(
        "hash-both",
        "x-consistent-hash",
        {"hash-header": "h", "hash-property": "message_id"},
        "hash-header and hash-property are mutually exclusive",
    ),
    refused_exchange(
        "hash-property-unknown", "x-consistent-hash", {"hash-property": "priority"}, "Unsupported property: priority"
    ),
    refused_exchange("history-0", "x-recent-history", {"x-recent-history-length": 0}, f"Invalid argument 0, {HISTORY}"),
    refused_exchange(
        "history-negative", "x-recent-history", {"x-recent-history-length": -1}, f"Invalid argument -1, {HISTORY}"
    ),
    refused_exchange("dedup-nothing", DEDUP, {}, SIZE),
    refused_exchange("dedup-0", DEDUP, {"x-cache-size": 0}, SIZE),
    refused_exchange("dedup-text", DEDUP, {"x-cache-size": "many"}, SIZE),
    refused_exchange("dedup-nan", DEDUP, {"x-cache-size": Field("d", math.nan)}, SIZE),
    refused_exchange("dedup-large", DEDUP, {"x-cache-size": Field("l", 2**63 - 1)}, SIZE),
    refused_exchange("dedup-ttl", DEDUP, {"x-cache-size": 1, "x-cache-ttl": -1}, TTL),
    refused_exchange(
        "dedup-persistence",
        DEDUP,
        {"x-cache-size": 1, "x-cache-persistence": "paper"},
        "Invalid argument, 'x-cache-persistence' must be either 'disk' or 'memory'",
    ),
]
RETRY = "x-delayed-retry-"
REFUSED_QUEUES = [
    refused_queue("group-integer", {"x-group-by": 5}, "x-group-by", "{unacceptable_type,signedint}"),
    refused_queue("retry-type", {RETRY + "type": "some"}, RETRY + "type", "invalid_delayed_retry_type"),
    refused_queue(
        "retry-alone",
        {RETRY + "type": "all"},
        RETRY + "type",
        '"needs x-delayed-retry-min or x-delayed-retry-levels"',
    ),
    refused_queue("retry-min-alone", {RETRY + "min": 5}, RETRY + "min", '"needs x-delayed-retry-type"'),
    refused_queue("retry-min-0", {RETRY + "type": "all", RETRY + "min": 0}, RETRY + "min", "{value_zero,0}"),
    refused_queue(
        "retry-min-negative", {RETRY + "type": "all", RETRY + "min": -5}, RETRY + "min", "{value_negative,-5}"
    ),
    refused_queue(
        "retry-min-large",
        {RETRY + "type": "all", RETRY + "min": Field("l", 2**63 - 1)},
        RETRY + "min",
        "{value_too_large,9223372036854775807}",
    ),
    refused_queue(
        "retry-levels",
        {RETRY + "type": "all", RETRY + "levels": "1m,,5m"},
        RETRY + "levels",
        "\"expected 1 to 100 times, as '1m,5m,30m' or an array of milliseconds\"",
    ),
    refused_queue(
        "retry-levels-nan",
        {RETRY + "type": "all", RETRY + "levels": [Field("d", math.nan)]},
        RETRY + "levels",
        "\"expected 1 to 100 times, as '1m,5m,30m' or an array of milliseconds\"",
    ),
    refused_queue(
        "retry-both",
        {RETRY + "type": "all", RETRY + "levels": "1m", RETRY + "min": 1},
        RETRY + "levels",
        '"cannot be combined with x-delayed-retry-min"',
    ),
]
REFUSED_BINDINGS = [
    refused_binding("weight-text", "x-consistent-hash", "a", {}, 'The binding key must be an integer: <<"a">>'),
    refused_binding("weight-empty", "x-consistent-hash", "", {}, "The binding key must be an integer: <<>>"),
    refused_binding("weight-0", "x-consistent-hash", "0", {}, "The binding key must be greater than 0"),
    refused_binding("weight-negative", "x-consistent-hash", "-3", {}, "The binding key must be greater than 0"),
    refused_binding("local-key", "x-local-random", "a", {}, "Non empty binding 'a' key not permitted"),
    refused_binding(
        "jms-nothing",
        "x-jms-topic",
        "a",
        {},
        "a binding to an exchange of type x-jms-topic has one selector, in x-selector (SQL text) or "
        "rjms_erlang_selector (from RabbitMQ's JMS client)",
    ),
    refused_binding("jms-integer", "x-jms-topic", "a", {"x-selector": 5}, "x-selector is not a text"),
    Case(
        "group-no-ack",
        lambda peer: method("basic.consume", queue=peer.q, no_ack=True),
        ChannelClose(406, 60, 20),
        lambda peer: peer.queue(arguments={"x-group-by": "routing_key"}),
        ours=OURS,
    ),
    Case(
        "group-filter",
        lambda peer: method("basic.consume", queue=peer.q, arguments={"x-filter": "TRUE"}),
        ChannelClose(406, 60, 20),
        lambda peer: peer.queue(arguments={"x-group-by": "routing_key"}),
        ours=OURS,
    ),
]


@both([*REFUSED_EXCHANGES, *REFUSED_QUEUES, *REFUSED_BINDINGS])
def test_invalid_arguments_are_refused(peer: Peer, chunked: Chunked) -> None:
    run(peer, chunked)


@pytest.mark.parametrize("value", ["", "key", "header:", "header:" + "n" * 256, [], {}, -1, Field("d", math.nan)])
def test_invalid_group_by_is_refused(broker_is_ours: bool, peer: Peer, value: Any) -> None:
    if not broker_is_ours:
        pytest.skip(OURS)
    peer.method("queue.declare", queue=peer.q, exclusive=True, arguments={"x-group-by": value})
    peer.expect_channel_close(406, 50, 10)


# -- headers ----------------------------------------------------------------------------------------------------------

DELAYED = {"x-delayed-type": "fanout"}


def delayed(peer: Peer) -> None:
    declare_queue_and_exchange("x-delayed-message", DELAYED)(peer)
    peer.call("queue.bind", queue=peer.q, exchange=peer.x)


def refused_publish(id_: str, headers: Arguments, end: ChannelClose, before: Callable[[Peer], None] = delayed) -> Case:
    """A publish to the peer's exchange, or to its queue if it has no exchange."""

    def say(peer: Peer) -> bytes:
        to = "" if before is own_queue else peer.x
        return publish(peer.q, b"x", properties(headers=headers), exchange=to)

    return Case(id_, say, end, before, ours=OURS)


def invalid_header(name: str, what: str) -> ChannelClose:
    return ChannelClose(406, 60, 40, f"invalid header '{name}': {what}")


def missing(name: str) -> ChannelClose:
    return invalid_header(name, "required with 'x-producer-id'")


def out_of_range(name: str, most: int) -> ChannelClose:
    return invalid_header(name, f"not an integer from 0 to {most}")


NUMBERED = {"x-producer-id": 1, "x-producer-epoch": 0, "x-sequence": 0}
MS = "expected a number of milliseconds, got "
LARGEST = 2**63 - 1
REFUSED_HEADERS = [
    refused_publish("delay-text", {"x-delay": "soon"}, invalid_header("x-delay", MS + "longstr soon")),
    refused_publish("delay-true", {"x-delay": True}, invalid_header("x-delay", MS + "bool True")),
    refused_publish("delay-double", {"x-delay": 1.5}, invalid_header("x-delay", MS + "double 1.5")),
    refused_publish("delay-nan", {"x-delay": Field("d", math.nan)}, invalid_header("x-delay", MS + "double nan")),
    refused_publish("delay-table", {"x-delay": {"a": 1}}, invalid_header("x-delay", MS + "table of another form")),
    refused_publish("delay-array", {"x-delay": [1]}, invalid_header("x-delay", MS + "array of another form")),
    refused_publish("delay-void", {"x-delay": None}, invalid_header("x-delay", MS + "void of another form")),
    refused_publish("delay-timestamp", {"x-delay": Field("T", 5)}, invalid_header("x-delay", MS + "timestamp 5")),
    refused_publish(
        "delay-large", {"x-delay": Field("l", LARGEST)}, invalid_header("x-delay", f"{{value_too_large,{LARGEST}}}")
    ),
    refused_publish(
        "deliver-at-large",
        {"x-deliver-at": Field("T", 2**63)},
        invalid_header("x-deliver-at", f"{{value_too_large,{2**63}}}"),
    ),
    refused_publish("deliver-at-text", {"x-deliver-at": "noon"}, invalid_header("x-deliver-at", MS + "longstr noon")),
    refused_publish("id-alone", {"x-producer-id": 1}, missing("x-producer-epoch"), own_queue),
    refused_publish("no-sequence", {"x-producer-id": 1, "x-producer-epoch": 0}, missing("x-sequence"), own_queue),
    refused_publish("id-text", NUMBERED | {"x-producer-id": "1"}, out_of_range("x-producer-id", LARGEST), own_queue),
    refused_publish("id-negative", NUMBERED | {"x-producer-id": -1}, out_of_range("x-producer-id", LARGEST), own_queue),
    refused_publish("id-true", NUMBERED | {"x-producer-id": True}, out_of_range("x-producer-id", LARGEST), own_queue),
    refused_publish(
        "epoch-large", NUMBERED | {"x-producer-epoch": 2**15}, out_of_range("x-producer-epoch", 2**15 - 1), own_queue
    ),
    refused_publish(
        "epoch-nan", NUMBERED | {"x-producer-epoch": math.nan}, out_of_range("x-producer-epoch", 2**15 - 1), own_queue
    ),
    refused_publish(
        "sequence-large", NUMBERED | {"x-sequence": 2**31}, out_of_range("x-sequence", 2**31 - 1), own_queue
    ),
    refused_publish("sequence-table", NUMBERED | {"x-sequence": {}}, out_of_range("x-sequence", 2**31 - 1), own_queue),
    refused_publish(
        "numbered-delayed",
        NUMBERED | {"x-delay": 5000},
        invalid_header("x-producer-id", "a delayed message cannot have it"),
    ),
]


@both(REFUSED_HEADERS)
def test_invalid_headers_are_refused(peer: Peer, chunked: Chunked) -> None:
    run(peer, chunked)


VALUES = {
    "text": "soon",
    "digits": "7",
    "empty": "",
    "bytes": Field("x", b"\xff\0"),
    "table": {"a": {"b": [1]}},
    "array": [1, "a", [None]],
    "negative": -1,
    "least": Field("l", -(2**63)),
    "largest": Field("l", LARGEST),
    "beyond": Field("T", 2**63),
    "nan": Field("d", math.nan),
    "infinite": Field("d", math.inf),
    "float": Field("f", -0.0),
    "true": True,
    "void": None,
    "decimal": Field("D", (255, 2**32 - 1)),
    "long-text": "9" * 5000,
}
NAMES = (
    "x-delay",
    "x-deliver-at",
    "x-deduplication-header",
    "x-cache-ttl",
    "x-recent-history-no-store",
    "x-producer-id",
    "x-producer-epoch",
    "x-sequence",
    "x-group",
    "x-death",
    "x-source-offset",
    "x-redrive-count",
)
EXCHANGE_ARGUMENTS: dict[str, Arguments] = {
    "x-delayed-message": DELAYED,
    "x-consistent-hash": {"hash-header": "x-group", "x-delayed": True},
    "x-recent-history": {"x-recent-history-length": 1},
    DEDUP: {"x-cache-size": 2},
    "x-jms-topic": {},
}


@pytest.mark.parametrize("kind", EXCHANGE_ARGUMENTS)
@pytest.mark.parametrize("value", VALUES)
def test_odd_header_is_accepted_or_refused(broker_is_ours: bool, peer: Peer, kind: str, value: str) -> None:
    """A publish with each header of this value is accepted, or refused with 403 or 406; accepted messages can be
    fetched.
    """
    if not broker_is_ours:
        pytest.skip(OURS)
    peer.channel(2)
    arguments = {"x-group-by": "header:x-group", "x-delayed-retry-type": "all", "x-delayed-retry-min": 1}
    peer.queue(channel=2, arguments=arguments)
    peer.call("exchange.declare", 2, exchange=peer.x, type=kind, auto_delete=True, arguments=EXCHANGE_ARGUMENTS[kind])
    selector = {"x-selector": '"x-group" IS NULL OR "x-delay" > 1 OR "x-delay" <= 1 OR "x-delay" IS NULL'}
    where = selector if kind == "x-jms-topic" else {}
    peer.call("queue.bind", 2, queue=peer.q, exchange=peer.x, routing_key="1", arguments=where)
    for name in NAMES:
        headers = {name: VALUES[value]}
        for more in ({}, NUMBERED) if name in NUMBERED else ({},):
            peer.send(publish(peer.q, b"x", properties(headers=more | headers), exchange=peer.x))
            peer.method("channel.flow", active=True)
            got = peer.read()
            if got.name == "channel.close":
                assert got["reply_code"] in (403, 406), got
                peer.method("channel.close-ok")
                peer.channel()
            else:
                assert got.name == "channel.flow-ok", got
    time.sleep(0.02)
    while (message := peer.get(channel=2, no_ack=False)) is not None:
        peer.method("basic.ack", 2, delivery_tag=message.method["delivery_tag"])
    peer.fence(2)


# -- conversations ----------------------------------------------------------------------------------------------------


def test_delay_header_is_negated_on_delivery(broker_is_ours: bool, speaker: Peer, in_time: InTime) -> None:
    if not broker_is_ours:
        pytest.skip(OURS)
    delayed(speaker)
    speaker.call("confirm.select")
    confirmed = 0

    def publish_delayed(*all_headers: Arguments) -> None:
        nonlocal confirmed
        for headers in all_headers:
            props = properties(headers=headers, delivery_mode=2)
            speaker.publish("k", b"x", props, exchange=speaker.x, mandatory=True)
        expected = confirmed + len(all_headers)
        while confirmed < expected:
            ack = speaker.expect("basic.ack")
            confirmed = ack["delivery_tag"] if ack["multiple"] else confirmed + 1

    publish_delayed({"x-delay": 20}, {"x-delay": "30"}, {"x-delay": -5})
    for attempt in in_time(0.2):  # a time that has passed when the broker receives the publish is no delay
        with attempt:
            deliver_at_ms = int(time.time() * 1000) + attempt.ms
            publish_delayed({"x-deliver-at": Field("l", deliver_at_ms)})
    eventually(speaker, speaker.q, confirmed)
    got = [speaker.get() for _ in range(confirmed)]
    assert [each and each.method["exchange"] for each in got] == [speaker.x] * confirmed
    expected = [{"x-delay": -5}, {"x-delay": -20}, {"x-delay": -30}, {"x-delivered-at": Field("l", deliver_at_ms)}]
    found = [each.props for each in got if each is not None]
    for headers in expected:
        encodings = [{name: encode(value)} for name, value in headers.items() for encode in (_same, _long)]
        assert any(properties(headers=each, delivery_mode=2) in found for each in encodings), (headers, found)


def _same(value: Any) -> Any:
    return value


def _long(value: Any) -> Any:
    return value if isinstance(value, Field) else Field("l", value)


def test_producer_sequence_numbers(broker_is_ours: bool, speaker: Peer) -> None:
    """A duplicate is confirmed and not stored; a gap is legal; a later epoch starts again; an older one is refused."""
    if not broker_is_ours:
        pytest.skip(OURS)
    speaker.queue()
    speaker.call("confirm.select")
    for tag, (epoch, sequence) in enumerate([(0, 0), (0, 0), (0, 5), (0, 4), (1, 0), (1, 0)], 1):
        headers = {"x-producer-id": 7, "x-producer-epoch": epoch, "x-sequence": sequence}
        speaker.publish(payload=b"%d" % tag, props=properties(headers=headers))
        assert speaker.expect("basic.ack")["delivery_tag"] == tag
    headers = {"x-producer-id": 7, "x-producer-epoch": 0, "x-sequence": 9}
    speaker.publish(payload=b"old", props=properties(headers=headers))
    speaker.expect_channel_close(
        403, 60, 40, "producer 7 of epoch 0 has been replaced in queue '{q}' in vhost '/': its epoch is 1"
    )
    assert [got.body for got in iter(speaker.get, None)] == [b"1", b"3", b"5"]


@pytest.mark.parametrize(("kind", "waits"), [("failed", "basic.reject"), ("returned", "basic.nack"), ("all", "both")])
def test_delayed_retry_by_type(broker_is_ours: bool, speaker: Peer, kind: str, waits: str) -> None:
    if not broker_is_ours:
        pytest.skip(OURS)
    arguments = {"x-delayed-retry-type": kind, "x-delayed-retry-min": 60_000}
    for name in ("basic.reject", "basic.nack"):
        queue_name = f"{speaker.q}{name}"
        speaker.queue(queue_name, arguments=arguments)
        speaker.publish(queue_name, b"x")
        got = speaker.get(queue_name, no_ack=False)
        assert got is not None
        speaker.method(name, delivery_tag=got.method["delivery_tag"], requeue=True)
        assert (speaker.get(queue_name) is None) is (waits in (name, "both"))


def test_each_group_goes_to_one_consumer(broker_is_ours: bool, speaker: Peer) -> None:
    if not broker_is_ours:
        pytest.skip(OURS)
    speaker.queue(arguments={"x-group-by": "header:g"})
    for channel in (2, 3):
        speaker.channel(channel)
        speaker.call("basic.qos", channel, prefetch_count=1)
        speaker.call("basic.consume", channel, queue=speaker.q, consumer_tag="c")
    for number, group in enumerate(("a", "a", "b", 7, "7")):
        speaker.publish(payload=b"%d" % number, props=properties(headers={"g": group}))
    first = {channel: speaker.content("basic.deliver", channel) for channel in (2, 3)}
    assert {each.body for each in first.values()} == {b"0", b"2"}
    speaker.fence()
    group_channel = next(channel for channel, got in first.items() if got.body == b"0")
    order = itertools.count(1)
    for expected_body in (b"1", b"3", b"4"):
        speaker.method("basic.ack", group_channel, delivery_tag=next(order))
        assert speaker.content("basic.deliver", group_channel).body == expected_body
    speaker.fence()


def test_duplicates_are_confirmed_and_go_to_alternate_exchange(broker_is_ours: bool, speaker: Peer) -> None:
    if not broker_is_ours:
        pytest.skip(OURS)
    speaker.queue()
    speaker.queue(speaker.q + "-copies")
    speaker.exchange("fanout", speaker.x + "-copies")
    speaker.call("queue.bind", queue=speaker.q + "-copies", exchange=speaker.x + "-copies")
    speaker.exchange(DEDUP, arguments={"x-cache-size": 10, "alternate-exchange": speaker.x + "-copies"})
    speaker.call("queue.bind", queue=speaker.q, exchange=speaker.x)
    speaker.call("confirm.select")
    for tag, ident in enumerate((1, "1", 1, {"a": 1}, {"a": 1}), 1):
        props = properties(headers={"x-deduplication-header": ident})
        speaker.publish("k", b"%d" % tag, props, exchange=speaker.x, mandatory=True)
        assert speaker.expect("basic.ack")["delivery_tag"] == tag
    assert [got.body for got in iter(speaker.get, None)] == [b"1", b"2", b"4"]
    assert [got.body for got in iter(lambda: speaker.get(speaker.q + "-copies"), None)] == [b"3", b"5"]


def test_new_binding_gets_recent_messages(broker_is_ours: bool, speaker: Peer) -> None:
    if not broker_is_ours:
        pytest.skip(OURS)
    speaker.queue()
    speaker.exchange("x-recent-history", arguments={"x-recent-history-length": 2})
    for number, is_stored in enumerate((True, True, True, False)):
        props = properties(headers={} if is_stored else {"x-recent-history-no-store": True})
        speaker.publish("k", b"%d" % number, props, exchange=speaker.x)
    for _ in range(2):
        speaker.call("queue.bind", queue=speaker.q, exchange=speaker.x)
    assert [got.body for got in iter(speaker.get, None)] == [b"1", b"2"]
