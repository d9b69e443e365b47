"""Users without all permissions. The tests need the admin API, so they run against amqpd only."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from parties import Broker
from peer import Peer
from wire import method, properties, publish

NewUser = Callable[..., str]


@pytest.fixture
def new_user(broker: Broker) -> Iterator[NewUser]:
    """Create users (password `pw`) with the given permissions in `/`; a user without any has no access to the vhost."""
    process = broker.process
    if process is None:
        pytest.skip("the admin API of a broker that runs elsewhere is not known")
    created: list[str] = []

    def create(tags: str = "", **permissions: str) -> str:
        name = f"u-{uuid.uuid4().hex[:8]}"
        process.api("PUT", f"/api/users/{name}", {"password": "pw", "tags": tags})
        created.append(name)
        if permissions:
            process.api(
                "PUT",
                f"/api/permissions/%2F/{name}",
                {"configure": "", "write": "", "read": ""} | permissions,
            )
        return name

    yield create
    for name in created:
        process.api("DELETE", f"/api/users/{name}")


def as_user(broker: Broker, name: str) -> Peer:
    peer = broker.peer("access")
    peer.user, peer.password = name, "pw"
    return peer


def test_user_without_permissions_is_refused_the_vhost(broker: Broker, new_user: NewUser) -> None:
    name = new_user()
    with as_user(broker, name) as peer:
        peer.start()
        peer.send(peer.start_ok())
        peer.expect("connection.tune", 0)
        peer.send(peer.tune_ok(), peer.open())
        peer.expect_connection_close(530, 10, 40, f"access to vhost '/' refused for user '{name}'")


def test_vhosts_are_independent(broker: Broker, peer: Peer) -> None:
    """The same names in two vhosts are independent; error texts name the vhost."""
    if broker.process is None:
        pytest.skip("the admin API of a broker that runs elsewhere is not known")
    vhost = broker.process.add_vhost()
    try:
        peer.queue()
        peer.publish()
        with broker.peer() as other:
            other.vhost = vhost.name
            other.handshake()
            other.channel()
            other.method("queue.declare", queue=peer.q, passive=True)
            other.expect_channel_close(404, 50, 10, f"no queue '{peer.q}' in vhost '{vhost.name}'")
            other.queue(peer.q)
            assert other.get(peer.q) is None
        assert peer.get() is not None
    finally:
        broker.process.delete_vhost(vhost.name)


ALL = {"configure": ".*", "write": ".*", "read": ".*"}
REFUSALS: dict[str, tuple[str, str, dict[str, Any], tuple[int, int], str]] = {
    "declare": ("configure", "queue.declare", {"queue": "{q}"}, (50, 10), "queue '{q}'"),
    "delete": ("configure", "queue.delete", {"queue": "{q}"}, (50, 40), "queue '{q}'"),
    "exchange": ("configure", "exchange.declare", {"exchange": "{x}", "type": "fanout"}, (40, 10), "exchange '{x}'"),
    "bind-queue": ("write", "queue.bind", {"queue": "{q}", "exchange": "amq.fanout"}, (50, 20), "queue '{q}'"),
    "bind-exchange": (
        "read",
        "queue.bind",
        {"queue": "{q}", "exchange": "amq.fanout"},
        (50, 20),
        "exchange 'amq.fanout'",
    ),
    "get": ("read", "basic.get", {"queue": "{q}"}, (60, 70), "queue '{q}'"),
    "consume": ("read", "basic.consume", {"queue": "{q}"}, (60, 20), "queue '{q}'"),
    "purge": ("read", "queue.purge", {"queue": "{q}"}, (50, 30), "queue '{q}'"),
}


@pytest.mark.parametrize("row", REFUSALS.values(), ids=REFUSALS.keys())
def test_access_refused(
    broker: Broker,
    new_user: NewUser,
    peer: Peer,
    row: tuple[str, str, dict[str, Any], tuple[int, int], str],
) -> None:
    """The user has two of configure, write and read, but not the required one."""
    missing, name, arguments, ids, resource = row
    user = new_user(**ALL | {missing: ""})
    peer.queue(exclusive=False)
    with as_user(broker, user) as other:
        other.handshake()
        other.channel()
        other.q = peer.q
        filled = {
            key: value.replace("{q}", other.q).replace("{x}", other.x) if isinstance(value, str) else value
            for key, value in arguments.items()
        }
        other.method(name, **filled)
        other.expect_channel_close(403, *ids, f"access to {resource} in vhost '/' refused for user '{user}'")
        other.call("queue.declare", queue=peer.q, passive=True)
    peer.call("queue.delete", queue=peer.q)


@pytest.mark.parametrize(("exchange", "shown_name"), [("", "amq.default"), ("amq.fanout", "amq.fanout")])
def test_publish_refused(broker: Broker, new_user: NewUser, exchange: str, shown_name: str) -> None:
    """The text calls the default exchange amq.default."""
    user = new_user(**ALL | {"write": "^$"})
    with as_user(broker, user) as other:
        other.handshake()
        other.channel()
        other.send(publish("k", exchange=exchange))
        other.expect_channel_close(
            403, 60, 40, f"access to exchange '{shown_name}' in vhost '/' refused for user '{user}'"
        )


def test_impersonator_may_use_any_user_id(broker: Broker, new_user: NewUser) -> None:
    user = new_user("impersonator", **ALL)
    with as_user(broker, user) as other:
        other.handshake()
        other.channel()
        other.queue()
        other.publish(props=properties(user_id="somebody"))
        other.fence()
        assert other.get() is not None


def test_revoked_permission_applies_to_open_connection(broker: Broker, new_user: NewUser) -> None:
    """Within about a second; cached routes must be dropped."""
    user = new_user(**ALL)
    assert broker.process is not None
    with as_user(broker, user) as other:
        other.handshake()
        other.channel()
        other.queue()
        for _ in range(3):
            other.publish()
        other.fence()
        broker.process.api("PUT", f"/api/permissions/%2F/{user}", ALL | {"write": "^$"})
        other.publish()
        other.expect_channel_close(
            403, 60, 40, f"access to exchange 'amq.default' in vhost '/' refused for user '{user}'"
        )
        other.send(method("queue.purge", queue=other.q))
        assert other.expect("queue.purge-ok")["message_count"] == 3
