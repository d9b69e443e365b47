"""The expected state of a broker's messages, kept outside the disk, and the judge of what consumers get after a crash.

A message is in places: a queue, or the wheel of an exchange that delays it ("wheel x"). `Place.promise` says how
certain it is there, `Place.left` how certain it has left. Between request and promise a crash may show either. A moved
message may be in two places; then all copies but one are marked: redelivered, `x-delayed-redelivered` or
`x-source-queue`.

Steps of a promise: ASKED (a crash may show it or not), WRITTEN (a kill must not undo it), SAFE (a power cut must not
undo it).
"""

from __future__ import annotations

from typing import Final, NamedTuple, Self

from states_ledger import Violation

from amqpd.storage.metadata.rows import Row

NONE: Final = 0
ASKED: Final = 1
WRITTEN: Final = 2
SAFE: Final = 3
Rows = dict[tuple[object, ...], Row]


class Place:
    """One copy of a message.

    path: the directory whose settlements record that it left; nothing if only the metadata do. asked_ms: since when
    it may have left. seen: it was delivered; maybe_seen: it may have been. waits_ms: the time of its next try, as
    certain as `wait`. count: returns, as certain as `wait`.
    """

    __slots__ = ("asked_ms", "count", "left", "maybe_seen", "path", "promise", "seen", "wait", "waits_ms")

    def __init__(self, path: str) -> None:
        self.path = path
        self.promise = ASKED
        self.left = NONE
        self.asked_ms = 0
        self.seen = False
        self.maybe_seen = False
        self.wait = NONE
        self.waits_ms = 0
        self.count = 0

    def leave(self, now_ms: int) -> None:
        """Mark the message as settled in this place from now on."""
        if self.left == NONE:
            self.left, self.asked_ms = ASKED, now_ms

    def copy(self) -> Place:
        other = Place(self.path)
        for name in Place.__slots__:
            setattr(other, name, getattr(self, name))
        return other


class Sent:
    """A message.

    - number: rises with each publish. due_ms: of a delayed message, otherwise 0. group: for a queue with groups.
    - numbers: producer id, epoch, sequence. known_by: the exchange that remembers its deduplication id.
    - over: it is settled, or may be. promise: how certain at least one copy exists.
    - was_confirmed: it was confirmed. times: earlier publishes.
    - doubled: the last start found several copies, because a crash may release a delayed message twice. An ack settles
      one of them.
    - rewound: number of the rewind that brings it back. transaction: of its publish. acked_in: transaction of its ack.
      0 for none.
    """

    __slots__ = (
        "acked_in",
        "body",
        "doubled",
        "due_ms",
        "exchange",
        "group",
        "key",
        "known_by",
        "number",
        "numbers",
        "over",
        "places",
        "promise",
        "queue",
        "rewound",
        "times",
        "transaction",
        "turn",
        "was_confirmed",
    )

    def __init__(self, number: int, body: bytes, exchange: str, key: str, queue: str) -> None:
        self.number = number
        self.body = body
        self.exchange = exchange
        self.key = key
        self.queue = queue
        self.due_ms = 0
        self.group = ""
        self.numbers: tuple[int, int, int] | None = None
        self.known_by = ""
        self.over = self.doubled = False
        self.promise = ASKED
        self.places: dict[str, Place] = {}
        self.rewound = 0
        self.times = 0
        self.was_confirmed = False
        self.transaction = 0
        self.acked_in = 0
        self.turn = 0

    def copy(self) -> Sent:
        other = Sent(self.number, self.body, self.exchange, self.key, self.queue)
        for name in Sent.__slots__:
            setattr(other, name, getattr(self, name))
        other.places = {name: place.copy() for name, place in self.places.items()}
        return other

    def __repr__(self) -> str:
        places = ", ".join(
            f"{name}: promise {each.promise}, left {each.left}{', seen' if each.seen else ''}"
            f"{f', waits until {each.waits_ms} ({each.wait})' if each.waits_ms else ''}"
            for name, each in self.places.items()
        )
        more = f", due {self.due_ms}" if self.due_ms else ""
        more += f", numbers {self.numbers}" if self.numbers else ""
        return f"message {self.number} (promise {self.promise}{', over' if self.over else ''}{more}): {places}"


