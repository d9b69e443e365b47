"""Errors of every method, and valid edge cases."""

from __future__ import annotations

from typing import Any

from cases import Case, ChannelClose, Chunked, ConnectionClose, answers, both, filled_queue, own_queue, run
from parties import Broker
from peer import Peer
from wire import method, publish

DEFAULT_EXCHANGE = "operation not permitted on the default exchange"
NO_QUEUE = "no queue 'nosuch' in vhost '/'"
NO_EXCHANGE = "no exchange 'nosuch' in vhost '/'"
NONE_DECLARED = "no previously declared queue"
UNIMPLEMENTED = "unimplemented method"
IN_EXCLUSIVE_USE = "queue '{q}' in vhost '/' in exclusive use"
LOCKED = (
    "cannot obtain exclusive access to locked queue '{q}' in vhost '/'. It could be originally declared on another "
    "connection or the exclusive property value does not match that of the original declaration."
)


def on_queue(name: str, **arguments: Any) -> Any:
    """Return a builder of this method on the peer's own queue."""
    return lambda peer: method(name, queue=peer.q, **arguments)


def on_exchange(name: str, **arguments: Any) -> Any:
    """Return a builder of this method on the peer's own exchange."""
    return lambda peer: method(name, exchange=peer.x, **arguments)


def own_exchange(peer: Peer) -> None:
    peer.exchange("fanout")


def consumed_queue(peer: Peer) -> None:
    peer.queue()
    peer.call("basic.consume", queue=peer.q, consumer_tag="T")


def exclusively_consumed_queue(peer: Peer) -> None:
    peer.queue()
    peer.call("basic.consume", queue=peer.q, consumer_tag="T", exclusive=True)


def one_unacked(peer: Peer) -> None:
    filled_queue(peer)
    assert peer.get(no_ack=False) is not None


def one_confirmed(peer: Peer) -> None:
    peer.call("confirm.select")
    peer.publish("nosuch")
    peer.expect("basic.ack")


