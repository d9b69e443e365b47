"""The judge of a stream with clients of AMQP and of Kafka, over the lives of a broker. It judges each event at once.

Bodies are `sender:number`. The rules, for any kill:

- An offset always shows the same record, to all readers, and no reader skips one. Offsets without a record are those of
  markers and of aborted transactions.
- A confirmed record is there, at the offset that Kafka's producer was told. A record is there once: Kafka's producers
  are idempotent, and publishers of AMQP do not repeat.
- The records of a sender are in its order.
- The committed offset of a group is never behind an answered commit, and never another one than was asked for.
- A member continues at a committed offset, so no record is skipped, and only those after the last commit are repeated.
- A committed transaction is there whole, an aborted one is never seen. One whose commit was not answered is whole or
  absent, from the next transaction of its producer on.

`WorkStory` judges a classic queue that consumers of AMQP and members of a share group share: a confirmed message is
delivered, and a repeated one is marked (redelivered, or a delivery count above 1). One whose acknowledgement by a
member was answered does not come again, except after a power cut.
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


OPEN, ASKED, COMMITTED, ABORTED = "open", "asked", "committed", "aborted"


class StoryTransaction:
    """A transaction of Kafka. bodies: with their offsets. has_ended: its producer has gone on."""

    def __init__(self) -> None:
        self.state = OPEN
        self.bodies: dict[bytes, int] = {}
        self.has_ended = False


class Violations:
    """violations: broken promises. totals: counts for the report."""

    def __init__(self, *totals: str) -> None:
        self.violations: list[str] = []
        self.totals = dict.fromkeys(totals, 0)

    def violate(self, text: str) -> None:
        if len(self.violations) < 50:
            self.violations.append(text)


class KafkaStory(Violations):
    """A stream."""

    def __init__(self) -> None:
        names = "sent confirmed read commits sessions repeated unsure committed aborted undecided"
        super().__init__(*names.split())
        self.transactions: dict[bytes, StoryTransaction] = {}
        self._undecided: list[StoryTransaction] = []
        self._skips: list[tuple[str, int, int]] = []
        self.at: dict[int, bytes] = {}
        self.place: dict[bytes, int] = {}
        """Body -> offset, -1 if it was confirmed and not read."""
        self._last: dict[bytes, int] = {}

    # -- senders

    def sends(self) -> None:
        self.totals["sent"] += 1

    def confirms(self, body: bytes, offset: int = -1) -> None:
        self.totals["confirmed"] += 1
        if offset >= 0:
            self._see(offset, body)
        else:
            self.place.setdefault(body, -1)  # publishers of AMQP are not told the offset

    # -- transactions

    def writes(self, transaction: StoryTransaction, body: bytes) -> None:
        """The record is about to be sent."""
        self.totals["sent"] += 1
        self.transactions[body] = transaction
        transaction.bodies[body] = -1

    def ends(self, transaction: StoryTransaction, commits: bool) -> None:
        """The end is about to be asked for."""
        transaction.state = ASKED if commits else ABORTED

    def ended(self, transaction: StoryTransaction) -> None:
        """The end was answered."""
        transaction.has_ended = True
        if transaction.state == ABORTED:
            self.totals["aborted"] += 1
            return
        transaction.state = COMMITTED
        self.totals["committed"] += 1
        for body, offset in transaction.bodies.items():
            self.confirms(body, offset)

    def fenced(self, transaction: StoryTransaction) -> None:
        """The producer has begun anew: what was not asked to be committed is aborted."""
        if transaction.has_ended:
            return
        transaction.has_ended = True
        if transaction.state == ASKED:
            self.totals["undecided"] += 1
            self._undecided.append(transaction)
        else:
            transaction.state = ABORTED

    # -- readers

    def _see(self, offset: int, body: bytes) -> None:
        transaction = self.transactions.get(body)
        if transaction is not None and transaction.state in (OPEN, ABORTED):
            self.violate(f"{body!r} at {offset} is seen, and its transaction is {transaction.state}")
        if self.at.setdefault(offset, body) != body:
            self.violate(f"offset {offset} showed {self.at[offset]!r}, and shows {body!r}")
        if self.place.get(body, -1) not in (-1, offset):
            self.violate(f"{body!r} stands at {self.place[body]} and at {offset}")
        self.place[body] = offset

    def reads(self, reader: Reader, offset: int, body: bytes) -> None:
        self.totals["read"] += 1
        self._see(offset, body)
        if reader.next:
            self._skip(reader, max([each for each in reader.next if each <= offset], default=-1), offset)
        reader.next = {offset + 1}

    def _skip(self, reader: Reader, expected: int, offset: int) -> None:
        """A reader goes on from one offset to another: nothing may be between them."""
        if expected < 0:
            self.violate(f"{reader.name} was given {offset}, expected {sorted(reader.next)[:9]}")
        elif expected < offset:
            self._skips.append((reader.name, expected, offset))

    def reads_first(self, group: Group, reader: Reader, offset: int) -> None:
        """The first record of a member since it was assigned the partition."""
        self.totals["sessions"] += 1
        self.totals["repeated"] += max(0, max(group.asked) - offset)
        begin = max(each for each in group.asked if each <= offset)
        self.finds(group, begin, reader.name)
        self._skip(reader, begin, offset)
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
        last = -1
        for offset, body in records:
            self._see(offset, body)
            if offset <= last:
                self.violate(f"offset {offset} comes after {last}")
                break
            last = offset
            sender, _, number = body.partition(b":")
            if int(number) <= numbers.get(sender, -1):
                self.violate(f"{body!r} comes after number {numbers[sender]}")
            numbers[sender] = int(number)
        bodies = {body for _, body in records}
        missing = [body for body in known if body not in bodies]
        if missing:
            self.violate(f"{len(missing)} records were confirmed or read, and are lost, for instance {missing[0]!r}")
        self._find_undecided(bodies)
        for name, first, behind in self._skips:
            skipped = [offset for offset in range(first, behind) if offset in self.at]
            if skipped:
                self.violate(f"{name} went on from {first} to {behind}, without {self.at[skipped[0]]!r}")
        self._skips.clear()

    def _find_undecided(self, bodies: set[bytes]) -> None:
        """Learn what became of the transactions whose commit was not answered."""
        for transaction in [each for each in self._undecided if each.state == ASKED]:
            seen = [body for body in transaction.bodies if body in bodies]
            count = len(transaction.bodies)
            if seen and len(seen) < count:
                self.violate(f"of a transaction {len(seen)} of {count} records are there: {seen[0]!r}")
            transaction.state = COMMITTED if seen else ABORTED


class WorkStory(Violations):
    """A classic queue."""

    def __init__(self) -> None:
        super().__init__("published", "confirmed", "delivered", "acquired", "marked", "accepted")
        self.confirmed: set[bytes] = set()
        self.seen: set[bytes] = set()
        self.accepted: set[bytes] = set()

    def confirms(self, body: bytes) -> None:
        self.totals["confirmed"] += 1
        self.confirmed.add(body)

    def delivers(self, body: bytes, marked: bool, name: str) -> None:
        """A consumer gets a message. marked: as redelivered."""
        self.totals["delivered"] += 1
        self.totals["marked"] += marked
        if body in self.seen and not marked:
            self.violate(f"{name} got {body!r} again, without a mark")
        if body in self.accepted:
            self.violate(f"{name} got {body!r}, whose acknowledgement was answered")
        self.seen.add(body)

    def accepts(self, body: bytes) -> None:
        """The acknowledgement of a member of the share group was answered."""
        self.totals["accepted"] += 1
        self.accepted.add(body)

    def power_cut(self) -> None:
        """Acknowledgements are synced later than they are answered."""
        self.accepted.clear()

    def missing(self) -> list[bytes]:
        """Return the confirmed messages that no consumer has received."""
        return sorted(self.confirmed - self.seen)


class Unconfirmed(dict[int, bytes]):
    """The bodies of an AMQP publisher that are not confirmed, by delivery tag. story: is told of confirms and nacks."""

    def __init__(self, story: KafkaStory | WorkStory) -> None:
        super().__init__()
        self._story = story

    def settle(self, tag: int, multiple: bool, acked: bool) -> None:
        for each in [each for each in self if each == tag or (multiple and each < tag)]:
            body = self.pop(each)
            if acked:
                self._story.confirms(body)
            else:
                self._story.violate(f"{body!r} was nacked")
