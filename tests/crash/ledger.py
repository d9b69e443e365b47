"""The record of publishes and deliveries outside the broker, and the judge of lost, repeated, disordered messages.

A message is (publisher, sequence number). Its message-id has both, so that an empty body is identified as well; body
and targets follow from them. For each queue the ledger has every delivery: `redelivered` or not, in which life of the
broker (a life ends with a kill), and when its ack was written. Times are `time.monotonic` seconds.

- A confirmed message must be delivered. An uncertain one (sent, not confirmed before the kill) may be.
- A message whose ack the broker had read more than ACK_AGE_S before a kill must not return. The broker has read the ack
  when a request behind it on the same channel was answered (`heard`). The answer to a further request shows that the
  broker had CPU time since.
- Any delivery after the first must be `redelivered`.
- First deliveries of one publisher on a queue with one consumer come in the order of publishing, also over kills, since
  a returned message keeps its place.
"""

from __future__ import annotations

import random
import stat
import struct
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

ACK_AGE_S: Final = 0.1
POOL: Final = random.Random(20261120).randbytes((1 << 20) + 8192)
PERSISTENT: Final = 2


def body_of(publisher: int, sequence: int) -> bytes:
    """Return a body of 0 B to 1 MiB, mostly small; always the same for a message, with another start for the next
    one.
    """
    draw = random.Random(publisher << 40 | sequence)
    draw_value = draw.random()
    if draw_value < 0.08:
        return b""
    if draw_value < 0.70:
        size = draw.randrange(1, 200)
    elif draw_value < 0.97:
        size = draw.randrange(200, 4096)
    elif draw_value < 0.998:
        size = draw.randrange(4096, 131072)
    else:
        size = draw.randrange(131072, (1 << 20) + 1)
    start = sequence % 8192
    return POOL[start : start + size]


def properties_of(publisher: int, sequence: int, mode: int = PERSISTENT) -> bytes:
    """Encode delivery-mode and message-id."""
    name = b"%d.%d" % (publisher, sequence)
    return struct.pack(">HB", 1 << 12 | 1 << 7, mode) + bytes([len(name)]) + name


def name_of(properties: bytes) -> tuple[int, int]:
    publisher, _, sequence = properties[4:].partition(b".")
    return int(publisher), int(sequence)


@dataclass
class Publisher:
    """next: the first unused sequence number. waits_since: send time of the oldest unanswered publish."""

    number: int
    next: int = 0
    confirmed: set[int] = field(default_factory=set)
    nacked: set[int] = field(default_factory=set)
    waits_since: float = 0.0


@dataclass
class Delivery:
    """The last delivery of a message on a queue. acked_at: 0.0 until an ack is written."""

    life: int
    acked_at: float = 0.0
    settled: bool = False  # the ack was read more than ACK_AGE_S before the kill
    age_s: float = 0.0  # age of the ack at the kill