QUEUES = [
    Case(
        "E1",
        on_queue("queue.declare", exclusive=True, auto_delete=True),
        ChannelClose(
            406,
            50,
            10,
            "inequivalent arg 'auto_delete' for queue '{q}' in vhost '/': received 'true' but current is 'false'",
        ),
        own_queue,
    ),
    Case(
        "E1-exclusive-durable",
        on_queue("queue.declare", exclusive=True, durable=True),
        answers("queue.declare-ok"),
        own_queue,
    ),
    Case("E1-exclusive", on_queue("queue.declare"), ChannelClose(405, 50, 10, LOCKED), own_queue),
    *(
        Case(
            f"E1-{kind}-{durability}-without-a-name",
            # the negative length is an error, too, but of a later check
            method(
                "queue.declare",
                queue="",
                durable=durability == "durable",
                arguments={"x-queue-type": kind, "x-max-length": -1},
            ),
            ChannelClose(406, 50, 10, f"Cannot declare a server-named queue for type rabbit_{kind}_queue"),
        )
        for kind in ("quorum", "stream")
        for durability in ("durable", "transient")
    ),
    Case(
        "E10",
        method("queue.declare", queue="nosuch", passive=True),
        ChannelClose(404, 50, 10, NO_QUEUE),
    ),
    Case("E11", method("queue.delete", queue="nosuch"), answers("queue.delete-ok", message_count=0)),
    Case(
        "E12",
        on_queue("queue.delete", if_empty=True),
        ChannelClose(406, 50, 40, "queue '{q}' in vhost '/' not empty"),
        filled_queue,
    ),
    Case(
        "E12-in-use",
        on_queue("queue.delete", if_unused=True),
        ChannelClose(406, 50, 40, "queue '{q}' in vhost '/' in use"),
        consumed_queue,
    ),
    Case("E12-count", on_queue("queue.delete"), answers("queue.delete-ok", message_count=1), filled_queue),
    Case("E13", method("queue.purge", queue="nosuch"), ChannelClose(404, 50, 30, NO_QUEUE)),
    Case("E13-count", on_queue("queue.purge"), answers("queue.purge-ok", message_count=1), filled_queue),
    Case("E14", on_queue("queue.bind", exchange="nosuch"), ChannelClose(404, 50, 20, NO_EXCHANGE), own_queue),
    Case("E14-both", method("queue.bind", queue="none", exchange="nosuch"), ChannelClose(404, 50, 20, NO_EXCHANGE)),
    Case("E14-queue", method("queue.bind", queue="nosuch", exchange="amq.direct"), ChannelClose(404, 50, 20, NO_QUEUE)),
    Case("E15", on_queue("queue.bind"), ChannelClose(403, 50, 20, DEFAULT_EXCHANGE), own_queue),
    Case("E15-unbind", on_queue("queue.unbind"), ChannelClose(403, 50, 50, DEFAULT_EXCHANGE), own_queue),
    Case("none-bind", method("queue.bind", exchange="amq.direct"), ChannelClose(404, 50, 20, NONE_DECLARED)),
    Case("none-unbind", method("queue.unbind", exchange="amq.direct"), ChannelClose(404, 50, 50, NONE_DECLARED)),
    Case("none-get", method("basic.get"), ChannelClose(404, 60, 70, NONE_DECLARED)),
    Case("none-consume", method("basic.consume"), ChannelClose(404, 60, 20, NONE_DECLARED)),
    Case("none-purge", method("queue.purge"), ChannelClose(404, 50, 30, NONE_DECLARED)),
    Case("none-delete", method("queue.delete"), ChannelClose(404, 50, 40, NONE_DECLARED)),
    Case("last-get", method("basic.get"), answers("basic.get-ok", "<header>", "<body>"), filled_queue),
    Case("last-purge", method("queue.purge"), answers("queue.purge-ok", message_count=1), filled_queue),
    Case("last-delete", method("queue.delete"), answers("queue.delete-ok", message_count=1), filled_queue),
    Case(
        "last-bind",
        lambda peer: (
            method("queue.bind", exchange="amq.direct") + publish(peer.q, exchange="amq.direct") + method("basic.get")
        ),
        answers("queue.bind-ok", "basic.get-ok", "<header>", "<body>"),
        own_queue,
    ),
    Case(
        "unbind-missing",
        lambda peer: (
            method("queue.unbind", queue=peer.q, exchange="nosuch")
            + method("queue.unbind", queue="nosuch", exchange="amq.direct")
            + method("queue.unbind", queue=peer.q, exchange="amq.direct", routing_key="never")
        ),
        answers("queue.unbind-ok", "queue.unbind-ok", "queue.unbind-ok"),
        own_queue,
    ),
    Case(
        "again-passive",
        on_queue("queue.declare", passive=True),
        answers("queue.declare-ok", queue="{q}", message_count=1, consumer_count=0),
        filled_queue,
        ours="may count before it has queued what was published just now",
    ),
    Case(
        "again-counts-ready-only",
        on_queue("queue.declare", exclusive=True),
        answers("queue.declare-ok", queue="{q}", message_count=0, consumer_count=0),
        one_unacked,
    ),
]

