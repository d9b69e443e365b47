"""What channels write into: the frames that gather in one turn of the loop.

Small frames and bodies gather in one buffer (`out`), which is set aside in pieces of CUT_BYTES (`cuts`): one buffer
that grows to a mebibyte would be two of them large. The parts of a large body go between them as they are. How all of
it leaves is the connection's matter, which derives from this.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, write_i64_be
from mypy_extensions import i64, mypyc_attr

from amqpd.broker.consumer import Consumer
from amqpd.broker.message import Message
from amqpd.broker.stream_message import StreamDeliveryEncoder
from amqpd.errors import NO_ROUTE
from amqpd.protocol import methods
from amqpd.protocol.frame import LARGE_BODY_BYTES
from amqpd.storage.log.record import RecordViews

# Output is set aside in pieces of this size: what is copied into one, and out of it again, stays in the nearer caches.
CUT_BYTES: Final = 64 * 1024
# Consumers rest while so much output waits for the end of the turn: more than comes of what one turn takes in
# (turn.TURN_BYTES_MAX), so that a consumer who reads is never passed over for what has just arrived.
OUT_BYTES_MAX: Final = 1792 * 1024
_ACK: Final = b"\x00\x00\x00\x0d\x00\x3c\x00\x50"
_NACK: Final = b"\x00\x00\x00\x0d\x00\x3c\x00\x78"


@mypyc_attr(allow_interpreted_subclasses=True)
class Output:
    """One connection's. Deliveries write into `out` themselves; everything else goes through the methods here."""

    def __init__(self) -> None:
        self.out = BytesWriter()
        self.cuts: list[bytes | memoryview] = []
        self.cut_bytes: i64 = 0
        self.flush_wanted = False
        # The peer does not read: the transport holds as much as it may.
        self.write_paused = False
        # Consumers that rest until there is room to write.
        self.starved: list[Consumer] = []
        # Payload bytes of the largest frame that the peer takes.
        self.frame_payload_max: i64 = 0
        self.delivered_count: i64 = 0
        # A publish came back: the output has grown by what the peer sent.
        self.returned = False
        # The connection ends: all of it goes with the next flush, and nobody is told anything more but why.
        self.closing = False

    def want_flush(self) -> None:
        """Sees to it that what has gathered leaves at the end of this turn. Sets `flush_wanted`."""
        raise NotImplementedError

    def write_out(self) -> None:
        """What is set aside already may leave now, before the end of the turn: more comes, of other connections."""

    def write(self, data: bytes) -> None:
        """Adds whole frames."""
        self.out.write(data)
        if not self.flush_wanted:
            self.want_flush()

    def send(self, number: int, command: methods.Command) -> None:
        self.write(methods.frame(number, command))

    def output_bytes(self) -> i64:
        """What waits for the end of the turn."""
        size: i64 = len(self.out)
        return size + self.cut_bytes

    def take_output(self) -> bytes:
        """The buffer's content, which is not in it any more."""
        out = self.out
        data = out.getvalue()
        if len(data) > 2 * CUT_BYTES:
            self.out = BytesWriter()
        else:
            out.truncate(0)
        return data

    def cut_output(self) -> None:
        """Sets aside what is in the buffer."""
        self.cut_bytes += len(self.out)
        self.cuts.append(self.take_output())

    def write_content(self, number: i64, message: Message) -> None:
        """Adds the message's header and body frames; a large body in parts that nobody joins."""
        if message.parts is None or message.body_size <= LARGE_BODY_BYTES:
            message.write_content(self.out, number, self.frame_payload_max)
        else:
            if len(self.out) > 0:
                self.cut_output()
            for piece in message.pieces(number, self.frame_payload_max):
                self.cuts.append(piece)
                self.cut_bytes += len(piece)
        if not self.flush_wanted:
            self.want_flush()

    def write_records(
        self,
        dresser: StreamDeliveryEncoder,
        places: RecordViews,
        start: i64,
        stop: i64,
        size_max: i64,
        begin: bytes,
        tag: i64,
    ) -> i64:
        """Adds deliveries of a stream: the record at `start`, and those behind it and before `stop` that are like it
        and have a body, of `size_max` bytes at most, until too much waits. Returns where it stopped.

        begin: what stands before the delivery tag; tag: the first one. Cost: some 50 ns each, and two copies.
        """
        number = places.alike_number(start)
        data = places.alikes[number].data
        out = self.out
        index = start
        while index < stop and places.alike_number(index) == number:
            body_size = places.body_size(index)
            if body_size <= 0 or body_size > size_max:
                break
            out.write(begin)
            write_i64_be(out, tag)
            dresser.write(out, body_size, places.offset(index))
            body_start = places.body_start(index)
            out.write(data[body_start : body_start + body_size])
            out.append(0xCE)
            tag += 1
            index += 1
            if len(out) >= CUT_BYTES:
                self.cut_output()
                out = self.out
                if self.cut_bytes >= OUT_BYTES_MAX:
                    break
        self.delivered_count += index - start
        if not self.flush_wanted:
            self.want_flush()
        return index

    def send_ack(self, number: i64, sequence: i64, multiple: bool) -> None:
        self._send_answer(_ACK, number, sequence, 1 if multiple else 0)

    def send_nack(self, number: i64, sequence: i64, multiple: bool) -> None:
        self._send_answer(_NACK, number, sequence, 1 if multiple else 0)

    def _send_answer(self, method: bytes, number: i64, sequence: i64, bits: int) -> None:
        out = self.out
        out.append(1)
        out.append(number >> 8)
        out.append(number & 0xFF)
        out.write(method)
        write_i64_be(out, sequence)
        out.append(bits)
        out.append(0xCE)
        if not self.flush_wanted:
            self.want_flush()

    def send_return(self, number: i64, message: Message) -> None:
        """basic.return: no queue took a mandatory message. It precedes the message's confirm."""
        envelope = message.envelope
        back = methods.BasicReturn(NO_ROUTE, "NO_ROUTE", envelope.exchange, envelope.routing_key)
        self.returned = True
        self.write(methods.frame(number, back))
        self.write_content(number, message)