class Ledger:
    """queues: their names. power: lives end in power cuts.

    An ack counts at a kill if it was known to be read ACK_AGE_S before, on any machine. At a power cut it must also be
    synced, which no client can see. It is synced with the second group commit after it, so twice the slowest confirm of
    the life is added to ACK_AGE_S; in a life without a confirm, that of the earlier lives.
    """

    def __init__(
        self, queues: list[str], publisher_count: int, *, judge_order: bool = True, power: bool = False
    ) -> None:
        self.queues = queues
        self.publishers = [Publisher(number) for number in range(publisher_count)]
        self.seen: dict[str, dict[tuple[int, int], Delivery]] = {queue: {} for queue in queues}
        self.life = 0
        self.violations: list[str] = []
        self.deliveries = 0
        self.redeliveries = 0
        self.marked_unseen: dict[tuple[str, int], int] = {}  # (queue, life) -> first deliveries marked as redelivered
        self.acked = 0
        self.judged_acks = 0  # old enough at a kill, and known to be read
        self.unheard_acks = 0  # old enough, but not known to be read: the broker may not have had the time
        self.returned_after_ack = 0  # acks that did not count at their kill: allowed
        self.nacks = 0
        self._unjudged: dict[str, dict[tuple[int, int], Delivery]] = {queue: {} for queue in queues}
        self._heard: dict[str, list[tuple[float, float]]] = {queue: [] for queue in queues}  # request time, answer time
        self._last_first: dict[tuple[str, int], int] = {}
        self._judge_order = judge_order
        self._power = power
        self._slowest_s = 0.0
        self._slowest_ever_s = 0.0

    def violate(self, text: str) -> None:
        """Add a violation; only the first 50 are kept, to limit memory. `judge` reports its own findings always."""
        if len(self.violations) < 50:
            self.violations.append(f"life {self.life}: {text}")

    def targets(self, publisher: int, sequence: int) -> list[str]:
        """Return the queues of a message: every eighth goes to all, through a fanout exchange; the others to one, in
        turn.
        """
        return self.queues if sequence % 8 == 0 else [self.queues[(publisher + sequence) % len(self.queues)]]

    def delivered(self, queue: str, redelivered: bool, properties: bytes, body: bytes) -> Delivery:
        """Judge a delivery. Return it for `acknowledged`."""
        key = name_of(properties)
        publisher, sequence = key
        self.deliveries += 1
        if publisher >= len(self.publishers) or sequence >= self.publishers[publisher].next:
            self.violate(f"{queue}: {key} was never published")
        elif queue not in self.targets(publisher, sequence):
            self.violate(f"{queue}: {key} does not belong there")
        if body != body_of(publisher, sequence):
            self.violate(f"{queue}: {key} has another body ({len(body)} bytes)")
        before = self.seen[queue].get(key)
        if before is None:
            if redelivered:
                place = (queue, self.life)
                self.marked_unseen[place] = self.marked_unseen.get(place, 0) + 1
            last = self._last_first.get((queue, publisher), -1)
            if sequence <= last and self._judge_order:
                self.violate(f"{queue}: {key} came first after {last}")
            self._last_first[queue, publisher] = max(last, sequence)
        else:
            self.redeliveries += 1
            if not redelivered:
                self.violate(f"{queue}: {key} came again without redelivered, seen in life {before.life}")
            if before.settled:
                self.violate(
                    f"{queue}: {key} came back although its ack in life {before.life} was heard, and "
                    f"{before.age_s:.3f} s older than the end of that life"
                )
            elif before.acked_at:
                self.returned_after_ack += 1
            if before.life == self.life:
                self.violate(f"{queue}: {key} came twice in one life of the broker")
        delivery = Delivery(self.life)
        self.seen[queue][key] = delivery
        self._unjudged[queue][key] = delivery
        return delivery

    def acknowledged(self, delivery: Delivery) -> None:
        """Its ack is about to be written."""
        delivery.acked_at = time.monotonic()
        self.acked += 1

    def heard(self, queue: str, asked_at: float) -> None:
        """A request that the consumer sent at `asked_at`, behind all earlier acks, was answered now."""
        self._heard[queue].append((asked_at, time.monotonic()))

    def answered(self, publisher: Publisher, sent: float, next_sent: float) -> None:
        """A publish sent at `sent` was answered now; the oldest unanswered one was sent at `next_sent`, 0.0 for
        none.
        """
        self._slowest_s = max(self._slowest_s, time.monotonic() - sent)
        publisher.waits_since = next_sent

    def killed(self, at: float) -> None:
        """The broker's life ended at `at`."""
        waited_s = max([at - each.waits_since for each in self.publishers if each.waits_since], default=0.0)
        slowest_s = max(self._slowest_s, waited_s)
        self._slowest_ever_s = max(self._slowest_ever_s, slowest_s)
        age_s = ACK_AGE_S + 2 * (slowest_s or self._slowest_ever_s) if self._power else ACK_AGE_S
        self._slowest_s = 0.0
        for publisher in self.publishers:
            publisher.waits_since = 0.0
        for queue, deliveries in self._unjudged.items():
            heard = self._heard[queue]
            counts_until = max([asked for asked, answered in heard[:-1] if answered < at - age_s], default=0.0)
            heard.clear()
            for delivery in deliveries.values():
                if delivery.acked_at and delivery.acked_at < at - age_s:
                    delivery.settled = delivery.acked_at <= counts_until
                    delivery.age_s = at - delivery.acked_at
                    self.judged_acks += delivery.settled
                    self.unheard_acks += not delivery.settled
            deliveries.clear()
        self.life += 1

    @property
    def confirmed_count(self) -> int:
        return sum(len(publisher.confirmed) for publisher in self.publishers)

    @property
    def published_count(self) -> int:
        return sum(publisher.next for publisher in self.publishers)

    def lost(self) -> list[tuple[str, int, int]]:
        """Return (queue, publisher, sequence) of confirmed messages that were never delivered. Call it after a
        drain.
        """
        return [
            (queue, publisher.number, sequence)
            for publisher in self.publishers
            for sequence in sorted(publisher.confirmed)
            for queue in self.targets(publisher.number, sequence)
            if (publisher.number, sequence) not in self.seen[queue]
        ]

    def judge(self, marked_unseen_max: int) -> None:
        """Give the verdict after the drain. Raises: AssertionError.

        marked_unseen_max: how many first deliveries may be marked as redelivered, per queue and life: those that were
        in flight to the consumer at the kill.
        """
        lost = self.lost()
        found = [f"{len(lost)} confirmed messages lost, first {lost[:5]}"] if lost else []
        for (queue, life), count in self.marked_unseen.items():
            if count > marked_unseen_max:
                found.append(f"{queue}: {count} messages never delivered came as redelivered in life {life}")
        if self.nacks:
            found.append(f"{self.nacks} publishes nacked")
        found += self.violations
        assert not found, "\n".join([self.totals(), *found])

    def totals(self) -> str:
        marked = self.marked_unseen.values()
        return (
            f"{self.life} ends, {self.published_count} published, {self.confirmed_count} confirmed, "
            f"{self.deliveries} delivered, {self.redeliveries} again, {sum(marked)} unseen but marked "
            f"(at most {max(marked, default=0)} per queue and kill), {self.acked} acked, "
            f"{self.judged_acks} judged, {self.unheard_acks} not heard in time, "
            f"{self.returned_after_ack} back that did not count, {len(self.lost())} lost, "
            f"{len(self.violations)} violations"
        )


def log_bytes(data_dir: Path) -> int:
    """Return the size of all files below vhosts/."""
    total = 0
    for path in (data_dir / "vhosts").rglob("*"):
        try:
            status = path.stat()
        except FileNotFoundError:
            continue  # removed meanwhile
        if stat.S_ISREG(status.st_mode):
            total += status.st_size
    return total