EXCHANGES = [
    Case("E16", method("exchange.declare", type="direct"), ChannelClose(403, 40, 10, DEFAULT_EXCHANGE)),
    Case("E16-passive", method("exchange.declare", passive=True), ChannelClose(403, 40, 10, DEFAULT_EXCHANGE)),
    Case("E16-delete", method("exchange.delete"), ChannelClose(403, 40, 20, DEFAULT_EXCHANGE)),
    Case("E16-source", method("exchange.bind", destination="amq.fanout"), ChannelClose(403, 40, 30, DEFAULT_EXCHANGE)),
    Case("E16-destination", method("exchange.bind", source="amq.fanout"), ChannelClose(403, 40, 30, DEFAULT_EXCHANGE)),
    Case(
        "E17",
        method("exchange.declare", exchange="amq.new", type="direct"),
        ChannelClose(403, 40, 10, "exchange name 'amq.new' contains reserved prefix 'amq.*'"),
    ),
    Case(
        "E18",
        on_exchange("exchange.declare", type="nosuch"),
        ConnectionClose(503, 40, 10, "unknown exchange type 'nosuch'"),
    ),
    Case("E18-empty", on_exchange("exchange.declare"), ConnectionClose(503, 40, 10, "invalid exchange type ''")),
    Case(
        "E18-passive",
        method("exchange.declare", exchange="amq.direct", type="nosuch", passive=True),
        answers("exchange.declare-ok"),
    ),
    Case(
        "E19",
        method("exchange.declare", exchange="amq.direct", type="fanout", durable=True),
        ChannelClose(
            406,
            40,
            10,
            "inequivalent arg 'type' for exchange 'amq.direct' in vhost '/': received 'fanout' but current is 'direct'",
        ),
    ),
    Case(
        "E19-equal",
        method("exchange.declare", exchange="amq.direct", type="direct", durable=True),
        answers("exchange.declare-ok"),
    ),
    Case(
        "E20",
        method("exchange.delete", exchange="amq.direct"),
        ChannelClose(403, 40, 20, "deletion of system exchange 'amq.direct' in vhost '/' not allowed"),
    ),
    Case(
        "E20-missing",
        method("exchange.delete", exchange="amq.nosuch"),
        ChannelClose(403, 40, 20, "deletion of system exchange 'amq.nosuch' in vhost '/' not allowed"),
    ),
    Case("E21", method("exchange.delete", exchange="nosuch"), answers("exchange.delete-ok")),
    Case(
        "E21-in-use",
        on_exchange("exchange.delete", if_unused=True),
        ChannelClose(406, 40, 20, "exchange '{x}' in vhost '/' in use"),
        lambda peer: (own_exchange(peer), own_queue(peer), peer.call("queue.bind", queue=peer.q, exchange=peer.x))[0],
    ),
    Case(
        "missing-passive",
        method("exchange.declare", exchange="nosuch", passive=True),
        ChannelClose(404, 40, 10, NO_EXCHANGE),
    ),
    Case(
        "missing-source",
        method("exchange.bind", destination="amq.fanout", source="nosuch"),
        ChannelClose(404, 40, 30, NO_EXCHANGE),
    ),
    Case(
        "missing-destination",
        method("exchange.bind", destination="nosuch", source="amq.fanout"),
        ChannelClose(404, 40, 30, NO_EXCHANGE),
    ),
    Case(
        "unbind-missing",
        method("exchange.unbind", destination="nosuch", source="nosuch2"),
        answers("exchange.unbind-ok"),
    ),
    Case(
        "E22",
        lambda peer: (
            method("exchange.declare", exchange=peer.x, type="fanout")
            + method("exchange.bind", destination=peer.x, source=peer.x)
            + method("queue.bind", queue=peer.q, exchange=peer.x)
            + publish("k", exchange=peer.x)
            + method("queue.purge", queue=peer.q)
            + method("exchange.delete", exchange=peer.x)
        ),
        answers("exchange.declare-ok", "exchange.bind-ok", "queue.bind-ok", "queue.purge-ok", "exchange.delete-ok"),
        own_queue,
    ),
    Case(
        "lines-are-stripped",
        lambda peer: (
            method("exchange.declare", exchange=f"{peer.x}\r\n", type="fanout")
            + method("exchange.declare", exchange=peer.x, passive=True)
            + method("exchange.delete", exchange=peer.x)
        ),
        answers("exchange.declare-ok", "exchange.declare-ok", "exchange.delete-ok"),
    ),
]