class BrokerLedger:
    """The expected state.

    rows: the states in which the metadata may be found. sent: messages by body. version: rises with each change that
    may change a verdict. rewinds: number -> done. groups: queues with groups.
    """

    def __init__(self) -> None:
        self.rows: list[Rows] = [{}]
        self.sent: dict[bytes, Sent] = {}
        self.version = 0
        self.now_ms = 1_700_000_000_000
        self.rewinds: dict[int, bool] = {}
        self.groups: set[str] = set()
        self.number = 0

    def copy(self) -> Self:
        other = type(self)()
        other.rows = [dict(rows) for rows in self.rows]
        other.sent = {body: each.copy() for body, each in self.sent.items()}
        other.version, other.now_ms, other.number = self.version, self.now_ms, self.number
        other.rewinds, other.groups = dict(self.rewinds), set(self.groups)
        return other

    def repeated(self) -> list[Sent]:
        """Return the messages that publishers repeat after a crash, in order: numbered ones, or with an id."""
        last: dict[int, int] = {}
        for each in self.sent.values():
            if each.numbers is not None:
                last[each.numbers[0]] = max(each.numbers[1], last.get(each.numbers[0], 0))
        return [
            each
            for each in self.sent.values()
            if each.known_by or (each.numbers is not None and each.numbers[1] == last[each.numbers[0]])
        ]

    def asked(self) -> tuple[object, ...]:
        """Return what a start depends on: the repeated messages, and until when messages wait."""
        return (tuple(each.body for each in self.repeated()), self.waits_ms())

    def waits_ms(self) -> int:
        """Return the latest due time."""
        waits = [each.due_ms for each in self.sent.values()]
        waits += [place.waits_ms for each in self.sent.values() for place in each.places.values()]
        return max(waits, default=0)

    def power_cut(self) -> None:
        """Reset promises that are written but not safe."""
        for each in self.sent.values():
            each.promise = each.promise if each.promise == SAFE else ASKED
            for place in each.places.values():
                place.promise = place.promise if place.promise == SAFE else ASKED
                place.left = place.left if place.left in (NONE, SAFE) else ASKED
                place.wait = place.wait if place.wait in (NONE, SAFE) else ASKED
                place.maybe_seen = True

    def found(self, outcome: BrokerOutcome, *, safe: bool) -> None:
        """Update the ledger after a start. safe: the disk holds this state already."""
        self.version += 1
        step = SAFE if safe else WRITTEN
        repeated = {each.body for each in self.repeated()}
        there: dict[bytes, list[Copy]] = {}
        for copy in outcome.copies:
            there.setdefault(copy.body, []).append(copy)
        for body, each in self.sent.items():
            copies = there.get(body, [])
            each.rewound = 0
            each.doubled = len(copies) > 1
            if copies:
                each.promise, each.over, each.acked_in = max(each.promise, step), False, 0
            elif body in repeated and each.promise < step:  # it is not stored: it may be published and stored again
                each.promise = ASKED
                for place in each.places.values():
                    place.left, place.seen = NONE, False
                continue
            else:
                each.over = True
            for name, place in each.places.items():
                if name.startswith("wheel "):
                    if any(copy.from_wheel for copy in copies):
                        place.left = NONE
                    elif not copies or place.left != NONE:
                        place.left = max(place.left, step)
                else:
                    _found_in(place, [copy for copy in copies if copy.place == name], step, each.due_ms > 0)

    def all_safe(self) -> None:
        """Everything written is synced from now on."""
        self.version += 1
        for each in self.sent.values():
            each.promise = SAFE if each.promise == WRITTEN else each.promise
            for place in each.places.values():
                place.promise = SAFE if place.promise == WRITTEN else place.promise
                place.left = SAFE if place.left == WRITTEN else place.left
                place.wait = SAFE if place.wait == WRITTEN else place.wait


