"""tx.commit over several queues when something fails: no wrong answer, and no lost message.

Each test runs with a commit in one loop turn and with a commit in slices.
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
def server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryBroker]:
    if request.param == "slices":
        monkeypatch.setattr(handlers, "SMALL_COUNT", 0)
    server = MemoryBroker()
    server.broker.alarms.check = lambda: None  # type: ignore[method-assign]  # the simulated disk is not a real file system
    yield server
    server.end()


class OrderClient:
    """A client that gets one message from `in` and publishes to three queues in the same transaction."""

    def __init__(self, server: MemoryBroker, arguments: dict[str, object]) -> None:
        self.server = server
        self.client = Client(server, "shop")
        self.client.say(1, spec.Channel.Open(), spec.Confirm.Select(), spec.Queue.Declare(queue="in", durable=True))
        for name in TARGETS:
            self.client.say(1, spec.Queue.Declare(queue=name, durable=True, arguments=arguments if name == "b" else {}))
        server.settle()
        self.client.publish(1, "in", [b"an order"], PERSISTENT)
        server.settle()
        self.client.heard()

    def run_transaction(self, count: int, properties: bytes = PERSISTENT) -> spec.Tx.CommitOk | spec.Channel.Close:
        """Run the transaction and return the answer to its commit."""
        client = self.client
        client.say(2, spec.Channel.Open(), spec.Tx.Select(), spec.Basic.Get(queue="in"))
        self.server.settle()
        *_, got = client.heard()
        assert got.body == b"an order"
        client.say(2, spec.Basic.Ack(delivery_tag=got.method.delivery_tag))
        for name in TARGETS:
            client.publish(2, name, [b"%s %d" % (name.encode(), number) for number in range(count)], properties)
        self.server.settle()
        assert client.heard() == []
        client.say(2, spec.Tx.Commit())
        self.server.settle()
        (answer,) = client.heard()
        if isinstance(answer.method, spec.Channel.Close):
            client.say(2, spec.Channel.CloseOk())
            assert (answer.method.reply_code, answer.method.reply_text) == (
                406,
                "PRECONDITION_FAILED - partial tx completion",
            )
        return answer.method

    def ready(self, *names: str) -> list[int]:
        return [self.server.vhost.queue(name).ready_count for name in names]

    def assert_order_is_requeued(self) -> None:
        """Assert that the message whose ack was not committed is ready again, as redelivered."""
        self.client.say(3, spec.Channel.Open(), spec.Basic.Get(queue="in"))
        self.server.settle()
        *_, got = self.client.heard()
        assert (got.body, got.method.redelivered) == (b"an order", True)


def counts_after_kill(server: MemoryBroker) -> dict[str, int]:
    server.filesystem.capacity = server.filesystem.fault = None
    server.again(clean=False)
    counts = {}
    for name in ("in", *TARGETS):
        queue = server.vhost.queues[name]
        store = queue.backing.store
        assert store is not None
        store.recover()  # no event loop runs here to which a thread could report
        queue.prepare()
        counts[name] = int(queue.ready_count)
    return counts


@pytest.mark.parametrize("properties", [PERSISTENT, TRANSIENT])
def test_commit_to_full_queue_closes_channel_and_requeues_acked_message(
    server: MemoryBroker, properties: bytes
) -> None:
    """RabbitMQ gives the same answer, but there the acked message is gone."""
    client_under_test = OrderClient(server, FULL)
    assert isinstance(client_under_test.run_transaction(3, properties), spec.Channel.Close)
    assert client_under_test.ready("in", *TARGETS) == [1, 3, 2, 3]
    client_under_test.assert_order_is_requeued()


def test_commit_up_to_length_limit_is_complete(server: MemoryBroker) -> None:
    client_under_test = OrderClient(server, FULL)
    assert isinstance(client_under_test.run_transaction(2), spec.Tx.CommitOk)
    assert client_under_test.ready("in", *TARGETS) == [0, 2, 2, 2]
    assert counts_after_kill(server) == {"in": 0, "a": 2, "b": 2, "c": 2}


@pytest.mark.parametrize("name", TARGETS)
def test_failed_sync_of_one_log_closes_channel_and_requeues_acked_message(server: MemoryBroker, name: str) -> None:
    client_under_test = OrderClient(server, {})
    queue_id = server.vhost.queue(name).id

    def fault(call: str, path: str) -> OSError | None:
        return OSError(errno.EIO, "bad") if call == "fdatasync" and f"/{queue_id}/" in path else None

    server.filesystem.fault = fault
    assert isinstance(client_under_test.run_transaction(3), spec.Channel.Close)
    client_under_test.assert_order_is_requeued()
    assert counts_after_kill(server)["in"] == 1


def test_commit_on_filling_disk_is_all_or_nothing_per_queue(server: MemoryBroker) -> None:
    """At any amount of free space each queue has all or nothing; the order is acked only if the commit was answered."""
    answers = set()
    for free_bytes in range(0, 4000, 80):
        server_of_run = MemoryBroker()
        server_of_run.broker.alarms.check = lambda: None  # type: ignore[method-assign]
        client_under_test = OrderClient(server_of_run, {})
        server_of_run.filesystem.capacity = server_of_run.filesystem.used() + free_bytes
        answer = client_under_test.run_transaction(5)
        server_of_run.filesystem.capacity = None
        answers.add(type(answer))
        done = isinstance(answer, spec.Tx.CommitOk)
        counts = client_under_test.ready(*TARGETS)
        assert set(counts) <= {0, 5} and (counts == [5, 5, 5]) >= done, (free_bytes, counts)
        if not done:
            client_under_test.assert_order_is_requeued()
        found = counts_after_kill(server_of_run)
        assert {found[name] for name in TARGETS} <= {0, 5}, (free_bytes, found)
        assert found["in"] == (not done), (free_bytes, found)
        assert not done or found == {"in": 0, "a": 5, "b": 5, "c": 5}
        server_of_run.end()
    assert answers == {spec.Tx.CommitOk, spec.Channel.Close}


@pytest.mark.parametrize("fails", [False, True])
def test_started_commit_is_finished_after_connection_loss(server: MemoryBroker, fails: bool) -> None:
    """The commit includes its acks, except if a log fails."""
    client_under_test = OrderClient(server, {})
    client = Client(server, "lost")
    client.say(1, spec.Channel.Open(), spec.Tx.Select(), spec.Basic.Get(queue="in"))
    server.settle()
    *_, got = client.heard()
    client.say(1, spec.Basic.Ack(delivery_tag=got.method.delivery_tag))
    for name in TARGETS:
        client.publish(1, name, [b"1", b"2"], PERSISTENT)
    server.settle()
    if fails:
        queue_id = server.vhost.queue("b").id

        def fault(call: str, path: str) -> OSError | None:
            return OSError(errno.EIO, "bad") if call == "fdatasync" and f"/{queue_id}/" in path else None

        server.filesystem.fault = fault
    client.say(1, spec.Tx.Commit())
    client.vanish()
    server.settle()
    if fails:
        client_under_test.assert_order_is_requeued()
    else:
        assert client_under_test.ready("in", *TARGETS) == [0, 2, 2, 2]
    found = counts_after_kill(server)
    assert found["in"] == fails
    assert fails or found == {"in": 0, "a": 2, "b": 2, "c": 2}


def test_commands_after_commit_wait_for_it(server: MemoryBroker) -> None:
    """Commands that arrive in the same read as the commit are answered after it; a second ack of its message is an
    error.
    """
    client_under_test = OrderClient(server, {})
    client = client_under_test.client
    client.say(2, spec.Channel.Open(), spec.Tx.Select(), spec.Basic.Get(queue="in"))
    server.settle()
    *_, got = client.heard()
    client.say(2, spec.Basic.Ack(delivery_tag=got.method.delivery_tag))
    client.publish(2, "a", [b"first"], PERSISTENT)
    server.settle()
    client.say(2, spec.Tx.Commit(), spec.Basic.Get(queue="in"), spec.Basic.Get(queue="a"), spec.Tx.Rollback())
    server.settle()
    assert [(event.method.name, event.body) for event in client.heard()] == [
        ("Tx.CommitOk", None),
        ("Basic.GetEmpty", None),
        ("Basic.GetOk", b"first"),
        ("Tx.RollbackOk", None),
    ]
    client.say(2, spec.Basic.Ack(delivery_tag=got.method.delivery_tag))
    server.settle()
    (event,) = client.heard()
    assert event.method.reply_text == "PRECONDITION_FAILED - unknown delivery tag 1"
