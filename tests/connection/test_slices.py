"""A large body is written in one slice per turn; other connections are served in between."""

from __future__ import annotations

from typing import Final

import pytest
from librt.strings import BytesWriter
from memory_broker import FRAME_MAX, MemoryBroker
from served import Served

from amqpd.broker.message import Message, MessageRoute, message_in_parts, write_header
from amqpd.channel.frame_writer import CUT_BYTES
from amqpd.connection.close_handler import CLOSING
from amqpd.connection.socket_writer import WRITE_BYTES_MAX
from amqpd.storage.log.record import RecordRoute

SIZE: Final = 16 << 20


def large(number: int) -> Message:
    parts = [bytes([number]) * 131064 for _ in range(SIZE // 131064)]
    size = sum(map(len, parts))
    header = BytesWriter()
    write_header(header, 1, b"\x00\x00", size)
    return message_in_parts(MessageRoute("", "q"), header.getvalue(), parts, size, False, None)


class Client:
    """A connection whose socket records each write, and may be full."""

    def __init__(self) -> None:
        self.memory_broker = MemoryBroker()
        self.served = Served(self.memory_broker)
        self.output = self.served.connection.output
        self.writes: list[int] = []
        self.full_after = 1 << 60
        self.sent = bytearray()
        self.served.socket.write = self.write  # type: ignore[method-assign]
        self.served.socket.writelines = self.writelines  # type: ignore[attr-defined]

    def write(self, data: bytes) -> None:
        self.writelines([data])

    def writelines(self, pieces: list[bytes]) -> None:
        data = b"".join(pieces)
        self.sent += data
        self.writes.append(len(data))
        if len(self.sent) >= self.full_after:
            self.full_after = 1 << 60
            self.served.transport.pause_writing()


@pytest.fixture
def client() -> Client:
    return Client()


def expected(*messages: Message) -> bytes:
    return b"".join(bytes(piece) for message in messages for piece in message.pieces(1, FRAME_MAX - 8))


def test_one_slice_per_turn(client: Client) -> None:
    first, second = large(1), large(2)
    client.output.write_content(1, first)
    client.output.write_content(1, second)
    client.output.flush()
    assert WRITE_BYTES_MAX <= client.writes[0] <= WRITE_BYTES_MAX + CUT_BYTES
    assert len(client.writes) == 1
    client.output.write(b"later")
    client.memory_broker.settle()
    assert max(client.writes) <= WRITE_BYTES_MAX + CUT_BYTES
    assert bytes(client.sent) == expected(first, second) + b"later"
    assert client.output.output_bytes() == 0
    assert client.output.sent_bytes == len(client.sent)


def test_writing_pauses_while_socket_is_full(client: Client) -> None:
    message = large(1)
    client.full_after = 3 << 20
    client.output.write_content(1, message)
    client.memory_broker.settle()
    assert 3 << 20 <= len(client.sent) < (4 << 20) + CUT_BYTES
    client.served.transport.resume_writing()
    client.memory_broker.settle()
    assert bytes(client.sent) == expected(message)


def test_closing_connection_writes_everything_at_once(client: Client) -> None:
    message = large(1)
    client.output.write_content(1, message)
    client.output.flush()
    client.output.write(b"close")
    client.served.connection.close_handler.set_state(CLOSING)
    client.output.flush()
    assert bytes(client.sent) == expected(message) + b"close"
    assert len(client.writes) == 2


def test_cut_output_is_written_before_the_turn_ends(client: Client) -> None:
    """A slice of a stream may leave early while others are served; small output waits for the end of the turn."""
    client.output.write(b"little")
    client.output.write_out()
    assert not client.writes
    client.output.cut_output()
    client.output.write(b" more")
    client.output.write_out()
    assert bytes(client.sent) == b"little more"
    assert client.output.output_bytes() == 0
    client.output.write(b", later")
    client.memory_broker.settle()
    assert bytes(client.sent) == b"little more, later"
    assert len(client.writes) == 2


def test_cut_output_waits_for_the_logs(client: Client) -> None:
    """Deliveries of a work queue are in its log, with their marks, before they are on the wire."""
    storage = client.memory_broker.storage
    _, store = storage.create_queue("v", "q", "/")
    store.append_parts(RecordRoute(b"", b"q"), b"", b"body", True)
    client.output.write(b"all")
    client.output.cut_output()
    client.output.write_out()
    assert not client.writes
    client.memory_broker.settle()
    assert bytes(client.sent) == b"all"
    assert not storage.context.dirty


def test_closing_connection_waits_for_the_end_of_the_turn(client: Client) -> None:
    client.output.write(b"all")
    client.output.cut_output()
    client.output.closing = True
    client.output.write_out()
    assert not client.writes
    client.memory_broker.settle()
    assert bytes(client.sent) == b"all"
