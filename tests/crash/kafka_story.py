"""The judge of a stream with clients of AMQP and of Kafka, over the lives of a broker. It judges each event at once.

Bodies are `sender:number`. The rules, for any kill:

- An offset always shows the same record, to all readers, and no reader skips one.
- A confirmed record is there, at the offset that Kafka's producer was told. A record is there once: Kafka's producers
  are idempotent, and publishers of AMQP do not repeat.
- The records of a sender are in its order.
- The committed offset of a group is never behind an answered commit, and never another one than was asked for.
- A member continues at a committed offset, so no record is skipped, and only those after the last commit are repeated.
"""

from __future__ import annotations

from collections.abc import Iterable


class Reader:
    """Reads in order. next: the only offsets that may come next; empty: any."""

    def __init__(self, name: str, begin: Iterable[int] = (0,)) -> None:
        self.name = name
        self.next = set(begin)


class Group:
    """A consumer group. asked: the offsets that may be committed. answered: the highest that is."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.asked = {0}
        self.answered = 0


class KafkaStory:
    """violations: broken promises. totals: counts for the report."""

    def __init__(self) -> None:
        self.violations: list[str] = []
        self.totals = {"sent": 0, "confirmed": 0, "read": 0, "commits": 0, "sessions": 0, "repeated": 0, "unsure": 0}
        self.at: dict[int, bytes] = {}
        self.place: dict[bytes, int] = {}
        """Body -> offset, -1 if it was confirmed and not read."""
        self._last: dict[bytes, int] = {}

    def violate(self, text: str) -> None:
        if len(self.violations) < 50:
            self.violations.append(text)

    # -- senders

    def sends(self) -> None:
        self.totals["sent"] += 1

    def confirms(self, body: bytes, offset: int = -1) -> None:
        self.totals["confirmed"] += 1
        if offset >= 0:
            self._see(offset, body)
        else:
            self.place.setdefault(body, -1)  # publishers of AMQP are not told the offset

    # -- readers

    def _see(self, offset: int, body: bytes) -> None:
        if self.at.setdefault(offset, body) != body:
            self.violate(f"offset {offset} showed {self.at[offset]!r}, and shows {body!r}")
        if self.place.get(body, -1) not in (-1, offset):
            self.violate(f"{body!r} stands at {self.place[body]} and at {offset}")
        self.place[body] = offset

    def reads(self, reader: Reader, offset: int, body: bytes) -> None:
        self.totals["read"] += 1
        self._see(offset, body)
        if reader.next and offset not in reader.next:
            self.violate(f"{reader.name} was given {offset}, expected {sorted(reader.next)[:9]}")
        reader.next = {offset + 1}

    def reads_first(self, group: Group, reader: Reader, offset: int) -> None:
        """The first record of a member since it was assigned the partition."""
        self.totals["sessions"] += 1
        self.totals["repeated"] += max(group.asked) - offset
        self.finds(group, offset, reader.name)
        reader.next = {offset}

    # -- committed offsets

    def commits(self, group: Group, offset: int) -> None:
        """The commit is about to be sent."""
        group.asked.add(offset)

    def committed(self, group: Group, offset: int) -> None:
        self.totals["commits"] += 1
        group.answered = max(group.answered, offset)

    def finds(self, group: Group, offset: int, where: str) -> None:
        """The group is found at this offset."""
        if offset < group.answered:
            self.violate(f"{where}: group {group.name} is at {offset}, and {group.answered} was answered")
        if offset not in group.asked:
            self.violate(f"{where}: group {group.name} is at {offset}, which no member committed")

    # -- the whole log

    def found(self, records: list[tuple[int, bytes]], known: Iterable[bytes]) -> None:
        """Check the whole content. known: what had been confirmed or read before that content was asked for."""
        numbers: dict[bytes, int] = {}
        for position, (offset, body) in enumerate(records):
            self._see(offset, body)
            if offset != position:
                self.violate(f"offset {offset} comes at place {position}")
                break
            sender, _, number = body.partition(b":")
            if int(number) <= numbers.get(sender, -1):
                self.violate(f"{body!r} comes after number {numbers[sender]}")
            numbers[sender] = int(number)
        bodies = {body for _, body in records}
        missing = [body for body in known if body not in bodies]
        if missing:
            self.violate(f"{len(missing)} records were confirmed or read, and are lost, for instance {missing[0]!r}")
