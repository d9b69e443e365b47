"""Limits of vhosts and users: codes, methods and texts of RabbitMQ 3.10.8; closed objects do not count."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest
from parties import Broker
from peer import Peer

ROUNDS = 300


class LimitRig:
    """A vhost and a user for one test; limits are set through the admin API."""

    def __init__(self, broker: Broker) -> None:
        assert broker.process is not None
        self.process = broker.process
        self.broker = broker
        self.vhost = self.process.add_vhost()
        self.user = f"u-{secrets.token_hex(4)}"
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        self.process.api("PUT", f"/api/users/{self.user}", {"password": "pw", "tags": ""})
        self.process.api("PUT", f"/api/permissions/{self.vhost.name}/{self.user}", everything)

    def limit_vhost(self, **limits: int) -> None:
        value = {name.replace("_", "-"): limit for name, limit in limits.items()}
        self.process.api("PUT", f"/api/parameters/vhost-limits/{self.vhost.name}/limits", {"value": value})

    def limit_user(self, **limits: int) -> None:
        value = {name.replace("_", "-"): limit for name, limit in limits.items()}
        self.process.api("PUT", f"/api/amqpd/user-limits/{self.user}", {"value": value})

    def peer(self) -> Peer:
        peer = self.broker.peer()
        peer.user, peer.password, peer.vhost = self.user, "pw", self.vhost.name
        return peer

    def open_connection(self) -> Peer:
        peer = self.peer()
        peer.handshake()
        return peer

    def expect_refusal(self, text: str) -> None:
        with self.peer() as peer:
            peer.start()
            peer.send(peer.start_ok())
            peer.expect("connection.tune", 0)
            peer.send(peer.tune_ok(), peer.open())
            peer.expect_connection_close(530, 10, 40, text)

    def expect_full_vhost(self, limit: int) -> None:
        self.expect_refusal(
            f"access to vhost '{self.vhost.name}' refused for user '{self.user}': connection limit ({limit}) is reached"
        )

    def expect_full_user(self, limit: int) -> None:
        self.expect_refusal(f"connection refused for user '{self.user}': user connection limit ({limit}) is reached")


@pytest.fixture
def rig(broker: Broker) -> Iterator[LimitRig]:
    if broker.process is None:
        pytest.skip("sets limits through the admin API")
    rig = LimitRig(broker)
    yield rig
    rig.process.api("DELETE", f"/api/users/{rig.user}")
    rig.process.delete_vhost(rig.vhost.name)


def test_connection_limit_of_vhost(rig: LimitRig) -> None:
    rig.limit_vhost(max_connections=2)
    with rig.open_connection(), rig.open_connection():
        rig.expect_full_vhost(2)
        rig.limit_vhost(max_connections=-1)
        with rig.open_connection():
            rig.limit_vhost(max_connections=0)
            rig.expect_full_vhost(0)


def test_connection_limit_of_user(rig: LimitRig) -> None:
    rig.limit_user(max_connections=1)
    with rig.open_connection():
        rig.expect_full_user(1)
        with rig.broker.peer() as other:  # another user is not limited
            other.vhost = rig.vhost.name
            other.handshake()
    rig.limit_user(max_connections=0)
    rig.expect_full_user(0)


def test_vhost_limit_is_checked_before_user_limit_and_permissions(rig: LimitRig) -> None:
    rig.limit_user(max_connections=0)
    rig.limit_vhost(max_connections=0)
    rig.process.api("DELETE", f"/api/permissions/{rig.vhost.name}/{rig.user}")
    rig.expect_full_vhost(0)
    rig.limit_vhost()
    rig.expect_full_user(0)
    rig.limit_user(max_connections=-1)
    rig.expect_refusal(f"access to vhost '{rig.vhost.name}' refused for user '{rig.user}'")


def test_channel_limit_of_user_counts_all_connections(rig: LimitRig) -> None:
    text = "number of channels opened for user '{}' has reached the maximum allowed user limit of ({})"
    rig.limit_user(max_channels=3)
    with rig.open_connection() as one, rig.open_connection() as two:
        one.channel(1)
        one.channel(2)
        two.channel(7)
        two.method("channel.open", 8)
        two.expect_connection_close(530, 0, 0, text.format(rig.user, 3))
        one.channel(3)  # the channels of the closed connection are free
        one.call("channel.close", 1, reply_code=200)
        one.channel(4)
        one.method("basic.ack", 4, delivery_tag=99)
        one.expect_channel_close(406, 60, 80, "unknown delivery tag 99", channel=4)
        # A channel that the broker closed does not count, but it is open again.
        one.method("channel.open", 6)
        one.expect_connection_close(530, 0, 0, text.format(rig.user, 3))
    rig.limit_user(max_channels=0)
    with rig.open_connection() as peer:
        peer.method("channel.open", 1)
        peer.expect_connection_close(530, 0, 0, text.format(rig.user, 0))


def test_negotiated_channel_max_is_checked_before_user_limit(rig: LimitRig) -> None:
    rig.limit_user(max_channels=0)
    with rig.peer() as peer:
        peer.handshake(channel_max=1)
        rig.limit_user(max_channels=1)
        peer.channel(1)
        peer.method("channel.open", 2)
        peer.expect_connection_close(
            530, 0, 0, "number of channels opened (1) has reached the negotiated channel_max (1)"
        )


def test_queue_limit_of_vhost(rig: LimitRig) -> None:
    rig.limit_vhost(max_queues=2)
    error_text = f"cannot declare queue '{{}}': queue limit in vhost '{rig.vhost.name}' (2) is reached"
    with rig.open_connection() as peer:
        peer.channel(1)
        peer.call("queue.declare", queue="a", durable=True)
        server_named = peer.call("queue.declare", queue="", exclusive=True)["queue"]
        for arguments in ({}, {"durable": True}, {"exclusive": True}, {"arguments": {"x-message-ttl": -1}}):
            peer.method("queue.declare", queue="b", **arguments)
            peer.expect_channel_close(406, 50, 10, error_text.format("b"))
        peer.method("queue.declare", queue="amq.b")
        peer.expect_channel_close(403, 50, 10, "queue name 'amq.b' contains reserved prefix 'amq.*'")
        rig.limit_vhost(max_queues=0)
        peer.call("queue.declare", queue="a", durable=True)  # exists already
        rig.limit_vhost(max_queues=2)
        peer.call("queue.delete", queue=server_named)
        peer.call("queue.declare", queue="b", auto_delete=True)
        peer.method("queue.declare", queue="c", durable=True)
        peer.expect_channel_close(406, 50, 10, error_text.format("c"))


def test_pending_declarations_count_towards_queue_limit(rig: LimitRig) -> None:
    """A pending durable declaration counts before its commit."""
    rig.limit_vhost(max_queues=5)
    with rig.open_connection() as peer:
        numbers = range(1, 31)
        for number in numbers:
            peer.channel(number)
        for number in numbers:
            peer.method("queue.declare", number, queue=f"q{number}", durable=True)
        answers = [peer.read().name for _ in numbers]
        assert sorted(set(answers)) == ["channel.close", "queue.declare-ok"]
        assert answers.count("queue.declare-ok") == 5
    queues = rig.process.api("GET", f"/api/queues/{rig.vhost.name}")
    assert isinstance(queues, list)
    assert len(queues) == 5


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["close", "break", "half a handshake", "hard error", "from outside"])
def test_closed_objects_are_not_counted(rig: LimitRig, ending: str) -> None:
    """Open and close hundreds: afterwards the limit can still be reached, and not exceeded."""
    rig.limit_vhost(max_connections=2, max_queues=1)
    rig.limit_user(max_connections=2, max_channels=2)
    for number in range(ROUNDS):
        peer = rig.peer()
        if ending == "half a handshake":
            peer.start()
            peer.send(peer.start_ok())
            peer.expect("connection.tune", 0)
            peer.socket.close()
            continue
        peer.handshake()
        peer.channel(1)
        peer.channel(2)
        peer.call("queue.declare", queue=f"q{number}", exclusive=True)
        if ending == "close":
            peer.call("connection.close", 0, reply_code=200)
        elif ending == "hard error":
            peer.method("channel.open", 1)
            peer.expect_connection_close(504, 20, 10, "second 'channel.open' seen")
        elif ending == "from outside":
            rig.process.api("POST", "/api/amqpd/close_all_connections", {"reason": "x", "vhost": rig.vhost.name})
            peer.expect_connection_close(320, 0, 0, "x")
        else:
            peer.socket.close()
            continue
        peer.socket.close()
    if ending in ("break", "half a handshake"):
        rig.broker.peer().socket.close()  # one loop turn later
    with rig.open_connection() as one, rig.open_connection() as two:
        rig.expect_full_vhost(2)
        one.channel(1)
        two.channel(1)
        one.call("queue.declare", queue="last", exclusive=True)
        two.method("queue.declare", queue="more", exclusive=True)
        two.expect_channel_close(406, 50, 10)
        two.method("channel.open", 2)
        two.expect_connection_close(530, 0, 0)
