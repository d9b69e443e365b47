"""Limits of vhosts and users: codes, methods and texts of RabbitMQ 3.10.8; closed objects no longer count."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest
from parties import Broker
from peer import Peer

PLENTY = 300


class Place:
    """A vhost and a user of one's own; limits are set as operators set them."""

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

    def opened(self) -> Peer:
        peer = self.peer()
        peer.handshake()
        return peer

    def refused(self, text: str) -> None:
        with self.peer() as peer:
            peer.start()
            peer.send(peer.start_ok())
            peer.expect("connection.tune", 0)
            peer.send(peer.tune_ok(), peer.open())
            peer.expect_connection_close(530, 10, 40, text)

    def full_vhost(self, limit: int) -> None:
        self.refused(
            f"access to vhost '{self.vhost.name}' refused for user '{self.user}': connection limit ({limit}) is reached"
        )

    def full_user(self, limit: int) -> None:
        self.refused(f"connection refused for user '{self.user}': user connection limit ({limit}) is reached")


@pytest.fixture
def place(broker: Broker) -> Iterator[Place]:
    if broker.process is None:
        pytest.skip("sets limits through the admin API")
    place = Place(broker)
    yield place
    place.process.api("DELETE", f"/api/users/{place.user}")
    place.process.delete_vhost(place.vhost.name)


def test_connections_of_a_vhost(place: Place) -> None:
    place.limit_vhost(max_connections=2)
    with place.opened(), place.opened():
        place.full_vhost(2)
        place.limit_vhost(max_connections=-1)
        with place.opened():
            place.limit_vhost(max_connections=0)
            place.full_vhost(0)


def test_connections_of_a_user(place: Place) -> None:
    place.limit_user(max_connections=1)
    with place.opened():
        place.full_user(1)
        with place.broker.peer() as other:  # whom it does not concern
            other.vhost = place.vhost.name
            other.handshake()
    place.limit_user(max_connections=0)
    place.full_user(0)


def test_vhost_limit_then_user_limit_then_permissions(place: Place) -> None:
    place.limit_user(max_connections=0)
    place.limit_vhost(max_connections=0)
    place.process.api("DELETE", f"/api/permissions/{place.vhost.name}/{place.user}")
    place.full_vhost(0)
    place.limit_vhost()
    place.full_user(0)
    place.limit_user(max_connections=-1)
    place.refused(f"access to vhost '{place.vhost.name}' refused for user '{place.user}'")


def test_channels_of_a_user_over_all_connections(place: Place) -> None:
    text = "number of channels opened for user '{}' has reached the maximum allowed user limit of ({})"
    place.limit_user(max_channels=3)
    with place.opened() as one, place.opened() as two:
        one.channel(1)
        one.channel(2)
        two.channel(7)
        two.method("channel.open", 8)
        two.expect_connection_close(530, 0, 0, text.format(place.user, 3))
        one.channel(3)  # those of the closed connection are free
        one.call("channel.close", 1, reply_code=200)
        one.channel(4)
        one.method("basic.ack", 4, delivery_tag=99)
        one.expect_channel_close(406, 60, 80, "unknown delivery tag 99", channel=4)
        # A channel that the broker closed counted no more: it is open again.
        one.method("channel.open", 6)
        one.expect_connection_close(530, 0, 0, text.format(place.user, 3))
    place.limit_user(max_channels=0)
    with place.opened() as peer:
        peer.method("channel.open", 1)
        peer.expect_connection_close(530, 0, 0, text.format(place.user, 0))


def test_the_negotiated_channel_max_is_checked_first(place: Place) -> None:
    place.limit_user(max_channels=0)
    with place.peer() as peer:
        peer.handshake(channel_max=1)
        place.limit_user(max_channels=1)
        peer.channel(1)
        peer.method("channel.open", 2)
        peer.expect_connection_close(
            530, 0, 0, "number of channels opened (1) has reached the negotiated channel_max (1)"
        )


def test_queues_of_a_vhost(place: Place) -> None:
    place.limit_vhost(max_queues=2)
    full = f"cannot declare queue '{{}}': queue limit in vhost '{place.vhost.name}' (2) is reached"
    with place.opened() as peer:
        peer.channel(1)
        peer.call("queue.declare", queue="a", durable=True)
        server_named = peer.call("queue.declare", queue="", exclusive=True)["queue"]
        for arguments in ({}, {"durable": True}, {"exclusive": True}, {"arguments": {"x-message-ttl": -1}}):
            peer.method("queue.declare", queue="b", **arguments)
            peer.expect_channel_close(406, 50, 10, full.format("b"))
        peer.method("queue.declare", queue="amq.b")
        peer.expect_channel_close(403, 50, 10, "queue name 'amq.b' contains reserved prefix 'amq.*'")
        place.limit_vhost(max_queues=0)
        peer.call("queue.declare", queue="a", durable=True)  # it is there
        place.limit_vhost(max_queues=2)
        peer.call("queue.delete", queue=server_named)
        peer.call("queue.declare", queue="b", auto_delete=True)
        peer.method("queue.declare", queue="c", durable=True)
        peer.expect_channel_close(406, 50, 10, full.format("c"))


def test_a_flood_of_declarations_stops_at_the_limit(place: Place) -> None:
    """Durable queues wait for their commit, and count from the first of it."""
    place.limit_vhost(max_queues=5)
    with place.opened() as peer:
        numbers = range(1, 31)
        for number in numbers:
            peer.channel(number)
        for number in numbers:
            peer.method("queue.declare", number, queue=f"q{number}", durable=True)
        answers = [peer.read().name for _ in numbers]
        assert sorted(set(answers)) == ["channel.close", "queue.declare-ok"]
        assert answers.count("queue.declare-ok") == 5
    queues = place.process.api("GET", f"/api/queues/{place.vhost.name}")
    assert isinstance(queues, list)
    assert len(queues) == 5


@pytest.mark.parametrize("end", ["close", "break", "half a handshake", "hard error", "from outside"])
def test_closed_objects_are_not_counted(place: Place, end: str) -> None:
    """Hundreds of them: the last one still fits, and one more does not."""
    place.limit_vhost(max_connections=2, max_queues=1)
    place.limit_user(max_connections=2, max_channels=2)
    for number in range(PLENTY):
        peer = place.peer()
        if end == "half a handshake":
            peer.start()
            peer.send(peer.start_ok())
            peer.expect("connection.tune", 0)
            peer.socket.close()
            continue
        peer.handshake()
        peer.channel(1)
        peer.channel(2)
        peer.call("queue.declare", queue=f"q{number}", exclusive=True)
        if end == "close":
            peer.call("connection.close", 0, reply_code=200)
        elif end == "hard error":
            peer.method("channel.open", 1)
            peer.expect_connection_close(504, 20, 10, "second 'channel.open' seen")
        elif end == "from outside":
            place.process.api("POST", "/api/amqpd/close_all_connections", {"reason": "x", "vhost": place.vhost.name})
            peer.expect_connection_close(320, 0, 0, "x")
        else:
            peer.socket.close()
            continue
        peer.socket.close()
    if end in ("break", "half a handshake"):
        place.broker.peer().socket.close()  # a turn of the loop later
    with place.opened() as one, place.opened() as two:
        place.full_vhost(2)
        one.channel(1)
        two.channel(1)
        one.call("queue.declare", queue="last", exclusive=True)
        two.method("queue.declare", queue="more", exclusive=True)
        two.expect_channel_close(406, 50, 10)
        two.method("channel.open", 2)
        two.expect_connection_close(530, 0, 0)
