"""Many new selectors in one read: they are parsed over several loop turns, and commands stay in order."""

from __future__ import annotations

from parties import Broker
from peer import Peer
from wire import method

COUNT = 40


def selector(number: int) -> str:
    return " OR ".join([f"a{number} = {each}" for each in range(40)])


def test_many_consumers_with_selectors_in_one_read(speaker: Peer) -> None:
    """On one channel: replies come in order, and the commands behind them wait."""
    speaker.queue()
    methods = [
        method("basic.consume", 1, queue=speaker.q, consumer_tag=f"t{n}", arguments={"x-filter": selector(n % 8)})
        for n in range(COUNT)
    ]
    speaker.send(b"".join(methods) + method("basic.cancel", 1, consumer_tag="t0"))
    for number in range(COUNT):
        assert speaker.expect("basic.consume-ok")["consumer_tag"] == f"t{number}"
    assert speaker.expect("basic.cancel-ok")["consumer_tag"] == "t0"
    speaker.fence()


def test_many_bindings_with_selectors_on_many_channels(speaker: Peer) -> None:
    speaker.queue()
    speaker.exchange("x-jms-topic")
    for number in range(2, COUNT):
        speaker.channel(number)
    methods = [
        method("queue.bind", number, queue=speaker.q, exchange=speaker.x, arguments={"x-selector": selector(number)})
        for number in range(1, COUNT)
    ]
    bad = method("queue.bind", 5, queue=speaker.q, exchange=speaker.x, arguments={"x-selector": selector(99) + " ?"})
    speaker.send(b"".join(methods) + bad)
    answers = {}
    for _ in range(COUNT):
        frame = speaker.read()
        answers.setdefault(frame.channel, []).append(frame.name)
    assert answers.pop(5) == ["queue.bind-ok", "channel.close"]
    assert answers == {number: ["queue.bind-ok"] for number in range(1, COUNT) if number != 5}


def test_connection_close_behind_many_selectors(speaker: Peer, broker: Broker) -> None:
    speaker.queue()
    methods = [
        method("basic.consume", 1, queue=speaker.q, consumer_tag=f"t{n}", arguments={"x-filter": selector(200 + n % 8)})
        for n in range(10)
    ]
    close = method("connection.close", 0, reply_code=200, reply_text="", class_id=0, method_id=0)
    speaker.send(b"".join(methods) + close)
    for number in range(10):
        assert speaker.expect("basic.consume-ok")["consumer_tag"] == f"t{number}"
    speaker.expect("connection.close-ok", channel=0)
    assert not broker.complaints()
