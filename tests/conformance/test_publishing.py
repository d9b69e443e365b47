"""Returns, confirms, transactions, sender-selected distribution (CC, BCC), direct reply-to."""

from __future__ import annotations

import re

import pytest
from parties import Broker
from peer import Peer
from wire import Field, method, properties, publish

REPLY_TO = "amq.rabbitmq.reply-to"


def expect_confirms(peer: Peer, up_to: int, last: int = 0) -> None:
    """Expect acks of every tag from `last` + 1 to `up_to`, single or multiple, and no nack."""
    outstanding = set(range(last + 1, up_to + 1))
    while outstanding:
        ack = peer.expect("basic.ack")
        tag = ack["delivery_tag"]
        acked = {t for t in outstanding if t <= tag} if ack["multiple"] else {tag}
        assert acked <= outstanding, f"{ack} confirms a tag twice"
        outstanding -= acked


def bodies(peer: Peer, queue: str) -> list[bytes]:
    """Get all ready messages of a queue."""
    found = []
    while (got := peer.get(queue)) is not None:
        found.append(got.body)
    return found


# -- returns and confirms ---------------------------------------------------------------------------------------------


def test_return_precedes_its_confirm(speaker: Peer) -> None:
    speaker.call("confirm.select")
    speaker.publish("nosuch", b"back", mandatory=True)
    returned = speaker.content("basic.return")
    assert returned.method.arguments == {
        "reply_code": 312,
        "reply_text": "NO_ROUTE",
        "exchange": "",
        "routing_key": "nosuch",
    }
    assert returned.body == b"back"
    assert speaker.expect("basic.ack")["delivery_tag"] == 1


def test_earlier_messages_are_acked_before_return(broker_is_ours: bool, speaker: Peer) -> None:
    """RabbitMQ may delay the first ack and then send one for both; php-amqp's suite expects two."""
    speaker.call("confirm.select")
    speaker.send(publish("nosuch"), publish("nosuch", mandatory=True))
    if broker_is_ours:
        assert speaker.expect("basic.ack").arguments == {"delivery_tag": 1, "multiple": False}
        speaker.content("basic.return")
        assert speaker.expect("basic.ack").arguments == {"delivery_tag": 2, "multiple": False}


def test_routed_mandatory_message_is_not_returned(speaker: Peer) -> None:
    speaker.queue()
    speaker.publish(mandatory=True)
    speaker.fence()
    assert bodies(speaker, speaker.q) == [b"x"]


def test_unroutable_message_is_confirmed(speaker: Peer) -> None:
    speaker.call("confirm.select")
    speaker.publish("nosuch")
    expect_confirms(speaker, 1)


@pytest.mark.parametrize("mode", [1, 2], ids=["transient", "persistent"])
@pytest.mark.parametrize("durable", [False, True], ids=["transient-queue", "durable-queue"])
def test_confirms_of_all_messages(peer: Peer, durable: bool, mode: int) -> None:
    peer.queue(exclusive=False, durable=durable)
    peer.call("confirm.select")
    for n in range(50):
        peer.publish(payload=b"%d" % n, props=properties(delivery_mode=mode))
    expect_confirms(peer, 50)
    assert peer.call("queue.delete", queue=peer.q)["message_count"] == 50


def test_one_confirm_for_several_queues(speaker: Peer) -> None:
    """One confirm per message for any number of queues, one of them durable."""
    speaker.exchange("fanout")
    for n, durable in enumerate((True, False, False)):
        speaker.queue(f"{speaker.q}{n}", exclusive=False, durable=durable)
        speaker.call("queue.bind", queue=f"{speaker.q}{n}", exchange=speaker.x)
    speaker.call("confirm.select")
    for _ in range(3):
        speaker.publish("", props=properties(delivery_mode=2), exchange=speaker.x)
    expect_confirms(speaker, 3)
    speaker.fence()
    for n in range(3):
        assert speaker.call("queue.delete", queue=f"{speaker.q}{n}")["message_count"] == 3


@pytest.mark.parametrize("removal", ["queue.delete", "queue.purge"])
def test_messages_removed_before_the_confirm_are_confirmed(peer: Peer, removal: str) -> None:
    peer.queue(exclusive=False, durable=True)
    peer.call("confirm.select")
    peer.send(publish(peer.q, b"x", properties(delivery_mode=2)) * 20, method(removal, queue=peer.q))
    outstanding = set(range(1, 21))
    answered = False
    while outstanding or not answered:
        got = peer.read()
        if got.name == f"{removal}-ok":
            answered = True
            continue
        assert got.name == "basic.ack"
        outstanding -= (
            {t for t in outstanding if t <= got["delivery_tag"]} if got["multiple"] else {got["delivery_tag"]}
        )
    peer.fence()
    peer.call("queue.delete", queue=peer.q)