BASIC = [
    Case("E23", method("basic.consume", queue="nosuch"), ChannelClose(404, 60, 20, NO_QUEUE)),
    Case("E23-get", method("basic.get", queue="nosuch"), ChannelClose(404, 60, 70, NO_QUEUE)),
    Case(
        "E24",
        on_queue("basic.consume", consumer_tag="T"),
        ConnectionClose(530, 60, 20, "attempt to reuse consumer tag 'T'"),
        consumed_queue,
    ),
    Case(
        "E24-none-declared",
        method("basic.consume", queue="amq.rabbitmq.reply-to", no_ack=True, consumer_tag="T")
        + method("basic.consume", consumer_tag="T"),
        ChannelClose(404, 60, 20, NONE_DECLARED, replies=("basic.consume-ok",)),
    ),
    Case(
        "E24-nosuch",
        method("basic.consume", queue="nosuch", consumer_tag="T"),
        ConnectionClose(530, 60, 20, "attempt to reuse consumer tag 'T'"),
        consumed_queue,
    ),
    Case(
        "E25",
        method("basic.consume", consumer_tag="T"),
        answers("basic.consume-ok", "basic.deliver", "<header>", "<body>"),
        filled_queue,
    ),
    Case("E26", method("basic.cancel", consumer_tag="nosuch"), answers("basic.cancel-ok", consumer_tag="nosuch")),
    Case("E27", method("basic.ack"), ChannelClose(406, 60, 80, "unknown delivery tag 0")),
    Case("E28", method("basic.ack", delivery_tag=999), ChannelClose(406, 60, 80, "unknown delivery tag 999")),
    Case("E28-82", method("basic.ack", delivery_tag=82), ChannelClose(406, 60, 80, "unknown delivery tag 82")),
    Case("E28-nack", method("basic.nack", delivery_tag=82), ChannelClose(406, 60, 120, "unknown delivery tag 82")),
    Case("E29", method("basic.ack", multiple=True), answers()),
    Case(
        "E29-99",
        method("basic.ack", delivery_tag=99, multiple=True),
        ChannelClose(406, 60, 80, "unknown delivery tag 99"),
    ),
    Case("E29-nack", method("basic.nack", multiple=True), answers()),
    Case(
        "E30",
        method("basic.ack", delivery_tag=1) * 2,
        ChannelClose(406, 60, 80, "unknown delivery tag 1"),
        one_unacked,
    ),
    Case(
        "E30-reject",
        method("basic.reject", delivery_tag=1) + method("basic.ack", delivery_tag=1),
        ChannelClose(406, 60, 80, "unknown delivery tag 1"),
        one_unacked,
    ),
    Case(
        "E31",
        method("basic.nack", delivery_tag=2**64 - 1, multiple=True),
        ChannelClose(406, 60, 120, "unknown delivery tag 18446744073709551615"),
    ),
    Case("E32", method("basic.reject", delivery_tag=5), ChannelClose(406, 60, 90, "unknown delivery tag 5")),
    Case("E33", method("basic.qos", prefetch_size=10), ConnectionClose(540, 60, 10, "prefetch_size!=0 (10)")),
    Case("E34", method("basic.qos", prefetch_count=10, global_=True), answers("basic.qos-ok")),
    Case("E35", method("basic.recover"), ConnectionClose(540, 60, 110, "requeue=false")),
    Case("E35-async", method("basic.recover-async"), ConnectionClose(540, 60, 100, "requeue=false")),
    Case("E36", method("basic.recover", requeue=True), answers("basic.recover-ok")),
    Case("E36-async", method("basic.recover-async", requeue=True), answers()),
    Case("E37", method("channel.flow"), ConnectionClose(540, 20, 20, "active=false")),
    Case("E37-active", method("channel.flow", active=True), answers("channel.flow-ok", active=True)),
    Case("E42", method("basic.deliver"), ConnectionClose(503, 60, 60), ours="waits for a content header"),
    Case("E42-return", method("basic.return"), ConnectionClose(503, 60, 50), ours="waits for a content header"),
    Case("E42-get-ok", method("basic.get-ok"), ConnectionClose(503, 60, 71), ours="waits for a content header"),
    Case("E42-get-empty", method("basic.get-empty"), ConnectionClose(503, 60, 72, UNIMPLEMENTED)),
    Case("E42-declare-ok", method("queue.declare-ok"), ConnectionClose(503, 50, 11, UNIMPLEMENTED)),
    Case("E42-flow-ok", method("channel.flow-ok", active=True), ConnectionClose(503, 20, 21, UNIMPLEMENTED)),
    Case(
        "E43",
        method("basic.ack", delivery_tag=1),
        ChannelClose(406, 60, 80, "unknown delivery tag 1"),
        one_confirmed,
    ),
    Case("E44", method("access.request"), answers("access.request-ok", ticket=1)),
    Case("E45", method("channel.close-ok"), ConnectionClose(503, 20, 41, UNIMPLEMENTED)),
    Case(
        "E46",
        method("channel.close", reply_code=200) + method("basic.qos"),
        ConnectionClose(504, 60, 10, "expected 'channel.open'", replies=("channel.close-ok",)),
        ours="ignores the method",
    ),
    Case(
        "E47",
        lambda peer: method("basic.get", queue=peer.q, no_ack=True) * 2000,
        answers("basic.get-ok", "<header>", "<body>", *["basic.get-empty"] * 1999),
        filled_queue,
        cheap=False,
    ),
    Case(
        "E51",
        on_queue("basic.consume", consumer_tag="U", exclusive=True),
        ChannelClose(403, 60, 20, IN_EXCLUSIVE_USE),
        consumed_queue,
    ),
    Case(
        "E51-after",
        on_queue("basic.consume", consumer_tag="U"),
        ChannelClose(403, 60, 20, IN_EXCLUSIVE_USE),
        exclusively_consumed_queue,
    ),
]

