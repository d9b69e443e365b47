"""A stream with many consumers against a twin that is a list.

A consumer with credit has received all messages in order from its start offset, through random publishes, acks,
joins, leaves, retention and kills.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from profiles import examples

from amqpd.broker.queue.stream import SEGMENT_SIZE_BYTES_MIN

from .conftest import Room
from .stream_room import Reader, finish, leave, read

OFFSETS = st.one_of(st.sampled_from(["first", "next", "1h"]), st.integers(-2, 60))
NAMES = st.sampled_from(["", "", "a", "b"])


class TwinReader:
    """The expected state of a consumer. next: the lowest offset it may get now. seen: number of checked deliveries."""

    def __init__(self, reader: Reader, name: str, start: int) -> None:
        self.reader = reader
        self.name = name
        self.next = start
        self.seen = 0
        self.unacked: list[int] = []


class StreamMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="stream-model-"))
        self.room = Room(self.directory)
        self.bodies: list[bytes] = []
        self.readers: list[TwinReader] = []
        self.stored: dict[str, int] = {}
        self.owner: dict[str, TwinReader] = {}
        self.sac_offset: int | None = None

    @initialize(single=st.booleans(), small=st.booleans())
    def declare(self, single: bool, small: bool) -> None:
        arguments: dict[str, Any] = {"x_queue_type": "stream"}
        if single:
            arguments["x_single_active_consumer"] = True
        if small:
            arguments |= {
                "x_max_length_bytes": SEGMENT_SIZE_BYTES_MIN,
                "x_stream_max_segment_size_bytes": SEGMENT_SIZE_BYTES_MIN,
                "x_max_age": "10s",
            }
        self.single = single
        self.queue = self.room.queue("s", **arguments)

    @property
    def start(self) -> int:
        return int(self.queue.store.log.start_offset())  # type: ignore[union-attr]

    @rule(count=st.integers(1, 70), large=st.booleans(), turn=st.booleans())
    def publish(self, count: int, large: bool, turn: bool) -> None:
        for _ in range(count):
            body = b"%d" % len(self.bodies) + (b"." * 9000 if large else b"")
            self.bodies.append(body)
            self.room.publish("s", body, turn=False)
            if turn and count < 5:
                self.room.turn.schedule()
                self.room.turns()

    @precondition(lambda self: len(self.readers) < 6)
    @rule(offset=OFFSETS, credit=st.sampled_from([1, 2, 3, 10, 90]), name=NAMES)
    def join(self, offset: Any, credit: int, name: str) -> None:
        arguments: Mapping[str, Any] = {"x_stream_offset": offset} | ({"x_stream_consumer_name": name} if name else {})
        if not self.readers:
            self.sac_offset = None
        end = len(self.bodies)
        start = end if offset == "next" else 0 if isinstance(offset, str) else min(max(offset, 0), end)
        if name:
            self.update_stored()
            start = min(self.stored.get(name, start), end)
        twin = TwinReader(read(self.room, self.queue, credit, turn=False, **arguments), name, start)
        self.readers.append(twin)
        if name:
            self.owner[name] = twin
        self.check_deliveries()

    @precondition(lambda self: self.readers)
    @rule(place=st.integers(0, 5), share=st.floats(0, 1), backwards=st.booleans())
    def ack(self, place: int, share: float, backwards: bool) -> None:
        twin = self.readers[place % len(self.readers)]
        reader = twin.reader
        for _ in range(round(len(reader.entries) * share)):
            first = -1 if backwards else 0
            twin.unacked.remove(int(reader.entries[first].offset))
            reader.ack(first=first)
        self.check_deliveries()

    @precondition(lambda self: self.readers)
    @rule(place=st.integers(0, 5))
    def leave(self, place: int) -> None:
        finish(self.room)
        self.check_deliveries()
        self.update_stored()
        index = place % len(self.readers)
        twin = self.readers[index]
        if self.single and index == 0:
            self.sac_offset = min(twin.unacked, default=twin.next)
        leave(self.room, twin.reader)
        self.readers.remove(twin)
        if self.owner.get(twin.name) is twin:
            del self.owner[twin.name]
        if self.single and index == 0 and self.readers:
            self.readers[0].next = self.sac_offset if self.sac_offset is not None else self.readers[0].next
        self.check_deliveries()

    @rule(late=st.booleans())
    def run_maintenance(self, late: bool) -> None:
        """late: after all messages have exceeded their maximum age."""
        if late:
            self.room.clock.now_ms += 11_000
        for _ in range(3):
            self.room.storage.maintain()
            self.room.turns()

    @rule()
    def kill(self) -> None:
        finish(self.room)
        self.check_deliveries()
        self.room.restart()
        self.queue = self.room.vhost.queues["s"]
        self.queue.prepare()
        self.readers, self.owner, self.stored = [], {}, {}  # the room's metadata do not survive

    def update_stored(self) -> None:
        """Read the committed offset of each name. A name has one once its owner has acked a message."""
        for name in ("a", "b"):
            offset = self.room.catalogue.stored_offsets.get(self.queue.id, name)
            if offset is not None:
                self.stored[name] = offset

    def check_deliveries(self) -> None:
        """Check the new deliveries and record them."""
        for twin in self.readers:
            offsets = twin.reader.offsets()[twin.seen :]
            for offset, body in zip(offsets, twin.reader.got[twin.seen :], strict=True):
                assert offset >= twin.next
                assert body == self.bodies[offset]
                assert offset == twin.next or offset >= self.start_limit, (offset, twin.next)
                twin.next = offset + 1
                twin.unacked.append(offset)
            twin.seen += len(offsets)

    @property
    def start_limit(self) -> int:
        """Return the first offset that is still in the log. A delivery may skip the removed offsets below it."""
        return min(self.start, len(self.bodies))

    @invariant()
    def consumers_with_credit_have_all_messages(self) -> None:
        if not hasattr(self, "queue"):
            return
        finish(self.room)
        self.check_deliveries()
        store = self.queue.store
        assert store is not None
        assert self.queue.ready_count == store.record_count == len(self.bodies) - self.start
        assert self.queue.unacked_count == sum(len(twin.unacked) for twin in self.readers)
        for index, twin in enumerate(self.readers):
            if self.single and index > 0:
                assert twin.seen == 0
                continue
            assert twin.reader.in_flight == len(twin.unacked) <= twin.reader.credit
            if twin.reader.in_flight < twin.reader.credit:
                assert max(twin.next, self.start) >= len(self.bodies), (
                    "a consumer with credit has not received all messages"
                )
            if twin.name and self.owner.get(twin.name) is twin:
                stored = self.room.catalogue.stored_offsets.get(self.queue.id, twin.name)
                acked = min(twin.unacked, default=twin.next)
                assert stored is None or stored <= acked or stored == self.stored.get(twin.name)

    def teardown(self) -> None:
        self.room.storage.close(clean=False)
        shutil.rmtree(self.directory)


StreamMachine.TestCase.settings = settings(
    max_examples=examples(60), stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
)
test_streams = StreamMachine.TestCase
