"""Shared code of the tests of consumers: put messages into a queue, collect deliveries."""

from __future__ import annotations

import time
from collections.abc import Callable

from peer import Content, Peer
from wire import properties

PERSISTENT = properties(delivery_mode=2)
Declare = Callable[[Peer], None]


def fill(peer: Peer, count: int, queue: str | None = None) -> None:
    """Messages "0", "1", ... in the queue for certain."""
    for n in range(count):
        peer.publish(queue, b"%d" % n, PERSISTENT)
    peer.fence()


def take(peer: Peer, count: int, channel: int = 1) -> list[Content]:
    """The next `count` deliveries, and none beyond them."""
    got = [peer.content("basic.deliver", channel) for _ in range(count)]
    peer.fence(channel)
    return got


def numbers(contents: list[Content]) -> list[int]:
    return [int(content.body) for content in contents]


def rest(peer: Peer, queue: str | None = None, channel: int = 1) -> list[tuple[int, bool]]:
    """(number, redelivered) of everything ready."""
    found = []
    while (got := peer.get(queue, channel)) is not None:
        found.append((int(got.body), got.method["redelivered"]))
    return found


def eventually(peer: Peer, queue: str, count: int) -> None:
    """Waits until so many messages are ready: another connection's end takes its moment."""
    for _ in range(3000):
        if peer.call("queue.declare", queue=queue, passive=True)["message_count"] == count:
            return
        time.sleep(0.01)
    raise AssertionError(f"there are not {count} messages ready within 30 s")
