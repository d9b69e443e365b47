"""tx.commit over several queues where something fails: nothing is answered that is not so, and nothing is lost.

Each once as a commit of one turn, and once as one that is worked off in slices.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pamqp.commands as spec
import pytest
from memory_broker import Client, MemoryBroker

from amqpd.channel import handlers

PERSISTENT = b"\x10\x00\x02"
TRANSIENT = b"\x10\x00\x01"
TARGETS = ("a", "b", "c")
FULL = {"x-max-length": 2, "x-overflow": "reject-publish"}


@pytest.fixture(params=["one turn", "slices"])
def house(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryBroker]:
    if request.param == "slices":
        monkeypatch.setattr(handlers, "SMALL_COUNT", 0)
    house = MemoryBroker()
    house.broker.alarms.check = lambda: None  # type: ignore[method-assign]  # this disk is no file system
    yield house
    house.end()


class Shop:
    """Takes one message from `in` and publishes what it makes of it to three queues, in one transaction."""

    def __init__(self, house: MemoryBroker, arguments: dict[str, object]) -> None:
        self.house = house
        self.client = Client(house, "shop")
        self.client.say(1, spec.Channel.Open(), spec.Confirm.Select(), spec.Queue.Declare(queue="in", durable=True))
        for name in TARGETS:
            self.client.say(1, spec.Queue.Declare(queue=name, durable=True, arguments=arguments if name == "b" else {}))
        house.settle()
        self.client.publish(1, "in", [b"an order"], PERSISTENT)
        house.settle()
        self.client.heard()

    def work(self, count: int, properties: bytes = PERSISTENT) -> spec.Tx.CommitOk | spec.Channel.Close:
        """The answer to the commit."""
        client = self.client
        client.say(2, spec.Channel.Open(), spec.Tx.Select(), spec.Basic.Get(queue="in"))
        self.house.settle()
        *_, got = client.heard()
        assert got.body == b"an order"
        client.say(2, spec.Basic.Ack(delivery_tag=got.method.delivery_tag))
        for name in TARGETS:
            client.publish(2, name, [b"%s %d" % (name.encode(), number) for number in range(count)], properties)
        self.house.settle()
        assert client.heard() == []
        client.say(2, spec.Tx.Commit())
        self.house.settle()
        (answer,) = client.heard()
        if isinstance(answer.method, spec.Channel.Close):
            client.say(2, spec.Channel.CloseOk())
            assert (answer.method.reply_code, answer.method.reply_text) == (
                406,
                "PRECONDITION_FAILED - partial tx completion",
            )
        return answer.method

    def ready(self, *names: str) -> list[int]:
        return [self.house.vhost.queue(name).ready_count for name in names]

    def comes_back(self) -> None:
        """What the transaction had acked is there again, and says that it was delivered."""
        self.client.say(3, spec.Channel.Open(), spec.Basic.Get(queue="in"))
        self.house.settle()
        *_, got = self.client.heard()
        assert (got.body, got.method.redelivered) == (b"an order", True)


def in_the_next_life(house: MemoryBroker) -> dict[str, int]:
    house.filesystem.capacity = house.filesystem.fault = None
    house.again(clean=False)
    counts = {}
    for name in ("in", *TARGETS):
        queue = house.vhost.queues[name]
        store = queue.backing.store
        assert store is not None
        store.recover()  # as nobody runs the loop that a thread would tell
        queue.prepare()
        counts[name] = int(queue.ready_count)
    return counts


@pytest.mark.parametrize("properties", [PERSISTENT, TRANSIENT])
def test_a_full_queue_refuses(house: MemoryBroker, properties: bytes) -> None:
    """rabbit: the same answer, and what the transaction has acked is gone there."""
    shop = Shop(house, FULL)
    assert isinstance(shop.work(3, properties), spec.Channel.Close)
    assert shop.ready("in", *TARGETS) == [1, 3, 2, 3]
    shop.comes_back()


def test_a_queue_with_room_takes_all(house: MemoryBroker) -> None:
    shop = Shop(house, FULL)
    assert isinstance(shop.work(2), spec.Tx.CommitOk)
    assert shop.ready("in", *TARGETS) == [0, 2, 2, 2]
    assert in_the_next_life(house) == {"in": 0, "a": 2, "b": 2, "c": 2}


@pytest.mark.parametrize("name", TARGETS)
def test_a_sync_fails_under_one_of_three(house: MemoryBroker, name: str) -> None:
    shop = Shop(house, {})
    queue_id = house.vhost.queue(name).id

    def fault(call: str, path: str) -> OSError | None:
        return OSError(errno.EIO, "bad") if call == "fdatasync" and f"/{queue_id}/" in path else None

    house.filesystem.fault = fault
    assert isinstance(shop.work(3), spec.Channel.Close)
    shop.comes_back()
    assert in_the_next_life(house)["in"] == 1


def test_a_disk_that_fills_up_under_it(house: MemoryBroker) -> None:
    """Wherever it is full, each queue has all or nothing, and the order is acked if the commit was answered."""
    answers = set()
    for room in range(0, 4000, 80):
        own = MemoryBroker()
        own.broker.alarms.check = lambda: None  # type: ignore[method-assign]
        shop = Shop(own, {})
        own.filesystem.capacity = own.filesystem.used() + room
        answer = shop.work(5)
        own.filesystem.capacity = None
        answers.add(type(answer))
        done = isinstance(answer, spec.Tx.CommitOk)
        counts = shop.ready(*TARGETS)
        assert set(counts) <= {0, 5} and (counts == [5, 5, 5]) >= done, (room, counts)
        if not done:
            shop.comes_back()
        found = in_the_next_life(own)
        assert {found[name] for name in TARGETS} <= {0, 5}, (room, found)
        assert found["in"] == (not done), (room, found)
        assert not done or found == {"in": 0, "a": 5, "b": 5, "c": 5}
        own.end()
    assert answers == {spec.Tx.CommitOk, spec.Channel.Close}


@pytest.mark.parametrize("fails", [False, True])
def test_its_connection_is_lost_before_the_answer(house: MemoryBroker, fails: bool) -> None:
    """A commit that has begun is finished: with its acks, or, where a log fails, without."""
    shop = Shop(house, {})
    client = Client(house, "lost")
    client.say(1, spec.Channel.Open(), spec.Tx.Select(), spec.Basic.Get(queue="in"))
    house.settle()
    *_, got = client.heard()
    client.say(1, spec.Basic.Ack(delivery_tag=got.method.delivery_tag))
    for name in TARGETS:
        client.publish(1, name, [b"1", b"2"], PERSISTENT)
    house.settle()
    if fails:
        queue_id = house.vhost.queue("b").id

        def fault(call: str, path: str) -> OSError | None:
            return OSError(errno.EIO, "bad") if call == "fdatasync" and f"/{queue_id}/" in path else None

        house.filesystem.fault = fault
    client.say(1, spec.Tx.Commit())
    client.vanish()
    house.settle()
    if fails:
        shop.comes_back()
    else:
        assert shop.ready("in", *TARGETS) == [0, 2, 2, 2]
    found = in_the_next_life(house)
    assert found["in"] == fails
    assert fails or found == {"in": 0, "a": 2, "b": 2, "c": 2}


def test_what_is_said_behind_it_waits(house: MemoryBroker) -> None:
    """The ack of the commit's own message once more, a publish, a commit: in one read behind it."""
    shop = Shop(house, {})
    client = shop.client
    client.say(2, spec.Channel.Open(), spec.Tx.Select(), spec.Basic.Get(queue="in"))
    house.settle()
    *_, got = client.heard()
    client.say(2, spec.Basic.Ack(delivery_tag=got.method.delivery_tag))
    client.publish(2, "a", [b"first"], PERSISTENT)
    house.settle()
    client.say(2, spec.Tx.Commit(), spec.Basic.Get(queue="in"), spec.Basic.Get(queue="a"), spec.Tx.Rollback())
    house.settle()
    assert [(event.method.name, event.body) for event in client.heard()] == [
        ("Tx.CommitOk", None),
        ("Basic.GetEmpty", None),
        ("Basic.GetOk", b"first"),
        ("Tx.RollbackOk", None),
    ]
    client.say(2, spec.Basic.Ack(delivery_tag=got.method.delivery_tag))
    house.settle()
    (event,) = client.heard()
    assert event.method.reply_text == "PRECONDITION_FAILED - unknown delivery tag 1"