def _found_in(place: Place, copies: list[Copy], step: int, delayed: bool) -> None:
    """Update a queue after a start. delayed: its message may also come from a wheel."""
    own = [copy for copy in copies if not copy.from_wheel]
    if own:
        place.left, place.count = NONE, own[0].count
        place.wait = step if own[0].late and place.wait != NONE else NONE
        place.waits_ms = place.waits_ms if place.wait != NONE else 0
        if not delayed or own[0].redelivered:
            place.promise = max(place.promise, step)
        place.seen = place.seen and own[0].redelivered
        place.maybe_seen = own[0].redelivered
    elif place.left != SAFE:
        place.left, place.promise = (step, place.promise) if place.left != NONE or not delayed else (NONE, NONE)


class Copy(NamedTuple):
    """One message that a consumer gets after a start.

    late: only after the time of `due_ms` or a retry has passed. from_wheel: has x-delayed-redelivered. moved: has
    x-source-queue.
    """

    body: bytes
    place: str
    redelivered: bool
    from_wheel: bool
    moved: bool
    count: int
    late: bool

    def __repr__(self) -> str:
        said = [name for name in ("redelivered", "from_wheel", "moved", "late") if getattr(self, name)]
        return f"{self.body[:12]!r} from {self.place}, count {self.count}, {' '.join(said)}"


class BrokerOutcome(NamedTuple):
    """The messages that consumers get after a start, in order.

    left: delayed messages that did not come although all were due. broken: violations found meanwhile.
    """

    copies: list[Copy]
    left: int
    broken: list[str]
    now_ms: int


def judge_broker(outcome: BrokerOutcome, ledger: BrokerLedger, kind: str) -> None:
    """kind: `kill` (what was written must be there) or `cut` (what was safe must be there). Raises: Violation."""
    try:
        _judge(outcome, ledger, SAFE if kind == "cut" else WRITTEN)
    except Violation as violation:
        sent_lines = "\n".join(f"  {each}" for each in ledger.sent.values())
        found = "\n".join(f"  {each}" for each in outcome.copies)
        raise Violation(f"{kind}: {violation}\n{sent_lines}\n  found at {outcome.now_ms}:\n{found}") from None


def _judge(outcome: BrokerOutcome, ledger: BrokerLedger, step: int) -> None:
    if outcome.broken:
        raise Violation(outcome.broken[0])
    if outcome.left:
        raise Violation(f"{outcome.left} delayed messages never come")
    there: dict[bytes, list[Copy]] = {}
    for copy in outcome.copies:
        if copy.body not in ledger.sent:
            raise Violation(f"a message that was never published: {copy.body[:40]!r}")
        there.setdefault(copy.body, []).append(copy)
    repeated = {each.body for each in ledger.repeated()}
    for body, each in ledger.sent.items():
        copies = there.get(body, [])
        for copy in copies:
            _judge_copy(each, copy, step, outcome.now_ms, body in repeated)
        _judge_message(each, copies, step, body in repeated)
    _judge_rewinds(there, ledger)
    _judge_transactions(there, ledger)
    _judge_order(outcome.copies, ledger)


def _judge_copy(sent: Sent, copy: Copy, step: int, now_ms: int, repeated: bool) -> None:
    name = f"message {sent.number}"
    place = sent.places.get(copy.place)
    if place is None:
        raise Violation(f"{name} is in {copy.place}, where it was never put")
    if not copy.late and sent.due_ms > now_ms:
        raise Violation(f"{name} comes {sent.due_ms - now_ms} ms before its time")
    if copy.from_wheel:
        wheels = [each for where, each in sent.places.items() if where.startswith("wheel ")]
        if not wheels:
            raise Violation(f"{name} was never delayed and says that it was released again")
        if all(each.left >= step for each in wheels) and not sent.doubled:
            raise Violation(f"{name} was released, or cancelled, for good and comes again")
        return
    if sent.known_by and not sent.was_confirmed:
        return  # published again and stored again
    if place.left >= step:
        raise Violation(f"{name} was settled for good in {copy.place}")
    if place.seen and not copy.redelivered and not (repeated and place.promise < step):
        raise Violation(f"{name} was delivered from {copy.place} and does not come as redelivered")
    if place.wait >= step:
        if not copy.late and place.waits_ms > now_ms:
            raise Violation(f"{name} comes {place.waits_ms - now_ms} ms before its next try")
        if copy.count < place.count:
            raise Violation(f"{name} came back {place.count} times, and {copy.count} is known")