MODES = [
    Case("E38", method("tx.commit"), ChannelClose(406, 90, 20, "channel is not transactional")),
    Case("E38-rollback", method("tx.rollback"), ChannelClose(406, 90, 30, "channel is not transactional")),
    Case(
        "E39",
        method("confirm.select") + method("tx.select"),
        ChannelClose(406, 90, 10, "cannot switch from confirm to tx mode", replies=("confirm.select-ok",)),
    ),
    Case(
        "E40",
        method("tx.select") + method("confirm.select"),
        ChannelClose(406, 85, 10, "cannot switch from tx to confirm mode", replies=("tx.select-ok",)),
    ),
    Case(
        "E41",
        method("tx.select") + publish("k", exchange="nosuch") + method("tx.commit"),
        ChannelClose(404, 60, 40, NO_EXCHANGE, replies=("tx.select-ok",)),
    ),
    Case("select-again", method("confirm.select") * 2, answers("confirm.select-ok", "confirm.select-ok")),
    Case("tx-again", method("tx.select") * 2, answers("tx.select-ok", "tx.select-ok")),
    Case(
        "tx-empty",
        method("tx.select") + method("tx.commit") + method("tx.rollback"),
        answers("tx.select-ok", "tx.commit-ok", "tx.rollback-ok"),
    ),
]

