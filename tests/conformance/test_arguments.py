"""Arguments of declare, bind and consume, and their equivalence."""

from __future__ import annotations

import time
from typing import Any

import pytest
from cases import Case, ChannelClose, Chunked, answers, both, own_queue, run
from peer import Peer
from wire import Field, method, publish

Arguments = dict[str, Any]


def invalid(id_: str, name: str, value: Any, why: str, ours: str = "") -> Case:
    """A queue.declare refused for one argument; `why` is the reason in the text."""
    return Case(
        id_,
        lambda peer: method("queue.declare", queue=peer.q, exclusive=True, arguments={name: value}),
        ChannelClose(406, 50, 10, f"invalid arg '{name}' for queue '{{q}}' in vhost '/': {why}"),
        ours=ours,
    )


def valid(id_: str, arguments: Arguments) -> Case:
    return Case(
        id_,
        lambda peer: method("queue.declare", queue=peer.q, exclusive=True, arguments=arguments),
        answers("queue.declare-ok", queue="{q}"),
    )


LARGE = Field("l", 2**40)
DECLARE = [
    invalid("E2", "x-message-ttl", -1, "{value_negative,-1}"),
    invalid("E3", "x-message-ttl", "5", '"expected integer, got longstr"'),
    invalid("E3-double", "x-message-ttl", 1.5, '"expected integer, got double"'),
    invalid("ttl-large", "x-message-ttl", LARGE, "{value_too_large,1099511627776}"),
    invalid("E4", "x-max-priority", 256, "{max_value_exceeded,256}"),
    invalid("E4-negative", "x-max-priority", -1, "{value_negative,-1}"),
    invalid("E5", "x-max-length", -1, "{value_negative,-1}"),
    invalid("E5-string", "x-max-length", "a", '"expected integer, got longstr"'),
    invalid("E5-bytes", "x-max-length-bytes", -1, "{value_negative,-1}"),
    invalid("E6", "x-overflow", "bogus", "invalid_overflow"),
    invalid("E6-integer", "x-overflow", 5, "{unacceptable_type,signedint}"),
    invalid("E7", "x-queue-type", "bogus", "\"unsupported queue type 'bogus'\""),
    invalid("E7-integer", "x-queue-type", 5, "{unacceptable_type,signedint}"),
    invalid("mode", "x-queue-mode", "foo", "\"unsupported queue mode 'foo'\""),
    invalid("mode-integer", "x-queue-mode", 4, "{unacceptable_type,signedint}"),
    invalid("E8", "x-dead-letter-routing-key", "k", "routing_key_but_no_dlx_defined"),
    invalid("expires-0", "x-expires", 0, "{value_zero,0}"),
    invalid("expires-string", "x-expires", "a", '"expected integer, got longstr"'),
    invalid("expires-negative", "x-expires", -1, "{value_negative,-1}"),
    invalid("expires-large", "x-expires", LARGE, "{value_too_large,1099511627776}"),
    invalid("single-active", "x-single-active-consumer", "a", "{unacceptable_type,longstr}"),
    Case(
        "dlx-integer",
        lambda peer: method("queue.declare", queue=peer.q, exclusive=True, arguments={"x-dead-letter-exchange": 5}),
        ChannelClose(
            406, 50, 10, "invalid type 'signedint' for arg 'x-dead-letter-exchange' in queue '{q}' in vhost '/'"
        ),
    ),
    Case(
        "dlk-integer",
        lambda peer: method(
            "queue.declare",
            queue=peer.q,
            exclusive=True,
            arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": 5},
        ),
        ChannelClose(
            406,
            50,
            10,
            "invalid arg 'x-dead-letter-routing-key' for queue '{q}' in vhost '/': {unacceptable_type,signedint}",
        ),
    ),
    Case(
        "delivery-limit",
        lambda peer: method("queue.declare", queue=peer.q, exclusive=True, arguments={"x-delivery-limit": 3}),
        ChannelClose(
            406,
            50,
            10,
            "invalid arg 'x-delivery-limit' for queue '{q}' in vhost '/' of queue type rabbit_classic_queue",
        ),
    ),
    Case(
        "alternate-integer",
        lambda peer: method(
            "exchange.declare", exchange=peer.x, type="fanout", auto_delete=True, arguments={"alternate-exchange": 5}
        ),
        ChannelClose(
            406, 40, 10, "invalid type 'signedint' for arg 'alternate-exchange' in exchange '{x}' in vhost '/'"
        ),
    ),
    valid("E9", {"x-foo": "a"}),
    valid("ttl-0", {"x-message-ttl": 0}),
    valid("priority-0", {"x-max-priority": 0}),
    valid("priority-255", {"x-max-priority": Field("s", 255)}),
    valid("length-0", {"x-max-length": 0}),
    valid("legacy", {"x-queue-mode": "lazy", "x-queue-version": 2, "x-queue-master-locator": "min-masters"}),
    valid("classic", {"x-queue-type": "classic"}),
    Case(
        "E52",
        lambda peer: method("queue.declare", queue=peer.q, exclusive=True, arguments={"x-a": "a" * 100_000}),
        ChannelClose(406, 50, 10),
        ours="takes any size",
        cheap=False,
    ),
    Case(
        "E50",
        lambda peer: method("basic.consume", queue=peer.q, arguments={"x-priority": "a"}),
        ChannelClose(
            406, 60, 20, "invalid arg 'x-priority' for queue '{q}' in vhost '/': \"expected integer, got longstr\""
        ),
        own_queue,
    ),
    Case(
        "E50-table",
        lambda peer: method("basic.consume", queue=peer.q, arguments={"x-priority": {}}),
        ChannelClose(
            406, 60, 20, "invalid arg 'x-priority' for queue '{q}' in vhost '/': \"expected integer, got table\""
        ),
        own_queue,
    ),
    Case(
        "E50-array",
        lambda peer: method("basic.consume", queue=peer.q, arguments={"x-priority": []}),
        ChannelClose(
            406, 60, 20, "invalid arg 'x-priority' for queue '{q}' in vhost '/': \"expected integer, got array\""
        ),
        own_queue,
    ),
    Case(
        "E50-void",
        lambda peer: method("basic.consume", queue=peer.q, arguments={"x-priority": None}),
        ChannelClose(
            406, 60, 20, "invalid arg 'x-priority' for queue '{q}' in vhost '/': \"expected integer, got void\""
        ),
        own_queue,
    ),
    Case(
        "E50-negative",
        lambda peer: method("basic.consume", queue=peer.q, consumer_tag="t", arguments={"x-priority": -5}),
        answers("basic.consume-ok", consumer_tag="t"),
        own_queue,
    ),
    Case(
        "E48",
        lambda peer: method("queue.bind", queue=peer.q, exchange="amq.headers", arguments={"x-match": "foo"}),
        ChannelClose(
            406,
            50,
            20,
            'Invalid x-match field value <<"foo">>; expected all, any, all-with-x, or any-with-x',
        ),
        own_queue,
    ),
    Case(
        "E48-integer",
        lambda peer: method("queue.bind", queue=peer.q, exchange="amq.headers", arguments={"x-match": 23}),
        ChannelClose(406, 50, 20, "Invalid x-match field type signedint (value 23); expected longstr"),
        own_queue,
    ),
    Case(
        "E48-exchange",
        method("exchange.bind", destination="amq.fanout", source="amq.headers", arguments={"x-match": 23}),
        ChannelClose(406, 40, 30, "Invalid x-match field type signedint (value 23); expected longstr"),
    ),
]


