"""Output buffer of a connection: the frames of one loop turn."""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, write_i64_be
from mypy_extensions import i64, mypyc_attr

from amqpd.broker.consumer import Consumer
from amqpd.broker.message import Message
from amqpd.broker.stream_message import StreamDeliveryEncoder
from amqpd.errors import NO_ROUTE
from amqpd.protocol import methods
from amqpd.protocol.frame import FRAME_OVERHEAD_BYTES, LARGE_BODY_BYTES
from amqpd.storage.log.record import RecordViews

# A small piece stays in the nearer CPU caches while it is filled and sent.
CUT_BYTES: Final = 64 * 1024
# Consumers pause when this much output waits for the end of the turn. More than the output of one turn's input
# (loop_turn.TURN_BYTES_MAX), so that a client that reads is not paused by it.
OUT_BYTES_MAX: Final = 1792 * 1024
_ACK: Final = b"\x00\x00\x00\x0d\x00\x3c\x00\x50"
_NACK: Final = b"\x00\x00\x00\x0d\x00\x3c\x00\x78"


@mypyc_attr(allow_interpreted_subclasses=True)
class Output:
    """The output of one connection.

    Deliveries write into `out` directly; all other frames go through the methods.

    Small frames and bodies collect in `out`. When it has CUT_BYTES, it moves to `cuts`: a buffer that grows to
    a mebibyte needs the memory twice. The parts of a large body are added to `cuts` without a copy. The
    connection derives from this class and sends the pieces.

    Attributes:
        cuts: pieces that wait for the end of the turn.
        cut_bytes: bytes in `cuts`.
        write_paused: the transport's buffer is full, because the client does not read.
        waiting_consumers: consumers that wait for room in the output.
        frame_payload_max: payload bytes of the largest frame that the client accepts.
        returned: a publish was returned, so the output grew by the client's own data.
        closing: the connection ends. After the next flush only the reason is sent.
    """

    def __init__(self) -> None:
        self.out = BytesWriter()
        self.cuts: list[bytes | memoryview] = []
        self.cut_bytes: i64 = 0
        self.flush_wanted = False
        self.write_paused = False
        self.waiting_consumers: list[Consumer] = []
        self.frame_payload_max: i64 = 0
        self.returned = False
        self.closing = False

    def want_flush(self) -> None:
        """Schedule the flush at the end of this turn and set `flush_wanted`."""
        raise NotImplementedError

    def write_out(self) -> None:
        """Send the finished pieces now. Other connections still produce output in this turn."""

    def write(self, data: bytes) -> None:
        """Add whole frames."""
        self.out.write(data)
        if not self.flush_wanted:
            self.want_flush()

    def send(self, number: int, command: methods.Command) -> None:
        self.write(methods.frame(number, command))

    def output_bytes(self) -> i64:
        """Return the bytes that wait for the end of the turn."""
        size: i64 = len(self.out)
        return size + self.cut_bytes

    def take_output(self) -> bytes:
        """Return the content of `out` and empty it."""
        out = self.out
        data = out.getvalue()
        if len(data) > 2 * CUT_BYTES:
            self.out = BytesWriter()
        else:
            out.truncate(0)
        return data

    def cut_output(self) -> None:
        """Move the content of `out` to `cuts`."""
        self.cut_bytes += len(self.out)
        self.cuts.append(self.take_output())

    def report_large_header(self, size_bytes: int) -> None:
        """Report that a content header is larger than the client's frame_max. AMQP cannot divide it.

        RabbitMQ: it is sent. Most clients read it; the others close their connection.
        """

    def write_content(self, number: i64, message: Message) -> None:
        """Add the message's header and body frames. The parts of a large body are not joined."""
        if message.header_size > self.frame_payload_max + FRAME_OVERHEAD_BYTES:
            self.report_large_header(message.header_size)
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
        encoder: StreamDeliveryEncoder,
        views: RecordViews,
        start: i64,
        stop: i64,
        size_max: i64,
        begin: bytes,
        tag: i64,
    ) -> i64:
        """Add deliveries of a stream, and return the index of the first record that was not added.

        Adds the record at `start` and the following ones before `stop` with equal properties and a body of 1 to
        `size_max` bytes, until OUT_BYTES_MAX waits.

        Args:
            begin: the bytes before the delivery tag.
            tag: the first delivery tag.

        Cost: about 50 ns and two copies per record.
        """
        number = views.shared_fields_index(start)
        data = views.shared_fields[number].data
        out = self.out
        index = start
        while index < stop and views.shared_fields_index(index) == number:
            body_size = views.body_size(index)
            if body_size <= 0 or body_size > size_max:
                break
            out.write(begin)
            write_i64_be(out, tag)
            encoder.write(out, body_size, views.offset(index))
            body_start = views.body_start(index)
            out.write(data[body_start : body_start + body_size])
            out.append(0xCE)
            tag += 1
            index += 1
            if len(out) >= CUT_BYTES:
                self.cut_output()
                out = self.out
                if self.cut_bytes >= OUT_BYTES_MAX:
                    break
        if not self.flush_wanted:
            self.want_flush()
        return index

    def send_ack(self, number: i64, sequence: i64, multiple: bool) -> None:
        self._send_answer(_ACK, number, sequence, 1 if multiple else 0)

    def send_nack(self, number: i64, sequence: i64, multiple: bool) -> None:
        # rabbit: requeue (the second bit) has its default, true. It has no meaning in a confirm.
        self._send_answer(_NACK, number, sequence, 3 if multiple else 2)

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
        """Send basic.return for an unroutable mandatory message. It precedes the message's confirm."""
        envelope = message.envelope
        back = methods.BasicReturn(NO_ROUTE, "NO_ROUTE", envelope.exchange, envelope.routing_key)
        self.returned = True
        self.write(methods.frame(number, back))
        self.write_content(number, message)
