"""Exchanges with pika's BlockingConnection: all types, exchange bindings, alternate exchanges, refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pika
import pytest
from conversation import Unique, bound, channel_error, drain, send
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import (
    UnroutableError,
)


def test_direct_exchange_routes_by_equal_key(channel: BlockingChannel, exchange: Callable[..., str]) -> None:
    name = exchange("direct")
    left, right, both = bound(channel, name, "l"), bound(channel, name, "r"), bound(channel, name, "l", "r")
    for key in ("l", "r", "", "L"):
        send(channel, key, key, exchange=name)
    assert [drain(channel, q) for q in (left, right, both)] == [["l"], ["r"], ["l", "r"]]
    channel.queue_unbind(both, name, "l")
    send(channel, "l", "again", exchange=name)
    assert drain(channel, both) == []


def test_fanout_exchange_routes_once_to_each_queue(channel: BlockingChannel, exchange: Callable[..., str]) -> None:
    name = exchange("fanout", durable=True)
    queues = [bound(channel, name, "ignored", "twice") for _ in range(5)]
    send(channel, "any", "m", exchange=name)
    assert [drain(channel, q) for q in queues] == [["m"]] * 5


def test_topic_exchange_matches_wildcards(channel: BlockingChannel, exchange: Callable[..., str]) -> None:
    name = exchange("topic")
    patterns = ["a.b", "*.b", "a.*", "#", "a.#", "#.b", "*", "a.*.b", "#.#", "*.#", "", "a.#.b"]
    queues = {pattern: bound(channel, name, pattern) for pattern in patterns}
    expected = {
        "a.b": ["a.b", "*.b", "a.*", "#", "a.#", "#.b", "#.#", "*.#", "a.#.b"],
        "a": ["#", "a.#", "*", "#.#", "*.#"],
        "": ["#", "#.#", ""],
        "a..b": ["#", "a.#", "#.b", "a.*.b", "#.#", "*.#", "a.#.b"],
        "a.": ["a.*", "#", "a.#", "#.#", "*.#"],
        "x.y.z": ["#", "#.#", "*.#"],
    }
    for key, matching in expected.items():
        send(channel, key, key, exchange=name)
        assert sorted(p for p, q in queues.items() if drain(channel, q)) == sorted(matching), key


def test_headers_exchange_matches_by_x_match(channel: BlockingChannel, exchange: Callable[..., str]) -> None:
    name = exchange("headers")
    bindings: dict[str, dict[str, Any]] = {
        "all": {"x-match": "all", "a": 1, "b": "x"},
        "any": {"x-match": "any", "a": 1, "b": "x"},
        "default": {"a": 1, "b": "x"},
        "all-x": {"x-match": "all-with-x", "a": 1, "x-k": 1},
        "any-x": {"x-match": "any-with-x", "x-k": 1},
        "all ignores x-": {"x-match": "all", "x-k": 1},
        "any ignores x-": {"x-match": "any", "x-k": 1},
        "present": {"x-match": "all", "a": None},
        "nothing, all": {"x-match": "all"},
        "nothing, any": {"x-match": "any"},
    }
    queues = {k: bound(channel, name, "", arguments=v) for k, v in bindings.items()}
    always = ["all ignores x-", "nothing, all"]
    for headers, matching in (
        ({"a": 1, "b": "x"}, ["all", "any", "default", "present"]),
        ({"a": 1}, ["any", "present"]),
        ({"a": "1", "b": "y"}, ["present"]),
        ({"a": 1, "x-k": 1}, ["any", "all-x", "any-x", "present"]),
        ({"x-k": 1}, ["any-x"]),
        ({}, []),
        (None, []),
    ):
        send(channel, "k", "m", exchange=name, headers=headers)
        assert sorted(k for k, q in queues.items() if drain(channel, q)) == sorted(matching + always), headers


def test_invalid_x_match_is_refused(connection: pika.BlockingConnection, queue: str) -> None:
    for value, text in (
        (23, "Invalid x-match field type signedint (value 23); expected longstr"),
        ("foo", 'Invalid x-match field value <<"foo">>; expected all, any, all-with-x, or any-with-x'),
    ):
        with channel_error(406, f"PRECONDITION_FAILED - {text}"):
            connection.channel().queue_bind(queue, "amq.headers", "", {"x-match": value})


def test_cycle_of_exchange_bindings_delivers_once(channel: BlockingChannel, exchange: Callable[..., str]) -> None:
    first, second, third = exchange("fanout"), exchange("topic"), exchange("direct")
    channel.exchange_bind(second, first)
    channel.exchange_bind(second, first, "#")
    channel.exchange_bind(third, second, "a.#")
    channel.exchange_bind(first, third, "a.b")
    one, two, three = bound(channel, first, ""), bound(channel, second, "#"), bound(channel, third, "a.b")
    send(channel, "a.b", "m", exchange=first)
    assert [drain(channel, q) for q in (one, two, three)] == [["m"]] * 3
    send(channel, "a.b", "n", exchange=third)
    assert [drain(channel, q) for q in (one, two, three)] == [["n"]] * 3
    channel.exchange_unbind(third, second, "a.#")
    send(channel, "a.b", "o", exchange=first)
    assert [drain(channel, q) for q in (one, two, three)] == [["o"], ["o"], []]


def test_alternate_exchanges_get_unrouted_messages(channel: BlockingChannel, exchange: Callable[..., str]) -> None:
    last = exchange("fanout")
    middle = exchange("direct", arguments={"alternate-exchange": last})
    first = exchange("direct", arguments={"alternate-exchange": middle})
    first_queue, middle_queue, last_queue = (
        bound(channel, first, "a"),
        bound(channel, middle, "b"),
        bound(channel, last, ""),
    )
    channel.confirm_delivery()
    for key in ("a", "b", "c"):
        channel.basic_publish(first, key, key.encode(), mandatory=True)
    assert [drain(channel, q) for q in (first_queue, middle_queue, last_queue)] == [["a"], ["b"], ["c"]]


def test_missing_or_cyclic_alternate_exchange_is_unroutable(
    channel: BlockingChannel, exchange: Callable[..., str]
) -> None:
    unrouted = exchange("direct", arguments={"alternate-exchange": "nosuch"})
    one = exchange("direct")
    channel.confirm_delivery()
    with pytest.raises(UnroutableError):
        channel.basic_publish(unrouted, "k", b"m", mandatory=True)
    two = exchange("direct", arguments={"alternate-exchange": one})
    assert two != one
    with pytest.raises(UnroutableError):
        channel.basic_publish(two, "k", b"m", mandatory=True)


def test_publish_to_internal_exchange_is_refused(
    connection: pika.BlockingConnection, channel: BlockingChannel, exchange: Callable[..., str]
) -> None:
    inner, outer = exchange("fanout", internal=True), exchange("fanout")
    channel.exchange_bind(inner, outer)
    queue = bound(channel, inner, "")
    send(channel, "", "m", exchange=outer)
    assert drain(channel, queue) == ["m"]
    with channel_error(403, f"ACCESS_REFUSED - cannot publish to internal exchange '{inner}' in vhost '/'"):
        other = connection.channel()
        send(other, "", "m", exchange=inner)
        other.queue_declare("", exclusive=True)


def test_auto_delete_exchange_is_deleted_with_its_last_binding(
    connection: pika.BlockingConnection, channel: BlockingChannel, unique: Unique
) -> None:
    name = unique("auto")
    channel.exchange_declare(name, "direct", auto_delete=True)
    one, two = bound(channel, name, "k"), bound(channel, name, "k")
    channel.queue_unbind(one, name, "k")
    connection.channel().exchange_declare(name, passive=True)
    channel.queue_delete(two)
    with channel_error(404, f"NOT_FOUND - no exchange '{name}' in vhost '/'"):
        connection.channel().exchange_declare(name, passive=True)


def test_delete_if_unused_refuses_a_bound_exchange(
    connection: pika.BlockingConnection, channel: BlockingChannel, exchange: Callable[..., str]
) -> None:
    name = exchange("direct")
    queue = bound(channel, name, "k")
    with channel_error(406, f"PRECONDITION_FAILED - exchange '{name}' in vhost '/' in use"):
        connection.channel().exchange_delete(name, if_unused=True)
    channel.queue_unbind(queue, name, "k")
    channel.exchange_delete(name, if_unused=True)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            {"exchange_type": "direct"},
            "'type' for exchange '{x}' in vhost '/': received 'direct' but current is 'fanout'",
        ),
        ({"durable": True}, "'durable' for exchange '{x}' in vhost '/': received 'true' but current is 'false'"),
        ({"internal": True}, "'internal' for exchange '{x}' in vhost '/': received 'true' but current is 'false'"),
    ],
    ids=["type", "durable", "internal"],
)
def test_inequivalent_exchange_declaration_is_refused(
    connection: pika.BlockingConnection, exchange: Callable[..., str], change: dict[str, Any], text: str
) -> None:
    name = exchange("fanout")
    with channel_error(406, f"PRECONDITION_FAILED - inequivalent arg {text.format(x=name)}"):
        connection.channel().exchange_declare(name, **{"exchange_type": "fanout", **change})


def test_predeclared_exchanges_exist(channel: BlockingChannel) -> None:
    for name, kind in (
        ("direct", "direct"),
        ("fanout", "fanout"),
        ("topic", "topic"),
        ("headers", "headers"),
        ("match", "headers"),
    ):
        channel.exchange_declare(f"amq.{name}", kind, durable=True)