def inequivalent(id_: str, first: Arguments, second: Arguments, name: str, what: str) -> Case:
    """A second declare whose argument `name` differs; `what` is the end of the text."""
    return Case(
        id_,
        lambda peer: method("queue.declare", queue=peer.q, exclusive=True, arguments=second),
        ChannelClose(406, 50, 10, f"inequivalent arg '{name}' for queue '{{q}}' in vhost '/': {what}"),
        lambda peer: peer.queue(arguments=first),
    )


def equivalent(id_: str, first: Arguments, second: Arguments) -> Case:
    return Case(
        id_,
        lambda peer: method("queue.declare", queue=peer.q, exclusive=True, arguments=second),
        answers("queue.declare-ok", queue="{q}"),
        lambda peer: peer.queue(arguments=first),
    )


def exchange_again(id_: str, name: str, what: str, **second: Any) -> Case:
    """A fanout, auto-delete exchange with the alternate exchange `a`, declared again with a difference."""
    options = {"type": "fanout", "auto_delete": True, "arguments": {"alternate-exchange": "a"}} | second
    return Case(
        id_,
        lambda peer: method("exchange.declare", exchange=peer.x, **options),
        ChannelClose(406, 40, 10, f"inequivalent arg '{name}' for exchange '{{x}}' in vhost '/': {what}"),
        lambda peer: peer.exchange("fanout", arguments={"alternate-exchange": "a"}),
    )