REPLY_TO = [
    Case(
        "consume-with-acks",
        method("basic.consume", queue="amq.rabbitmq.reply-to"),
        ChannelClose(406, 60, 20, "reply consumer cannot acknowledge"),
    ),
    Case(
        "consume-twice",
        method("basic.consume", queue="amq.rabbitmq.reply-to", no_ack=True, consumer_tag="a")
        + method("basic.consume", queue="amq.rabbitmq.reply-to", no_ack=True, consumer_tag="b"),
        ChannelClose(406, 60, 20, "reply consumer already set", replies=("basic.consume-ok",)),
    ),
    Case(
        "consume-cancel-consume",
        (
            method("basic.consume", queue="amq.rabbitmq.reply-to", no_ack=True, consumer_tag="a")
            + method("basic.cancel", consumer_tag="a")
        )
        * 2,
        answers("basic.consume-ok", "basic.cancel-ok", "basic.consume-ok", "basic.cancel-ok"),
    ),
    *[
        Case(
            f"declare-plain{suffix}",
            method("queue.declare", queue="amq.rabbitmq.reply-to", passive=passive),
            answers("queue.declare-ok", queue="amq.rabbitmq.reply-to", message_count=0, consumer_count=1),
        )
        for suffix, passive in (("", True), ("-active", False))
    ],
    *[
        Case(
            f"declare-forged{suffix}",
            method("queue.declare", queue="amq.rabbitmq.reply-to.zzz", passive=passive),
            ChannelClose(404, 50, 10, "no queue 'amq.rabbitmq.reply-to.zzz' in vhost '/'"),
        )
        for suffix, passive in (("", True), ("-active", False))
    ],
]


@both(QUEUES)
def test_queues(peer: Peer, chunked: Chunked) -> None:
    run(peer, chunked)


@both(EXCHANGES)
def test_exchanges(peer: Peer, chunked: Chunked) -> None:
    run(peer, chunked)


@both(BASIC)
def test_basic(peer: Peer, chunked: Chunked) -> None:
    run(peer, chunked)


@both(MODES)
def test_confirm_and_tx(peer: Peer, chunked: Chunked) -> None:
    run(peer, chunked)


@both(REPLY_TO)
def test_reply_to(peer: Peer, chunked: Chunked) -> None:
    run(peer, chunked)


def test_e1_redeclaration_with_other_durability(peer: Peer) -> None:
    """The queue is not exclusive and must be deleted here."""
    peer.queue(exclusive=False)
    peer.method("queue.declare", queue=peer.q, durable=True)
    peer.expect_channel_close(
        406, 50, 10, "inequivalent arg 'durable' for queue '{q}' in vhost '/': received 'true' but current is 'false'"
    )
    peer.method("queue.declare", queue=peer.q, exclusive=True)
    peer.expect_channel_close(405, 50, 10, LOCKED)
    assert peer.call("queue.delete", queue=peer.q)["message_count"] == 0


def test_f3_exclusive_queue_is_locked_for_other_connections(broker: Broker, peer: Peer) -> None:
    """Every operation gets the same 405; the queue is unaffected."""
    peer.queue()
    peer.call("queue.bind", queue=peer.q, exchange="amq.direct")
    peer.publish()
    with broker.peer("thief") as other_peer:
        other_peer.q = peer.q
        other_peer.handshake()
        other_peer.channel()
        for name, arguments, ids in [
            ("queue.declare", {"passive": True}, (50, 10)),
            ("queue.declare", {"exclusive": True}, (50, 10)),
            ("queue.declare", {}, (50, 10)),
            ("queue.purge", {}, (50, 30)),
            ("queue.delete", {}, (50, 40)),
            ("queue.bind", {"exchange": "amq.direct"}, (50, 20)),
            ("queue.unbind", {"exchange": "amq.direct"}, (50, 50)),
            ("basic.get", {}, (60, 70)),
            ("basic.consume", {}, (60, 20)),
        ]:
            other_peer.method(name, queue=peer.q, **arguments)
            other_peer.expect_channel_close(405, *ids, LOCKED)
    assert peer.get() is not None


def test_long_reply_text_is_cut_between_characters(peer: Peer) -> None:
    """A short string has 255 bytes. Names of two-byte characters stay valid UTF-8; as in RabbitMQ, dots mark the
    cut.
    """
    for size in (109, 110, 115, 116, 117, 118, 127):
        peer.method("queue.declare", queue="\u00e4" * size, passive=True)
        text = peer.expect_channel_close(404, 50, 10)["reply_text"].encode("utf-8", "surrogateescape")
        assert len(text) <= 255
        assert text.decode("utf-8").endswith("..." if size > 109 else "' in vhost '/'")
