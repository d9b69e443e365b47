"""A broker's life with members of share groups over streams: `ShareStreams` with its states, log and timers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final

from states_broker_ledger import Rows
from states_disk import Disk, Image
from states_kafka_life import GROUPS, KafkaLife, find
from states_ledger import Violation
from states_pace import SETTLE_MS
from states_share_ledger import Acquired, SharedStream, ShareLedger, ShareOutcome, note_tried

from amqpd.kafka_server import topics
from amqpd.kafka_server.share_queue import FetchCredit, ShareSource
from amqpd.kafka_server.share_states import ShareStates
from amqpd.kafka_server.share_stream import ShareStreams
from amqpd.kafka_server.share_wire import ACCEPT, REJECT, AckRange

LOCK_MS: Final = 30_000
Member = tuple[str, str, str]
"""Group, topic and member id."""


class ShareLife(KafkaLife):
    """A `KafkaLife` with share groups."""

    def __init__(self, disk: Disk, ledger: ShareLedger, boot: int, **arguments: Any) -> None:
        self.book = ledger
        self.sources: dict[Member, ShareSource] = {}
        self.has: dict[Member, dict[int, int]] = {}
        super().__init__(disk, ledger, boot, **arguments)

    def _prepare(self) -> None:
        kafka = SimpleNamespace(share_lock_ms=LOCK_MS, share_auto_offset_reset="latest")
        self.broker.settings = SimpleNamespace(kafka=kafka)
        self.states = ShareStates(self.coordinator.offsets, self.broker)
        self.coordinator.on_sweep.append(self.states.remove_void)
        self.shares = ShareStreams(self.broker, self.states, self.fetches)

    def stop(self) -> None:
        self.turns()
        self.shares.stop()
        super().stop()

    def _stream(self, member: Member) -> SharedStream:
        return self.book.shared[member[0], self.vhost.queues[member[1]].id]

    def delete(self, name: str) -> None:
        super().delete(name)
        for member in [each for each in self.sources if each[1] == name]:
            self.sources.pop(member).close()
            del self.has[member]
        self.turns()

    def join(self, member: Member) -> None:
        """Begin to use a stream. From the answer on the group gets everything."""
        group, topic, member_id = member
        store = self.store(topic)
        place = (group, self.vhost.queues[topic].id)
        self.book.version += 1
        end = store.next_offset
        stream = self.book.shared.setdefault(place, SharedStream(end))
        partition = topics.find_partition(self.publisher.session, topic, 0, "read")
        assert not isinstance(partition, int)
        source = self.shares.join(self.vhost, group, partition, member_id)
        self.turns()
        self.pass_time(2 * SETTLE_MS)
        if source.error:
            raise Violation(f"{member} gets the error {source.error}")
        self.sources[member] = source
        self.has[member] = {}
        self.book.version += 1
        stream.certain = end if stream.certain < 0 else stream.certain

    def take(self, member: Member, most: int) -> Acquired:  # type: ignore[override]
        """Acquire records, in whole batches, and judge them."""
        found = self.ask_take(self.sources[member], most)
        stream = self._stream(member)
        self.book.judge_acquired((member[0], self.vhost.queues[member[1]].id), found)
        self.book.version += 1
        for offset, count in found:
            record = stream.record(offset)
            holders = [each for each, has in self.has.items() if each[:2] == member[:2] and offset in has]
            if holders:
                raise Violation(f"{member} gets the record at {offset}, which {holders} has")
            record.most = max(record.most, count)
            self.has[member][offset] = count
        return found

    def ask_take(self, source: ShareSource, most: int) -> Acquired:
        """Return the records that a member acquires."""
        found: Acquired = []
        while len(found) < most:
            source.allow(FetchCredit(most - len(found), False, 1 << 24, _nothing))
            self.turns()
            source.allow(None)
            ranges, _ = source.take()
            if not ranges:
                break
            found += [(offset, each.deliveries) for each in ranges for offset in range(each.first, each.last + 1)]
        return found

    def acknowledge(self, member: Member, offsets: list[int], kind: int) -> None:
        """Accept, reject or release records, and wait for the answer."""
        stream = self._stream(member)
        counts = {
            offset: count for each, has in self.has.items() if each[:2] == member[:2] for offset, count in has.items()
        }
        self.book.version += 1
        for offset in offsets:
            self.has[member].pop(offset)
            if kind in (ACCEPT, REJECT):
                stream.record(offset).may_be_final = True
            else:
                note_tried(stream.record(offset))
        answers: list[int] = []

        def answered(error: int) -> None:
            answers.append(error)
            if error:
                return
            self.book.version += 1
            for offset, count in counts.items():
                stream.record(offset).written = max(stream.record(offset).written, count)
            for offset in offsets if kind in (ACCEPT, REJECT) else ():
                stream.record(offset).is_final = True

        acks = [AckRange(offset, offset, bytes([kind])) for offset in offsets]
        self.sources[member].acknowledge(acks, answered)
        self.turns()
        if answers != [0]:
            raise Violation(f"an acknowledgement of {member} is answered with {answers}")

    def leave(self, member: Member) -> None:
        """End the session: what the member has is released."""
        self._release(member)
        self.sources.pop(member).close()
        del self.has[member]
        self.turns()

    def expire(self) -> None:
        """Let all locks expire."""
        for member in self.has:
            self._release(member)
            self.has[member] = {}
        self.leap(LOCK_MS + 1000)
        self.turns()

    def _release(self, member: Member) -> None:
        self.book.version += 1
        for offset in self.has[member]:
            note_tried(self._stream(member).record(offset))


def look(image: Image, rows: Rows, boot: int, segment_size_bytes: int, ledger: ShareLedger) -> ShareOutcome:
    """Start on an image; then a member of each group acquires all records."""
    start = ShareLedger()
    start.rows, start.now_ms = [rows], ledger.now_ms
    life = ShareLife(Disk(image), start, boot, segment_size_bytes=segment_size_bytes)
    for name in life.vhost.queues:
        life.store(name)
    life.storage.commits.flush()
    life.turns()
    acquired: dict[tuple[str, str], Acquired] = {}
    for name, queue in life.vhost.queues.items():
        for group in GROUPS:
            partition = topics.find_partition(life.publisher.session, name, 0, "read")
            assert not isinstance(partition, int)
            source = life.shares.join(life.vhost, group, partition, "look")
            life.turns()
            acquired[group, queue.id] = life.ask_take(source, 1 << 30)
    outcome = ShareOutcome(find(life, ledger), acquired)
    life.forget()
    return outcome


def _nothing() -> None:
    """Do nothing: the life takes what was acquired."""