TTL = {"x-message-ttl": 1000}
EQUIVALENCE = [
    inequivalent(
        "ttl-none", TTL, {}, "x-message-ttl", "received none but current is the value '1000' of type 'signedint'"
    ),
    inequivalent(
        "none-ttl", {}, TTL, "x-message-ttl", "received the value '1000' of type 'signedint' but current is none"
    ),
    inequivalent("ttl", TTL, {"x-message-ttl": 2000}, "x-message-ttl", "received '2000' but current is '1000'"),
    inequivalent(
        "expires", {"x-expires": 10000}, {"x-expires": 20000}, "x-expires", "received '20000' but current is '10000'"
    ),
    inequivalent("length", {"x-max-length": 1}, {"x-max-length": 2}, "x-max-length", "received '2' but current is '1'"),
    inequivalent(
        "length-bytes",
        {"x-max-length-bytes": 1},
        {"x-max-length-bytes": 2},
        "x-max-length-bytes",
        "received '2' but current is '1'",
    ),
    inequivalent(
        "priority",
        {"x-max-priority": 1},
        {},
        "x-max-priority",
        "received none but current is the value '1' of type 'signedint'",
    ),
    inequivalent(
        "overflow",
        {"x-overflow": "drop-head"},
        {"x-overflow": "reject-publish"},
        "x-overflow",
        "received 'reject-publish' but current is 'drop-head'",
    ),
    inequivalent(
        "none-overflow",
        {},
        {"x-overflow": "reject-publish"},
        "x-overflow",
        "received the value 'reject-publish' of type 'longstr' but current is none",
    ),
    inequivalent(
        "single-active",
        {"x-single-active-consumer": True},
        {},
        "x-single-active-consumer",
        "received none but current is the value 'true' of type 'bool'",
    ),
    inequivalent(
        "dlx",
        {"x-dead-letter-exchange": "a"},
        {"x-dead-letter-exchange": "b"},
        "x-dead-letter-exchange",
        "received 'b' but current is 'a'",
    ),
    inequivalent(
        "dlk",
        {},
        {"x-dead-letter-routing-key": "a"},
        "x-dead-letter-routing-key",
        "received the value 'a' of type 'longstr' but current is none",
    ),
    equivalent("unknown", {"x-foo": 1}, {"x-foo": "2", "x-bar": 1}),
    equivalent("default-type", {}, {"x-queue-type": "classic"}),
    exchange_again("x-type", "type", "received 'direct' but current is 'fanout'", type="direct"),
    exchange_again("x-durable", "durable", "received 'true' but current is 'false'", durable=True),
    exchange_again("x-auto-delete", "auto_delete", "received 'false' but current is 'true'", auto_delete=False),
    exchange_again("x-internal", "internal", "received 'true' but current is 'false'", internal=True),
    exchange_again(
        "x-alternate", "alternate-exchange", "received 'b' but current is 'a'", arguments={"alternate-exchange": "b"}
    ),
    exchange_again(
        "x-no-alternate",
        "alternate-exchange",
        "received none but current is the value 'a' of type 'longstr'",
        arguments={},
    ),
    Case(
        "x-unknown",
        lambda peer: method(
            "exchange.declare", exchange=peer.x, type="fanout", auto_delete=True, arguments={"foo": "b"}
        ),
        answers("exchange.declare-ok"),
        lambda peer: peer.exchange("fanout"),
    ),
]


