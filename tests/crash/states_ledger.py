"""The expected state of a life, kept outside the disk, and the judge that compares what was found with it.

A promise is recorded when it is made: *written* (a kill must not undo it) or *safe* (a power cut must not undo it).
Between a settlement and its promise lies a time (`Message.due_ms`) in which a kill may bring the message back or not.

The rows of the metadata are a mapping id -> "live" or "deleting" that changes in one step, like an SQLite commit.
During a commit the rows before or after it may be found: `Ledger.rows` holds all that may be found.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from amqpd.storage.retention_policy import RetentionPolicy

KEY: Final = b"eu.new"
OVERHEAD_MAX: Final = 160  # greatest number of bytes that a log uses for a message besides its body
Rows = dict[str, str]
Stored = dict[tuple[str, str], int]


class Violation(BaseException):
    """A broken promise. It is a BaseException, so that no code takes it for a failure of the disk."""


class Message:
    """The expected state of one message. Generations: of the commit group that makes it so; -1 for none."""

    __slots__ = (
        "appended_ms",
        "body",
        "confirmed",
        "delivered",
        "due_ms",
        "gone",
        "held",
        "key",
        "may_go",
        "maybe_delivered",
        "number",
        "offset",
        "persistent",
        "returned",
        "returned_safe",
        "returned_with",
        "returned_written",
        "safe_with",
        "seen",
        "settle_safe",
        "settle_with",
        "settle_written",
        "settled",
        "tombstone",
        "transaction",
        "written",
    )

    def __init__(self, number: int, body: bytes, persistent: bool, transaction: int) -> None:
        self.number = number
        self.body = body
        self.persistent = persistent
        self.transaction = transaction
        self.offset = -1
        self.written = False
        self.confirmed = False
        self.safe_with = -1
        self.delivered = False
        self.maybe_delivered = False
        self.settled = False
        self.settle_written = False
        self.settle_safe = False
        self.settle_with = -1
        self.due_ms = -1  # when the settlement must be in the file; -1: its turn has not ended
        self.returned = 0
        self.returned_written = False
        self.returned_safe = False
        self.returned_with = -1
        self.key = KEY
        self.tombstone = False
        self.appended_ms = 0
        self.may_go = False  # compaction may have removed it if a later record of its key is there
        self.held = False  # settled but not exported yet: its bytes stay
        self.seen = False  # read by a stream reader at its offset
        self.gone = False  # a recovery did not find it: it must not return

    def __repr__(self) -> str:
        flags = [
            name
            for name in Message.__slots__
            if getattr(self, name) is True  # numbers are not flags
        ]
        return f"message {self.number} at {self.offset}: {len(self.body)} bytes, {' '.join(flags)}"

    def copy(self) -> Message:
        other = Message(self.number, self.body, self.persistent, self.transaction)
        for name in Message.__slots__:
            setattr(other, name, getattr(self, name))
        return other


class Ledger:
    """The expected state.

    - rows: the states in which the metadata may be found. queues: id -> messages in the order of appending.
    - policies, exports: id -> declared retention policy and export. holds: ids with an export hold. now_ms: the clock.
    - version: rises with each change that may change a verdict.
    - ahead: id -> the last offset that may be marked as delivered after a kill although it was not delivered.
    - stopped: cleanly and without later changes, so that the marks are exact. deleted: ids whose deletion was answered.
    - stored: the stored offsets that may be found for (id, reader name). acked: how far each reader acked in order.
    - reported: offsets that were reported as stored.
    """

    def __init__(self) -> None:
        self.rows: list[Rows] = [{}]
        self.queues: dict[str, list[Message]] = {}
        self.version = 0
        self.policies: dict[str, RetentionPolicy] = {}
        self.exports: dict[str, str] = {}
        self.holds: set[str] = set()
        self.now_ms = 1_700_000_000_000
        self.ahead: dict[str, int] = {}
        self.stopped = False
        self.deleted: set[str] = set()
        self.stored: list[Stored] = [{}]
        self.acked: Stored = {}
        self.reported: Stored = {}

    def copy(self) -> Ledger:
        other = Ledger()
        other.rows = [dict(rows) for rows in self.rows]
        other.policies, other.exports = dict(self.policies), dict(self.exports)
        other.holds, other.now_ms = set(self.holds), self.now_ms
        other.ahead, other.stopped, other.deleted = dict(self.ahead), self.stopped, set(self.deleted)
        other.stored = [dict(rows) for rows in self.stored]
        other.acked, other.reported = dict(self.acked), dict(self.reported)
        other.queues = {name: [each.copy() for each in messages] for name, messages in self.queues.items()}
        return other

    def power_cut(self) -> None:
        """Reset promises that are written but not safe; which messages were delivered is unknown."""
        for messages in self.queues.values():
            for message in messages:
                message.maybe_delivered = True
                message.written = message.confirmed
                message.settle_written = message.settle_safe
                message.returned_written = message.returned_safe


class Found(NamedTuple):
    """Content of a queue as a client finds it: (body, redelivered, delivery count) in order, and what the log reports.

    stored: with an export hold, the numbers of the messages whose bytes are in the log files. offsets: of the messages,
    empty if not compared.
    """

    messages: list[tuple[bytes, bool, int]]
    record_count: int
    next_offset: int
    last_offset: int
    lost: list[tuple[int, int]]
    stored: frozenset[int] = frozenset()
    offsets: tuple[int, ...] = ()


Outcome = dict[str, Found]


def judge(outcome: Outcome, ledger: Ledger, kind: str) -> None:
    """kind: `kill` (what was written must be there) or `cut` (what was safe must be there). Raises: Violation."""
    for queue, found in outcome.items():
        try:
            ahead = -1 if ledger.stopped else ledger.ahead.get(queue, -1)
            _judge_queue(found, ledger.queues.get(queue, []), kind, ahead)
        except Violation as violation:
            known = ledger.queues.get(queue, [])
            message_lines = "\n".join(f"  {each}" for each in known[:12])
            raise Violation(f"{kind}, {queue}: {violation}\n{message_lines}\n  found: {found}") from None
    for rows in ledger.stored:
        _judge_stored(rows, outcome, ledger)


def _judge_stored(rows: Stored, outcome: Outcome, ledger: Ledger) -> None:
    """Check the stored offsets of each named reader; the rule is the same for every crash."""
    for (queue, name), offset in rows.items():
        if queue in outcome and offset > outcome[queue].next_offset:
            raise Violation(f"{queue}: {offset} is stored for {name}, and the log ends at {outcome[queue].next_offset}")
        if offset > ledger.acked.get((queue, name), 0):
            raise Violation(f"{queue}: {offset} is stored for {name}, which has not acked that far")
    for (queue, name), offset in ledger.reported.items():
        if rows.get((queue, name), -1) < offset:
            raise Violation(f"{queue}: {offset} was stored for {name}, and {rows.get((queue, name))} is")


def _judge_cleaned(message: Message, messages: list[Message], there: dict[int, tuple[bool, int]]) -> None:
    """Compaction removed the message: allowed for a later record of its key, or for a tombstone with nothing to
    hide.
    """
    others = [each for each in messages if each.key == message.key and each.number in there]
    if any(each.number > message.number for each in others):
        return
    later = [each for each in messages if each.key == message.key and each.number > message.number]
    if not message.tombstone and not any(each.tombstone or each.settled for each in later):
        raise Violation(f"message {message.number}, the last of its key, is lost")
    if message.tombstone and others:
        raise Violation(f"the tombstone {message.number} is gone, and what it took away is there")


def _judge_queue(found: Found, messages: list[Message], kind: str, ahead: int) -> None:
    known = {message.body: message for message in messages}
    there: dict[int, tuple[bool, int]] = {}
    last = -1
    for body, redelivered, count in found.messages:
        message = known.get(body)
        if message is None:
            raise Violation(f"a message that was never published here: {body[:40]!r}")
        if message.number <= last:
            raise Violation(f"message {message.number} comes after {last}")
        last = message.number
        there[message.number] = (redelivered, count)
    for (body, _, _), offset in zip(found.messages, found.offsets, strict=False):
        if known[body].seen and known[body].offset != offset:
            raise Violation(f"message {known[body].number} was seen at {known[body].offset}, and stands at {offset}")
    mark = max([each.number for each in messages if each.delivered or each.maybe_delivered], default=-1)
    cut = kind == "cut"
    transactions: dict[int, list[Message]] = {}
    for message in messages:
        number = message.number
        if message.transaction:
            transactions.setdefault(message.transaction, []).append(message)
        if number not in there:
            must = message.seen or (message.persistent and (message.confirmed if cut else message.written))
            if must and message.held and number not in found.stored:
                raise Violation(f"message {number} is held for an export, and its bytes are gone")
            if must and message.may_go and not message.settled and not message.gone:
                _judge_cleaned(message, messages, there)
            elif must and not message.settled and not message.gone:
                raise Violation(f"message {number} is lost")
            continue
        redelivered, count = there[number]
        if message.gone:
            raise Violation(f"message {number} was gone and is back")
        if not message.persistent:
            raise Violation(f"the transient message {number} is back")
        if message.settled and (message.settle_safe if cut else message.settle_written):
            raise Violation(f"message {number} was settled for good")
        if message.delivered and not redelivered:
            raise Violation(f"message {number} was delivered and does not come as redelivered")
        if not cut and redelivered and number > mark and not message.returned and message.offset > ahead:
            raise Violation(f"message {number} was never delivered and comes as redelivered")
        if message.returned and (message.returned_safe if cut else message.returned_written):
            known_count = f"message {number} was given back {message.returned} times, and {count} is known"
            if count != message.returned:
                raise Violation(known_count)
    for parts in transactions.values():
        missing = [each.number for each in parts if each.number not in there and not each.settled]
        if missing and len(missing) < sum(not each.settled for each in parts):
            raise Violation(f"half a transaction: {missing} are missing")
    if found.lost:
        raise Violation(f"offsets {found.lost} count as lost: a crash damages nothing")
    if found.record_count != len(found.messages):
        raise Violation(f"{found.record_count} are counted, {len(found.messages)} are there")
    if found.next_offset <= found.last_offset:
        raise Violation(f"offset {found.next_offset} would be used again")


def removable(live: list[Message], policy: RetentionPolicy, now_ms: int) -> list[Message]:
    """Return what retention may remove: everything that no limit protects in its strictest reading."""
    found: list[Message] = []
    if policy.max_age_ms >= 0:
        found += [each for each in live if each.appended_ms < now_ms - policy.max_age_ms]
    if policy.max_bytes >= 0:
        size = 0
        for message in reversed(live):
            size += len(message.body) + OVERHEAD_MAX
            if size >= policy.max_bytes:
                found.append(message)
    return [each for each in live if each in found]
