"""A clause as data: the bytes sent on an open channel, and the expected end.

`both(...)` turns a table of cases into tests: every case as a whole, and the cheap ones again byte by byte (cases of
the frame parser always, others in the thorough profile, tests/house/profiles.py). `ours` describes how RabbitMQ
3.10.8 differs; such a case is skipped there and asserted for amqpd.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from peer import Peer
from profiles import THOROUGH

Payload = bytes | Callable[[Peer], bytes]
CHUNKINGS = ("whole", "bytewise")


@dataclass(frozen=True)
class ConnectionClose:
    """connection.close with code, (class, method) and text; `None` matches any value."""

    code: int
    class_id: int | None = None
    method_id: int | None = None
    text: Any = None
    replies: tuple[str, ...] = ()

    def check(self, peer: Peer) -> None:
        for name in self.replies:
            peer.expect(name, None)
        peer.expect_connection_close(self.code, self.class_id, self.method_id, self.text)


@dataclass(frozen=True)
class ChannelClose:
    """channel.close after these replies. The channel can be opened again, and the connection stays open."""

    code: int
    class_id: int | None = None
    method_id: int | None = None
    text: Any = None
    replies: tuple[str, ...] = ()

    def check(self, peer: Peer) -> None:
        for name in self.replies:
            peer.expect(name, None)
        peer.expect_channel_close(self.code, self.class_id, self.method_id, self.text)
        peer.fence()


@dataclass(frozen=True)
class Answers:
    """Exactly these frames arrive (`<header>` and `<body>` for content), and the channel stays open."""

    names: tuple[str, ...] = ()
    arguments: dict[str, Any] | None = None

    def check(self, peer: Peer) -> None:
        for place, name in enumerate(self.names):
            frame = peer.expect(name, None)
            if place == len(self.names) - 1 and self.arguments:
                found = {key: frame[key] for key in self.arguments}
                expected = {
                    key: value.replace("{q}", peer.q).replace("{x}", peer.x) if isinstance(value, str) else value
                    for key, value in self.arguments.items()
                }
                assert found == expected
        peer.fence()


def answers(*names: str, **arguments: Any) -> Answers:
    """Return the expected frames. `arguments` are those of the last frame."""
    return Answers(names, arguments or None)


End = ConnectionClose | ChannelClose | Answers


@dataclass(frozen=True)
class Case:
    """One case.

    id: letter and number if it has one. ours: how RabbitMQ differs; empty if it does not.
    """

    id: str
    payload: Payload
    end: End
    before: Callable[[Peer], None] | None = None
    ours: str = ""
    cheap: bool = True


@dataclass(frozen=True)
class Chunked:
    case: Case
    chunking: str


def both(cases: Sequence[Case], parser: bool = False) -> pytest.MarkDecorator:
    """Parametrize `chunked` with every case, whole and byte by byte. parser: the cases are about the frame parser."""
    assert len({case.id for case in cases}) == len(cases), "two cases share an id"
    chosen = [
        pytest.param(Chunked(case, chunking), id=f"{case.id}-{chunking}")
        for case in cases
        for chunking in (CHUNKINGS if case.cheap and (parser or THOROUGH) else CHUNKINGS[:1])
    ]
    return pytest.mark.parametrize("chunked", chosen)


def run(peer: Peer, chunked: Chunked) -> None:
    """Prepare the peer, send the bytes, and check the end."""
    case = chunked.case
    if case.before is not None:
        case.before(peer)
    peer.bytewise_now()
    peer.send(case.payload(peer) if callable(case.payload) else case.payload)
    case.end.check(peer)


def own_queue(peer: Peer) -> None:
    peer.queue()


def filled_queue(peer: Peer) -> None:
    """Declare the peer's queue and publish one message to it."""
    peer.queue()
    peer.publish()