@both(DECLARE)
def test_arguments(peer: Peer, chunked: Chunked) -> None:
    run(peer, chunked)


@both(EQUIVALENCE)
def test_redeclaration(peer: Peer, chunked: Chunked) -> None:
    run(peer, chunked)


@pytest.mark.parametrize("first", "bsIl")
def test_integers_of_different_types_are_equivalent(peer: Peer, first: str) -> None:
    peer.queue(arguments={"x-max-length": Field(first, 100)})
    for letter in "bBsuIil":
        peer.queue(arguments={"x-max-length": Field(letter, 100)})


QUORUM = [
    ("non-durable", {"durable": False}),
    ("exclusive-owner", {"durable": True, "exclusive": True}),
    ("auto-delete", {"durable": True, "auto_delete": True}),
    ("exclusive-owner", {"exclusive": True}),
    ("auto-delete", {"auto_delete": True, "exclusive": True}),
]


@pytest.mark.parametrize(("word", "options"), QUORUM, ids=["+".join(row[1]) for row in QUORUM])
def test_quorum_properties(peer: Peer, word: str, options: dict[str, bool]) -> None:
    peer.method("queue.declare", queue=peer.q, arguments={"x-queue-type": "quorum"}, **options)
    peer.expect_channel_close(406, 50, 10, f"invalid property '{word}' for queue '{{q}}' in vhost '/'")


def test_quorum_queue(peer: Peer) -> None:
    """A quorum queue is declared and compared as such; its consumers refuse a global prefetch window that is there."""
    peer.queue(exclusive=False, durable=True, arguments={"x-queue-type": "quorum"})
    peer.method("queue.declare", queue=peer.q, durable=True)
    peer.expect_channel_close(
        406,
        50,
        10,
        "inequivalent arg 'x-queue-type' for queue '{q}' in vhost '/': "
        "received none but current is the value 'quorum' of type 'longstr'",
    )
    peer.method("queue.declare", queue=peer.q, durable=True, arguments={"x-queue-type": "classic"})
    peer.expect_channel_close(
        406,
        50,
        10,
        "inequivalent arg 'x-queue-type' for queue '{q}' in vhost '/': received 'classic' but current is 'quorum'",
    )
    peer.channel(2)
    peer.call("basic.consume", 2, queue=peer.q)
    peer.call("basic.qos", 2, prefetch_count=1, global_=True)
    peer.method("basic.consume", 2, queue=peer.q)
    try:
        peer.expect_connection_close(540, 60, 20, "queue '{q}' in vhost '/' does not support global qos")
    finally:
        with Peer(f"amqp://{peer.user}:{peer.password}@{peer.host}:{peer.port}/") as cleaner:
            cleaner.handshake()
            cleaner.channel()
            cleaner.call("queue.delete", queue=peer.q)


def test_e49_many_hashes_in_binding_key_match_in_time(broker_is_ours: bool, peer: Peer) -> None:
    """The longest pattern of `#` against the longest key is matched in time; without memoization it would take
    hours.
    """
    words = 100 if broker_is_ours else 2  # 3.10.8 needs minutes
    peer.queue()
    peer.call("queue.bind", queue=peer.q, exchange="amq.topic", routing_key=".".join("#" * words))
    started = time.monotonic()
    peer.send(publish(".".join("a" * 100), exchange="amq.topic"))
    peer.fence()
    assert time.monotonic() - started < 30
    assert peer.get() is not None
