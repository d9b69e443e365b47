"""Output of a connection to its socket: one write per loop turn.

The turn calls `flush`, which writes the frames that the channels collected (channel/frame_writer.py), at most
WRITE_BYTES_MAX of them. The rest follows in later turns, or when the transport has sent enough. For a client that
does not read, the output holds at most the transport's buffer and some OUT_BYTES_MAX; then its consumers pause.

Deliveries of a stream are written before the next consumer gets its share (`write_out`), while the bytes are in the
CPU caches. If the turn must still write a log, they wait for the end of the turn like all other output, because
other frames in it may depend on that log.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64

from amqpd.broker.flow.loop_turn import LoopTurn
from amqpd.channel.frame_writer import Output
from amqpd.connection.read_pause import OUTPUT, ReadPause
from amqpd.protocol.frame import FRAME_OVERHEAD_BYTES, HEADER_FIXED_BYTES

if TYPE_CHECKING:
    from amqpd.connection.channel_zero import ChannelZero
    from amqpd.connection.transport import Transport

log = logging.getLogger(__name__)

# The kernel needs a millisecond for a write of this size.
WRITE_BYTES_MAX: Final = 1024 * 1024


@final
class SocketWriter(Output):
    """The output of one connection.

    Attributes:
        sent: bytes were written since the last heartbeat tick.
    """

    def __init__(self, wire: Transport, turn: LoopTurn, read_pause: ReadPause, control: ChannelZero) -> None:
        super().__init__()
        self._wire = wire
        self._turn = turn
        self._read_pause = read_pause
        self._control = control
        self.sent = False
        self.sent_bytes: i64 = 0
        self._has_reported_header = False

    def want_flush(self) -> None:
        self.flush_wanted = True
        self._turn.flush_later(self)

    def report_large_header(self, size_bytes: int) -> None:
        """Log it, once for the connection."""
        if not self._has_reported_header:
            self._has_reported_header = True
            peer, local = self._wire.peer, self._wire.local
            log.warning(
                "a message has properties of %d bytes in one frame, but the client's frame_max is %d; it is sent",
                size_bytes - FRAME_OVERHEAD_BYTES - HEADER_FIXED_BYTES,
                self.frame_payload_max + FRAME_OVERHEAD_BYTES,
                extra={"connection": f"{peer[0]}:{peer[1]} -> {local[0]}:{local[1]}"},
            )

    def flush(self) -> None:
        """Write the collected output. The turn calls this at its end."""
        self.flush_wanted = False
        if self.cuts or len(self.out) > 0:
            self.sent = True
            if not self.cuts:
                self.sent_bytes += len(self.out)
                self._wire.write(self.take_output())
            else:
                if len(self.out) > 0:
                    self.cut_output()
                if self.cut_bytes > WRITE_BYTES_MAX and not self.closing:
                    self._write_slice()
                else:
                    cuts = self.cuts
                    self.cuts = []
                    self.sent_bytes += self.cut_bytes
                    self.cut_bytes = 0
                    self._wire.writelines(cuts)
        if self.waiting_consumers and not self.write_paused:
            self._resume_consumers()
        if self._read_pause.is_set(OUTPUT):
            # Deferred: the transport may first report that it cannot take more.
            self._control.call_soon(self._read_pause.on_resume)

    def write_out(self) -> None:
        # A delivery from a work queue must not be sent before the turn has written its delivery mark.
        if self.cuts and not self.closing and not self._turn.stores.dirty:
            self.flush()

    def _write_slice(self) -> None:
        """Write the first pieces. The rest follows in the next turn, or when the transport has sent these."""
        cuts = self.cuts
        size: i64 = 0
        count: i64 = 0
        while size < WRITE_BYTES_MAX:  # there is more than that
            size += len(cuts[count])
            count += 1
        self.cuts = cuts[count:]
        self.cut_bytes -= size
        self.sent_bytes += size
        self._wire.writelines(cuts[:count])
        if self.cuts and not self.write_paused:
            self.want_flush()

    def _resume_consumers(self) -> None:
        """Activate the consumers that waited for room in the output."""
        starved = self.waiting_consumers
        if starved:
            self.waiting_consumers = []
            for consumer in starved:
                consumer.queue.activate(consumer)

    def pause_writing(self) -> None:
        self.write_paused = True

    def resume_writing(self) -> None:
        self.write_paused = False
        if self.cuts and not self.flush_wanted:
            self.want_flush()
        self._resume_consumers()
        if self._read_pause.is_set(OUTPUT):
            self._read_pause.on_resume()

    def dispose(self) -> None:
        """Drop all output: the socket is closed."""
        self.waiting_consumers.clear()
        self.cuts.clear()
        self.cut_bytes = 0
        self.take_output()
