"""A connection's output: one write per turn of the loop, and not more of it than the socket takes.

What channels have gathered (amqpd/channel/frame_writer.py) goes to the socket in `flush`, which the turn calls. Of
large bodies a turn writes WRITE_BYTES_MAX; the rest goes with later turns, or when the socket has taken that. A peer
that does not read holds what the transport may keep and some OUT_BYTES_MAX here: then its consumers rest.

A reader's share of a stream leaves before the next one gets his (`write_out`), while its bytes are in the processor's
caches: at the end of the turn those of the first would have been pushed out by those of the last. Where the turn still
has a log to write, all waits for its end: what else stands in the output may depend on it.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from amqpd.broker.flow.loop_turn import LoopTurn
from amqpd.channel.frame_writer import Output
from amqpd.connection.interfaces import ChannelZeroBase, TransportBase
from amqpd.connection.read_pause import OUTPUT, ReadPause

# What one write hands to the kernel, which takes a millisecond for it; the rest of large bodies goes with later turns.
WRITE_BYTES_MAX: Final = 1024 * 1024


@final
class SocketWriter(Output):
    """Of one connection."""

    def __init__(self, wire: TransportBase, turn: LoopTurn, gate: ReadPause, control: ChannelZeroBase) -> None:
        super().__init__()
        self._wire = wire
        self._turn = turn
        self._gate = gate
        self._control = control
        # Something was written since the heartbeats looked.
        self.sent = False
        self.sent_bytes: i64 = 0

    def want_flush(self) -> None:
        self.flush_wanted = True
        self._turn.flush_later(self)

    def flush(self) -> None:
        """The end of the turn: writes what has gathered."""
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
        if self.starved and not self.write_paused:
            self._resume_consumers()
        if self._gate.holds(OUTPUT):
            # When the transport has taken it, or says that it cannot.
            self._control.soon(self._gate.on_resume)

    def write_out(self) -> None:
        # Of a work queue's deliveries no byte goes before the turn has written their marks.
        if self.cuts and not self.closing and not self._turn.stores.dirty:
            self.flush()

    def _write_slice(self) -> None:
        """The first of what was set aside. The rest follows in the next turn, or when the socket has taken this."""
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
        """There is room to write again."""
        starved = self.starved
        if starved:
            self.starved = []
            for consumer in starved:
                consumer.queue.activate(consumer)

    def pause_writing(self) -> None:
        self.write_paused = True

    def resume_writing(self) -> None:
        self.write_paused = False
        if self.cuts and not self.flush_wanted:
            self.want_flush()
        self._resume_consumers()
        if self._gate.holds(OUTPUT):
            self._gate.on_resume()

    def dispose(self) -> None:
        """The socket is gone, and what was for it."""
        self.starved.clear()
        self.cuts.clear()
        self.cut_bytes = 0
        self.take_output()