def test_expired_messages_are_confirmed(speaker: Peer) -> None:
    speaker.queue()
    speaker.call("confirm.select")
    speaker.publish(props=properties(expiration="0"))
    expect_confirms(speaker, 1)


def test_reject_publish_sends_nack(speaker: Peer) -> None:
    speaker.queue(arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    speaker.call("confirm.select")
    speaker.publish(payload=b"first")
    expect_confirms(speaker, 1)
    for payload in (b"second", b"third"):
        speaker.publish(payload=payload)
        nack = speaker.expect("basic.nack")
        # rabbit: requeue has its default, and multiple is set if every earlier publish was answered
        assert (nack["multiple"], nack["requeue"]) == (True, True)
    assert nack["delivery_tag"] == 3
    assert bodies(speaker, speaker.q) == [b"first"]


def test_nack_does_not_cover_an_unanswered_publish(speaker: Peer) -> None:
    """Publishes of one segment: the first is stored and waits for its confirm while the others are refused."""
    speaker.queue(arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    speaker.call("confirm.select")
    speaker.send(*(publish(speaker.q, payload) for payload in (b"stored", b"refused", b"refused")))
    outstanding = {1: "basic.ack", 2: "basic.nack", 3: "basic.nack"}
    while outstanding:
        got = speaker.read()
        tag = got["delivery_tag"]
        covered = [each for each in outstanding if each == tag or (got["multiple"] and each < tag)]
        assert tag in covered
        assert all(outstanding.pop(each) == got.name for each in covered)


def test_missing_exchange_in_confirm_mode_closes_channel(speaker: Peer) -> None:
    """The publish gets no confirm, and the next channel counts from 1."""
    speaker.call("confirm.select")
    speaker.publish("k", exchange="nosuch")
    speaker.expect_channel_close(404, 60, 40, "no exchange 'nosuch' in vhost '/'")
    speaker.call("confirm.select")
    speaker.publish("nosuch")
    expect_confirms(speaker, 1)


def test_confirm_select_again_keeps_counting(speaker: Peer) -> None:
    speaker.call("confirm.select")
    speaker.publish("nosuch")
    expect_confirms(speaker, 1)
    speaker.call("confirm.select")
    speaker.publish("nosuch")
    expect_confirms(speaker, 2, 1)


def test_get_after_publish_returns_message(speaker: Peer) -> None:
    speaker.queue()
    for n in range(20):
        speaker.send(publish(speaker.q, b"%d" % n) + method("basic.get", queue=speaker.q, no_ack=True))
        got = speaker.content("basic.get-ok")
        assert (got.body, got.method["message_count"]) == (b"%d" % n, 0)


def test_message_counts_are_of_ready_messages(speaker: Peer) -> None:
    speaker.queue()
    for _ in range(5):
        speaker.publish()
    first = speaker.get(no_ack=False)
    assert first is not None
    assert first.method["message_count"] == 4
    assert speaker.call("queue.declare", queue=speaker.q, exclusive=True)["message_count"] == 4
    assert speaker.call("queue.purge", queue=speaker.q)["message_count"] == 4
    speaker.method("basic.reject", delivery_tag=first.method["delivery_tag"], requeue=True)
    speaker.fence()
    assert speaker.call("queue.delete", queue=speaker.q)["message_count"] == 1


# -- transactions -----------------------------------------------------------------------------------------------------


def test_tx_publishes_at_commit(speaker: Peer) -> None:
    speaker.channel(2)
    speaker.queue()
    speaker.call("tx.select")
    speaker.publish(payload=b"a")
    speaker.publish(payload=b"b")
    speaker.fence()
    assert speaker.get(channel=2) is None
    speaker.call("tx.commit")
    assert [got.body for got in (speaker.get(channel=2), speaker.get(channel=2)) if got] == [b"a", b"b"]


@pytest.mark.parametrize("is_there", [False, True], ids=["new", "redeclared"])
@pytest.mark.parametrize("count", [1, 1001], ids=["small", "large"])
def test_tx_commit_finds_queue_declared_after_publish(speaker: Peer, is_there: bool, count: int) -> None:
    """The default exchange routes to a name; the queue that has the name at the commit gets the message."""
    if is_there:
        speaker.queue()
    speaker.call("tx.select")
    for _ in range(count):
        speaker.publish(payload=b"a", mandatory=True)
    speaker.call("queue.delete", queue=speaker.q)
    speaker.queue()
    speaker.call("tx.commit")
    assert speaker.call("queue.purge", queue=speaker.q)["message_count"] == count


def test_tx_rollback_drops_publishes(speaker: Peer) -> None:
    speaker.queue()
    speaker.call("tx.select")
    speaker.publish(payload=b"a")
    speaker.call("tx.rollback")
    speaker.publish(payload=b"b")
    speaker.call("tx.commit")
    assert bodies(speaker, speaker.q) == [b"b"]


def test_channel_close_requeues_acks_of_open_transaction(speaker: Peer) -> None:
    """A channel that closes with its transaction open requeues the messages; they are not bound to the transaction."""
    speaker.queue()
    speaker.publish()
    speaker.fence()
    speaker.channel(2)
    speaker.call("tx.select", 2)
    assert speaker.get(channel=2, no_ack=False) is not None
    speaker.method("basic.ack", 2, delivery_tag=1)
    speaker.call("channel.close", 2, reply_code=200)
    redelivered = speaker.get(no_ack=False)
    assert redelivered is not None and redelivered.method["redelivered"]
    speaker.method("basic.ack", delivery_tag=redelivered.method["delivery_tag"])
    speaker.fence()


def test_tx_returns_are_sent_before_commit_ok(speaker: Peer) -> None:
    speaker.call("tx.select")
    speaker.publish("nosuch", mandatory=True)
    speaker.fence()
    speaker.method("tx.commit")
    assert speaker.content("basic.return").method["reply_code"] == 312
    speaker.expect("tx.commit-ok")


def test_commands_after_commit_wait_with_full_output(peer: Peer) -> None:
    """The commit waits for the disk, and its return is larger than the output sent at once."""
    large = b"." * 750_000
    peer.queue(exclusive=False, durable=True)
    for _ in range(2):
        peer.publish(payload=large)
    peer.fence()
    peer.send(
        # The channel waits for this declaration: all that follows is queued behind it.
        method("queue.declare", queue=peer.q + "2", durable=True),
        *[method("basic.get", queue=peer.q, no_ack=True) for _ in range(2)],
        method("tx.select"),
        publish("nowhere", large, mandatory=True),
        publish(peer.q, b"kept", properties(delivery_mode=2)),
        method("tx.commit"),
        method("basic.get", queue=peer.q + "2"),
        method("queue.delete", queue=peer.q + "2"),
    )
    peer.expect("queue.declare-ok")
    for _ in range(2):
        assert peer.content("basic.get-ok").body == large
    peer.expect("tx.select-ok")
    assert peer.content("basic.return").body == large
    peer.expect("tx.commit-ok")
    peer.expect("basic.get-empty")
    peer.expect("queue.delete-ok")
    peer.call("queue.delete", queue=peer.q)


def test_tx_acks_take_effect_at_commit(speaker: Peer) -> None:
    """After a rollback the message is unacked again and can be acked later."""
    speaker.queue()
    speaker.publish()
    speaker.call("tx.select")
    speaker.call("tx.commit")
    got = speaker.get(no_ack=False)
    assert got is not None
    tag = got.method["delivery_tag"]
    speaker.method("basic.ack", delivery_tag=tag)
    speaker.call("tx.rollback")
    speaker.method("basic.ack", delivery_tag=tag)
    speaker.call("tx.commit")
    speaker.method("basic.ack", delivery_tag=tag)
    speaker.expect_channel_close(406, 60, 80, f"unknown delivery tag {tag}")
    assert speaker.get() is None


def test_tx_rejects_take_effect_at_commit(speaker: Peer) -> None:
    speaker.channel(2)
    speaker.queue()
    speaker.publish()
    speaker.call("tx.select")
    got = speaker.get(no_ack=False)
    assert got is not None
    speaker.method("basic.reject", delivery_tag=got.method["delivery_tag"], requeue=True)
    speaker.fence()
    assert speaker.get(channel=2) is None
    speaker.call("tx.commit")
    redelivered = speaker.get(channel=2)
    assert redelivered is not None
    assert redelivered.method["redelivered"] is True


def test_channel_close_rolls_back_transaction(speaker: Peer) -> None:
    """Uncommitted publishes are discarded, messages with uncommitted acks are requeued."""
    speaker.queue()
    speaker.publish(payload=b"old")
    speaker.call("tx.select")
    speaker.call("tx.commit")
    got = speaker.get(no_ack=False)
    assert got is not None
    speaker.method("basic.ack", delivery_tag=got.method["delivery_tag"])
    speaker.publish(payload=b"new")
    speaker.call("channel.close", reply_code=200)
    speaker.channel()
    assert bodies(speaker, speaker.q) == [b"old"]


# -- sender-selected keys ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("header", ["CC", "BCC"])
@pytest.mark.parametrize("kind", ["", "direct", "topic"])
def test_sender_selected_keys(speaker: Peer, kind: str, header: str) -> None:
    """Each key routes like a routing key; no queue gets the message twice; BCC is removed."""
    names = [f"{speaker.q}{n}" for n in range(3)]
    if kind:
        speaker.exchange(kind)
    for name in names:
        speaker.queue(name)
        if kind:
            speaker.call("queue.bind", queue=name, exchange=speaker.x, routing_key=name)
    props = properties(headers={header: [names[1], names[2], names[1], names[0]], "other": 1})
    speaker.publish(names[0], b"x", props, exchange=speaker.x if kind else "")
    for name in names:
        got = speaker.get(name)
        assert got is not None
        assert got.method["routing_key"] == names[0]
        assert got.props == (props if header == "CC" else properties(headers={"other": 1}))
        assert speaker.get(name) is None


def test_cc_through_exchange_binding(speaker: Peer) -> None:
    speaker.queue()
    speaker.exchange("direct")
    speaker.call("exchange.bind", destination=speaker.x, source="amq.fanout")
    speaker.call("queue.bind", queue=speaker.q, exchange=speaker.x, routing_key="copied")
    speaker.publish("other", b"x", properties(headers={"CC": ["copied"]}), exchange="amq.fanout")
    assert bodies(speaker, speaker.q) == [b"x"]


def test_bcc_as_only_header_is_removed(speaker: Peer) -> None:
    speaker.queue()
    speaker.publish("nosuch", b"x", properties(headers={"BCC": [speaker.q]}, message_id="m"))
    got = speaker.get()
    assert got is not None
    assert got.props in (properties(headers={}, message_id="m"), properties(message_id="m"))


def test_cc_array_routes_by_its_strings(speaker: Peer) -> None:
    """RabbitMQ 3.10.8 accepts the array and routes by its strings."""
    speaker.queue()
    speaker.publish("nosuch", b"x", properties(headers={"CC": [speaker.q, Field("S", "nosuch")]}))
    assert bodies(speaker, speaker.q) == [b"x"]


# -- direct reply-to --------------------------------------------------------------------------------------------------


def send_request(peer: Peer) -> str:
    """Send a request with a fast reply consumer; return the reply address that the server gets."""
    peer.queue()
    peer.call("basic.consume", queue=REPLY_TO, no_ack=True, consumer_tag="replies")
    peer.publish(payload=b"question", props=properties(correlation_id="7", reply_to=REPLY_TO))
    got = peer.get()
    assert got is not None
    assert got.body == b"question"
    found = re.search(rb"amq\.rabbitmq\.reply-to\.[!-~]+\.[!-~]+==", got.props)
    assert found is not None
    address = found[0].decode()
    assert got.props == properties(correlation_id="7", reply_to=address)
    return address


def test_direct_reply_to(broker: Broker, speaker: Peer) -> None:
    address = send_request(speaker)
    with broker.peer() as server:
        server.handshake()
        server.channel()
        declared = server.call("queue.declare", queue=address, passive=True)
        assert (declared["queue"], declared["consumer_count"]) == (address, 1)
        server.call("confirm.select")
        server.publish(address, b"answer", properties(correlation_id="7"))
        server.expect("basic.ack")
    reply = speaker.content("basic.deliver")
    assert reply.body == b"answer"
    assert reply.props == properties(correlation_id="7")
    assert (reply.method["consumer_tag"], reply.method["exchange"]) == ("replies", "")
    assert reply.method["routing_key"] == address


def test_direct_reply_to_forged(speaker: Peer) -> None:
    """A publish to a tampered address is dropped silently."""
    address = send_request(speaker)
    forged = address[:-4] + ("AAAA" if address[-4:] != "AAAA" else "BBBB")
    speaker.channel(2)
    speaker.publish(forged, b"evil", channel=2)
    speaker.fence(2)
    speaker.fence(1)
    speaker.method("queue.declare", 2, queue=forged, passive=True)
    speaker.expect_channel_close(404, 50, 10, channel=2)


def test_direct_reply_to_after_cancel(speaker: Peer) -> None:
    address = send_request(speaker)
    speaker.call("basic.cancel", consumer_tag="replies")
    speaker.channel(2)
    speaker.publish(address, b"late", channel=2)
    speaker.fence(2)
    speaker.fence(1)
    speaker.method("queue.declare", 2, queue=address, passive=True)
    speaker.expect_channel_close(404, 50, 10, f"no queue '{address}' in vhost '/'", channel=2)


def test_direct_reply_to_within_one_channel(speaker: Peer) -> None:
    """Request and reply on the channel that waits for the reply."""
    address = send_request(speaker)
    speaker.publish(address, b"answer", mandatory=False)
    assert speaker.content("basic.deliver").body == b"answer"