def _judge_message(sent: Sent, copies: list[Copy], step: int, repeated: bool) -> None:
    name = f"message {sent.number}"
    places = {copy.place for copy in copies}
    if not copies and not sent.over and (sent.promise >= step or repeated):
        raise Violation(f"{name} is lost")
    for where, place in sent.places.items():
        if place.promise >= step and place.left == NONE and where not in places and not where.startswith("wheel "):
            raise Violation(f"{name} is lost in {where}")
    if sent.numbers is not None and repeated:
        if len(copies) > 1:
            raise Violation(f"{name}, with numbers {sent.numbers}, is stored {len(copies)} times")
        return
    if sent.known_by:
        if len(copies) > sent.times + (not sent.was_confirmed):
            raise Violation(f"{name}, confirmed after {sent.times} tries, is stored {len(copies)} times")
        return
    plain = [copy for copy in copies if not (copy.redelivered or copy.from_wheel or copy.moved)]
    if len(plain) > 1:
        raise Violation(f"{name} comes {len(plain)} times, unmarked: {plain}")
    doubles = [copy.place for copy in copies if not copy.from_wheel]
    for where in set(doubles):
        if doubles.count(where) > 1 and not all(copy.moved for copy in copies if copy.place == where):
            raise Violation(f"{name} is {doubles.count(where)} times in {where}")


def _judge_rewinds(there: dict[bytes, list[Copy]], ledger: BrokerLedger) -> None:
    """Check that all messages of a rewind are there, or none."""
    for number, done in ledger.rewinds.items():
        of_it = [each for each in ledger.sent.values() if each.rewound == number]
        back = [each for each in of_it if each.body in there]
        missing = [each.number for each in of_it if each.body not in there]
        if missing and (done or back):
            raise Violation(f"of what was rewound {missing} are missing")
        for each in back:
            if not all(copy.redelivered for copy in there[each.body]):
                raise Violation(f"message {each.number} was rewound and does not come as redelivered")


def _judge_transactions(there: dict[bytes, list[Copy]], ledger: BrokerLedger) -> None:
    """Check that a queue shows all or nothing of a transaction, and that its acks count only with all its publishes."""
    missing: dict[int, list[int]] = {}
    shown: dict[tuple[int, str], set[bool]] = {}
    for each in ledger.sent.values():
        if not each.transaction or each.places[each.queue].left != NONE:
            continue
        found = each.body in there
        shown.setdefault((each.transaction, each.queue), set()).add(found)
        if not found:
            missing.setdefault(each.transaction, []).append(each.number)
    for (number, queue), both in shown.items():
        if len(both) > 1:
            raise Violation(f"{queue} shows transaction {number} in part: {missing[number]} are missing")
    for each in ledger.sent.values():
        if each.acked_in in missing and each.body not in there:
            raise Violation(
                f"message {each.number} was acked by transaction {each.acked_in}, of which {missing[each.acked_in]} "
                f"are missing"
            )


def _judge_order(copies: list[Copy], ledger: BrokerLedger) -> None:
    last: dict[tuple[str, str], int] = {}
    for copy in copies:
        sent = ledger.sent[copy.body]
        if copy.place in ledger.groups:
            key = (copy.place, sent.group)
            if sent.number < last.get(key, -1):
                raise Violation(f"message {sent.number} of group {sent.group} comes after {last[key]}")
        elif copy.late or copy.redelivered or copy.moved or sent.due_ms or len(sent.places) > 1:
            continue
        else:
            key = (copy.place, "")
            if sent.number < last.get(key, -1) and not sent.known_by and sent.numbers is None:
                raise Violation(f"message {sent.number} comes after {last[key]}")
        last[key] = sent.number
