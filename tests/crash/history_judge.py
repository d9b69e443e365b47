"""The judge of a history: the fate of each copy of each message in each queue.

A copy is a message in the queue to which it was published, or its dead letter in another queue. `take` gets events in
order. `account` closes an epoch: the queues are drained and the broker is stopped, so every copy must be accounted for,
and none may be seen again.

For a copy that was promised (confirmed, committed, or plain, read and followed by a clean stop) there must be one of: a
delivery whose ack was written; a dead letter; a purge or a deletion of its queue. Further rules:

- Settled is final: an ack, reject, purge or deletion that the broker has certainly done (below) is not undone.
- A repeated delivery is `redelivered`. In one life, no delivery comes while a consumer holds the message or after it
  was settled.
- First deliveries of a lane come in its order; in a priority queue, in the order of each level.
- A rejected message arrives as a dead letter, except if it returned and ended otherwise. A dead letter has the right
  source and a reason that its queue can have, does not come too early, and is settled by an ack as well.
- A queue shows all or nothing of a transaction, and nothing of one that was rolled back or never committed. Acks of a
  transaction count from commit-ok, and do not count after a rollback.
- A moved, redriven or delayed message is judged like a dead letter: it is in its queue or at its target. Only a kill
  near the time of the move or release leaves it in both; then all copies but one are marked. A delayed message does not
  come before its due time, and not at all if its cancellation was answered.
- A message returned to a queue with retries waits its delay, also over a kill, and the return is counted.
- A message with a producer number that is published again comes once. No message of a replaced producer comes.
- A rewind brings back all settled messages of its batches, marked; if unanswered before a kill, all of them or none.

What is uncertain:

- At a kill a settlement counts if a request behind it was answered, and a further request AGE_S after that answer, too.
  At a power cut twice the slowest confirm is added, since the settlement must be synced. So the broker had the time on
  any machine. After a clean stop a settlement counts if it was read.
- A dead-lettered message is settled at its source after its targets are synced: twice the slowest confirm and 2 AGE_S
  after the delivery of the dead letter (at a power cut four times the slowest confirm), or twice the slowest confirm
  and LETTER_AGE_S after the reject was read. Until then a kill may repeat a dead letter; one copy per kill may be
  unmarked (`x-death-redelivered`).
- A purge or deletion without an answer may have been done or not; a deletion is all or nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from history import COPIES, DELIVERY_LIMITS, PASSES, REASONS, TTL_S, Event, Given, Sent, retry_s
from history_copies import Consumer, Copy, Rewinds

AGE_S: Final = 0.1
LETTER_AGE_S: Final = 1.0
DROPPING: Final = {"full", "aged", "ruled"}
CLOCK_S: Final = 0.002
"""The broker counts time to live and delays in whole milliseconds of the wall clock."""
SOURCES: Final = {copies: queue for queue, copies in COPIES.items()}


class Judge:
    """Judges the fate of every copy, event by event.

    Pass the history of an epoch to `take`, then call `account`; `violations` has the result.
    """

    def __init__(self) -> None:
        self.violations: list[str] = []
        self.clock_s = CLOCK_S
        self.life = 0
        self.stories: dict[int, list[tuple[int, Event]]] = {}
        self.totals: dict[str, int] = defaultdict(int)
        self._slowest_ever_s = 0.0
        self._begin()

    def _begin(self) -> None:
        self.copies: dict[tuple[str, int], Copy] = {}
        self._stories: dict[int, list[tuple[int, Event]]] = defaultdict(list)
        self._queues: dict[str, list[Copy]] = defaultdict(list)
        self._transactions: dict[int, str] = {}
        self._members: dict[tuple[int, str], list[Copy]] = defaultdict(list)
        self._settlements: dict[int, list[Copy]] = defaultdict(list)
        self._commands: dict[int, Event] = {}  # of this life, not answered yet
        self._kinds: dict[int, str] = {}  # "purge" or "delete"
        self._consumers: dict[str, Consumer] = defaultdict(Consumer)
        self._rewinds = Rewinds(self.violate)
        self._crashes: list[float] = []
        self._first: dict[tuple[str, int], int] = {}
        self._slowest_s = 0.0

    def violate(self, text: str, message: int = -1) -> None:
        """Add a violation. message: its events are kept for `tell`, for the first few messages."""
        if len(self.violations) < 50:
            self.violations.append(f"life {self.life}: {text}")
        if len(self.stories) < 5 and message in self._stories:
            self.stories[message] = self._stories[message]

    def tell(self) -> str:
        """Return all events of the messages of the first violations, line by line."""
        return "\n".join(
            f"{message}: life {life} {event.at:.3f} {event.what} {event.queue} {event.more}"
            for message, story in self.stories.items()
            for life, event in story
        )

    # -- events

    def take(self, events: Iterable[Event]) -> None:
        for event in events:
            self.totals[event.what] += 1
            if event.message >= 0:
                self._stories[event.message].append((self.life, event))
            getattr(self, "_" + event.what.replace(" ", "_").replace("-", "_"))(event)

    def _publish(self, event: Event) -> None:
        copy = Copy(event.message, event.queue, event.more, event.at, self.life)
        self.copies[event.queue, event.message] = copy
        self._queues[event.queue].append(copy)
        if copy.sent.transaction:
            self._members[copy.sent.transaction, copy.queue].append(copy)

    def _confirmed(self, event: Event) -> None:
        copy = self.copies[event.queue, event.message]
        copy.promised_at = event.at
        self._slowest_s = max(self._slowest_s, event.at - copy.sent_at)

    def _publish_again(self, event: Event) -> None:
        """Count as the first publish if there was no delivery or confirm before."""
        copy = self.copies[event.queue, event.message]
        if not copy.promised_at and not copy.times:
            copy.sent_at, copy.life = event.at, self.life
        if copy.unsafe and not (copy.promised_at or copy.gone or copy.given_in == self.life):
            copy.sent_at, copy.life = event.at, self.life
            copy.spared = copy.spared or copy.verdict == "ack"
            copy.given, copy.times, copy.unmarked, copy.verdict = 0, 0, 0, ""

    def _refused(self, event: Event) -> None:
        """The broker refused it; no delivery may come."""

    def _ruled(self, event: Event) -> None:
        """A new policy: nothing to record."""

    def _nacked(self, event: Event) -> None:
        self.violate(f"{event.queue} {event.message} was nacked")

    def _heard_publish(self, event: Event) -> None:
        self.copies[event.queue, event.message].heard = True

    def _given(self, event: Event) -> None:
        copy = self._copy_of(event)
        if copy is None:
            return
        given: Given = event.more
        text = f"{copy}"
        self._rewinds.came(copy)
        if copy.source is None:
            self._judge_source(copy, given, text)
        elif copy.source.queue in PASSES:
            self._judge_passed(copy, given, text)
        else:
            self._judge_letter(copy, given, text)
        self._judge_again(copy, given, text)
        self._judge_return(copy, given, event.at, text)
        copy.given, copy.given_at, copy.given_in, copy.by = given.number, event.at, self.life, given.by
        copy.returns, copy.returned, copy.until = given.returns, False, 0.0
        copy.times += 1
        copy.verdict, copy.transaction = "", 0
        if self.life > copy.life and copy.source is None:  # a message that survived one restart must survive the others
            copy.promised_at = copy.promised_at or event.at

    def _copy_of(self, event: Event) -> Copy | None:
        """Return the delivered copy; a dead letter is created at its first delivery."""
        found = self.copies.get((event.queue, event.message))
        if found is None and event.queue in SOURCES:
            source = self.copies.get((SOURCES[event.queue], event.message))
            if source is not None:
                found = Copy(event.message, event.queue, source.sent, source.sent_at, self.life, source=source)
                if source.queue in PASSES:
                    since = max(source.sent_at, source.sent.due - CLOCK_S)
                    found.possible = 1 + sum(at > since for at in self._crashes)
                else:
                    found.possible = 1 + self.life - source.life  # each restart since may have repeated it
                source.letter = found
                self.copies[event.queue, event.message] = found
                self._judge_first_letter(found, event)
        if found is None:
            self.violate(f"{event.queue} {event.message} was never published, or was accounted for in an earlier epoch")
        return found

    def _judge_again(self, copy: Copy, given: Given, text: str) -> None:
        """Check that a repeated delivery is marked, and that no consumer holds the message."""
        if not given.redelivered:
            letter = copy.source is not None and not copy.passed
            copy.unmarked += not (letter and given.marked)
            other = not given.marked if copy.passed else copy.possible == 1
            if copy.unmarked > self._unmarked_max(copy) or (copy.times and other):
                self.violate(f"{text} came again without redelivered, seen in life {copy.given_in}", copy.message)
        if copy.given_in == self.life and copy.possible == 1:
            if copy.held:
                self.violate(f"{text} came although {copy.by} holds it", copy.message)
            elif copy.verdict in ("ack", "reject") and not copy.transaction:
                self.violate(f"{text} came again in the life in which it was settled ({copy.verdict})", copy.message)

    def _unmarked_max(self, copy: Copy) -> int:
        """Return how many deliveries may be unmarked: a kill between two writes may leave a dead letter without the
        mark.
        """
        return copy.possible

    def _judge_return(self, copy: Copy, given: Given, at: float, text: str) -> None:
        """Check the count of returns and the retry delay."""
        if given.returns > DELIVERY_LIMITS.get(copy.queue, given.returns):
            self.violate(f"{text} came back {given.returns} times, more often than its queue allows", copy.message)
        if at < copy.until - self.clock_s:
            self.violate(f"{text} came {copy.until - at:.3f} s before its retry was due", copy.message)
        if copy.queue not in DELIVERY_LIMITS or copy.verdict != "requeue" or given.returns > copy.returns:
            return
        if copy.given_in == self.life or (copy.returned and _counts_again(copy)):
            self.violate(f"{text} was returned, and still says x-delivery-count {given.returns}", copy.message)

    def _judge_source(self, copy: Copy, given: Given, text: str) -> None:
        sent = copy.sent
        if copy.gone:
            self.violate(f"{text} came back although it was settled: {copy.describe_end()}", copy.message)
        if copy.letter is not None:
            if copy.letter.sealed:
                self.violate(f"{text} came back long after its letter had come", copy.message)
            elif copy.life == self.life:
                self.violate(f"{text} came although its letter had come in this life", copy.message)
            elif copy.queue in PASSES and not given.redelivered:
                self.violate(f"{text} came unmarked after its copy in {copy.letter.queue}", copy.message)
        if sent.how == "old":
            self.violate(f"{text} came although its producer had been replaced", copy.message)
        if sent.transaction:
            state = self._transactions.get(sent.transaction, "never committed")
            if state in ("never committed", "rolled back", "rollback"):
                self.violate(f"{text} came although its transaction {sent.transaction} was {state}", copy.message)
        if not copy.times:
            place = (copy.queue, sent.priority)
            if copy.message < self._first.get(place, -1) and not self._may_be_late(copy, given):
                self.violate(f"{text} (priority {sent.priority}) came first after {self._first[place]}", copy.message)
            self._first[place] = max(self._first.get(place, -1), copy.message)
        for number in copy.perhaps:  # a deletion is all or nothing: this one was not done
            if self._kinds[number] == "delete":
                for other in self._queues[copy.queue]:
                    if other is not copy:
                        other.perhaps.discard(number)
        copy.perhaps = {number for number in copy.perhaps if self._kinds[number] == "rewind"}

    def _may_be_late(self, copy: Copy, given: Given) -> bool:
        """Return whether it may come out of order: dropped, purged or unsafe messages may return after a crash."""
        if copy.queue in PASSES or copy.unsafe:
            return True
        return copy.life < self.life and (copy.queue in DROPPING or bool(copy.perhaps))

    def _judge_passed(self, copy: Copy, given: Given, text: str) -> None:
        """Check a moved, redriven or released message."""
        source = copy.source
        assert source is not None
        if copy.gone and copy.possible == 1:
            self.violate(f"{text} came back although it was settled: {copy.describe_end()}", copy.message)
        if source.gone == "cancel":
            self.violate(f"{text} came although it had been cancelled", copy.message)
        if given.deaths or given.home != ("" if source.queue == "later" else source.queue):
            self.violate(f"{text} says it came from '{given.home}', with deaths {given.deaths}", copy.message)
        if source.unmarked and not copy.times and not given.redelivered and not given.marked:
            self.violate(f"{text} was seen in {source.queue}, and neither copy is marked", copy.message)

    def _judge_letter(self, copy: Copy, given: Given, text: str) -> None:
        assert copy.source is not None
        if copy.gone and copy.possible == 1:
            self.violate(f"{text} came back although it was settled: {copy.describe_end()}", copy.message)
        if len(given.deaths) != 1:
            self.violate(f"{text} has {len(given.deaths)} deaths: {given.deaths}", copy.message)
            return
        reason, *where = given.deaths[0]
        home = copy.source.queue
        if where != [home, "", (home,), 1] or reason not in REASONS[home]:
            self.violate(f"{text} has a death that {home} cannot have: {given.deaths[0]}", copy.message)
        elif reason == "rejected" and not copy.source.rejected:
            self.violate(f"{text} has the reason rejected, but no consumer rejected it", copy.message)

    def _judge_first_letter(self, letter: Copy, event: Event) -> None:
        source = letter.source
        assert source is not None
        if event.at < source.sent.due - CLOCK_S:
            self.violate(f"{letter} came {source.sent.due - event.at:.3f} s before it was due", letter.message)
        for reason, *_ in event.more.deaths:
            if reason == "expired" and source.queue == "aged" and event.at - source.sent_at < TTL_S - self.clock_s:
                self.violate(f"{letter} expired {event.at - source.sent_at:.3f} s after it was sent", letter.message)
            limit = DELIVERY_LIMITS.get(source.queue, 0)
            if reason == "delivery_limit" and source.times + self.life - source.life <= limit:
                self.violate(f"{letter} has the reason delivery_limit after {source.times} deliveries", letter.message)
        if source.verdict == "ack" and not source.rejected and source.life == self.life:
            self.violate(f"{letter} came although its message was acked", letter.message)

    def _settle(self, event: Event) -> None:
        number, verdict, transaction = event.more
        copy = self.copies.get((event.queue, event.message))
        if copy is None or copy.given != number:
            return  # reported at its delivery
        copy.verdict, copy.transaction, copy.settled_at = verdict, transaction, event.at
        copy.rejected = copy.rejected or verdict == "reject"
        if verdict == "requeue" and copy.queue == "retry" and _counts_again(copy):
            copy.until = event.at + retry_s(copy.returns + 1)
        if transaction:
            self._settlements[transaction].append(copy)
        else:
            self._consumers[copy.by].unread.append((event.at, copy, number))

    def _heard(self, event: Event) -> None:
        by, asked_at = event.more
        self._consumers[by].heard.append((asked_at, event.at))

    def _commit(self, event: Event) -> None:
        self._transactions[event.more] = "commit"

    def _committed(self, event: Event) -> None:
        self._transactions[event.more] = "committed"
        for queue in ("tx.a", "tx.b"):
            for copy in self._members.get((event.more, queue), ()):
                copy.promised_at = event.at
        for copy in self._settlements.pop(event.more, ()):
            if copy.transaction == event.more:
                copy.transaction = 0
                if copy.verdict == "ack":
                    copy.gone, copy.gone_at = "ack", event.at

    def _rollback(self, event: Event) -> None:
        self._transactions[event.more] = "rollback"

    def _rolled_back(self, event: Event) -> None:
        """Undo the acks: the channel holds these messages as before."""
        self._transactions[event.more] = "rolled back"
        for copy in self._settlements.pop(event.more, ()):
            if copy.transaction == event.more:
                copy.verdict, copy.transaction = "", 0

    def _purge(self, event: Event) -> None:
        self._commands[event.more] = event
        self._kinds[event.more] = event.what

    _delete = _purge

    def _purged(self, event: Event) -> None:
        """Messages that were confirmed and ready when the purge was written are gone, held ones stay, others are
        uncertain.
        """
        command = self._commands.pop(event.more)
        for copy in self._queues[event.queue]:
            if copy.gone or copy.held or copy.verdict == "ack" or copy.sent_at > event.at:
                continue
            if copy.promised_at and copy.promised_at < command.at and copy.settled_at < command.at:
                copy.gone, copy.gone_at, copy.gone_by = "purge", event.at, event.more
            else:
                copy.perhaps.add(event.more)

    def _deleted(self, event: Event) -> None:
        command = self._commands.pop(event.more)
        for copy in self._queues[event.queue]:
            if copy.sent_at < command.at:
                copy.gone, copy.gone_at = copy.gone or "delete", copy.gone_at or event.at

    def _cancel(self, event: Event) -> None:
        self._kinds[event.more] = "cancel"
        if (copy := self.copies.get((event.queue, event.message))) is None:
            self.violate(f"{event.queue} {event.message} waits, and was accounted for in an earlier epoch")
            copy = self.copies[event.queue, event.message] = Copy(event.message, event.queue, Sent("plain"), 0.0, 0)
        copy.perhaps.add(event.more)

    def _cancelled(self, event: Event) -> None:
        copy = self.copies[event.queue, event.message]
        copy.perhaps.discard(event.more)
        copy.gone, copy.gone_at, copy.gone_by = "cancel", event.at, event.more
        if copy.letter is not None and copy.letter.possible == 1:
            self.violate(f"{copy} was cancelled, and had come before", copy.message)

    def _uncancelled(self, event: Event) -> None:
        """The message did not exist any more, or was being released."""
        self.copies[event.queue, event.message].perhaps.discard(event.more)

    def _rewind(self, event: Event) -> None:
        number, first, last = event.more
        self._kinds[number] = "rewind"
        copies = [copy for copy in self._queues[event.queue] if first <= copy.sent.batch <= last]
        self._rewinds.begin(number, copies, self._consumers[event.queue].heard, self.life)

    def _rewound(self, event: Event) -> None:
        self._rewinds.answered(*event.more)

    # -- end of a life and of an epoch

    def _ended(self, event: Event) -> None:
        """Decide which settlements count from now on."""
        how = event.more
        slowest_s = max(self._slowest_s, *(event.at - copy.sent_at for copy in self._unanswered()), 0.0)
        self._slowest_ever_s = max(self._slowest_ever_s, slowest_s)
        margin_s = 2 * (slowest_s or self._slowest_ever_s)
        self._slowest_s = 0.0
        asked_at = self._count_settlements(how, event.at, margin_s)
        self._consumers.clear()
        for number, command in self._commands.items():
            for copy in self._queues[command.queue]:
                if copy.sent_at < command.at and not copy.gone:
                    copy.perhaps.add(number)
        self._commands.clear()
        for copy in self.copies.values():
            if how == "stop" and copy.heard and copy.life == self.life:
                copy.promised_at = copy.promised_at or event.at
            if how == "cut" and copy.gone == "purge" and copy.gone_at > event.at - AGE_S - margin_s:
                copy.gone = ""  # uncertain: it may not have been synced
                copy.perhaps.add(copy.gone_by)
            if copy.gone == "cancel" and how != "stop" and copy.gone_at > asked_at - AGE_S - margin_s * (how == "cut"):
                copy.gone = ""
                copy.perhaps.add(copy.gone_by)
            if copy.source is not None and not copy.sealed:
                old = copy.given_at < event.at - 2 * AGE_S - margin_s * (2 if how == "cut" else 1)
                old = old or (copy.passed and how == "stop")
                seen = copy.life == self.life and copy.possible == 1  # all its events are of this life
                copy.sealed = copy.source.gone == "reject" or (old and seen)
                copy.possible += not copy.sealed and not (copy.passed and how == "stop")
            copy.unsafe = copy.unsafe or (how == "cut" and copy.life == self.life and not copy.promised_at)
            if copy.transaction and self._transactions.get(copy.transaction) == "commit":
                continue  # uncertain
            if copy.held or copy.transaction:
                copy.verdict, copy.transaction = "left", 0
        self._rewinds.ended()
        if how != "stop":
            self._crashes.append(event.at)
        self.totals[f"ends, {how}"] += 1
        self.life += 1

    def _over(self, event: Event) -> None:
        """Until this time the broker may have released due messages."""
        if event.more != "stop":
            self._crashes[-1] = max(self._crashes[-1], event.at)

    def _count_settlements(self, how: str, ended_at: float, margin_s: float) -> float:
        """Mark the settlements that the broker had time to write.

        Return when the last answered request was sent.
        """
        last_asked_at = 0.0
        for consumer in self._consumers.values():
            heard = consumer.heard
            last_asked = max((asked for asked, answered in heard if answered <= ended_at), default=0.0)
            last_asked_at = max(last_asked_at, last_asked)
            for at, copy, number in consumer.unread:
                if copy.given != number or copy.verdict not in ("ack", "reject", "requeue"):
                    continue
                if copy.verdict != "reject" and how == "stop":
                    counts = any(at <= asked for asked, _ in heard)
                else:
                    age_s = LETTER_AGE_S + margin_s if copy.verdict == "reject" else AGE_S + margin_s * (how == "cut")
                    counts = any(at <= asked and answered + age_s <= last_asked for asked, answered in heard)
                if copy.verdict == "requeue":
                    copy.returned = counts
                    copy.until *= counts
                elif counts:
                    copy.gone, copy.gone_at = copy.verdict, ended_at
                if counts:
                    self.totals[f"settled for certain, {copy.verdict}"] += 1
        return last_asked_at

    def _unanswered(self) -> list[Copy]:
        """Return the unanswered publishes of this life on confirm channels."""
        return [
            copy
            for copies in self._queues.values()
            for copy in copies
            if copy.life == self.life and copy.sent.how == "confirm" and not copy.promised_at
        ]

    def account(self) -> None:
        """Account for each copy, after the drain and the stop; then start the next epoch."""
        for copy in self.copies.values():
            if copy.source is None:
                self._account_source(copy)
            else:
                self._account_letter(copy)
        for (number, queue), members in self._members.items():
            self._account_transaction(number, queue, members)
        self._rewinds.account()
        self.totals["copies accounted for"] += len(self.copies)
        self._begin()

    def _account_source(self, copy: Copy) -> None:
        if copy.letter is not None or copy.perhaps or copy.verdict == "ack" or copy.gone not in ("", "reject"):
            return
        if (not copy.promised_at and not copy.gone) or (copy.spared and not copy.times):
            return
        if copy.verdict == "reject":
            self.violate(f"{copy} was rejected and never came as a letter", copy.message)
        elif copy.times:
            self.violate(
                f"{copy} is lost: given {copy.times} times, last in life {copy.given_in} ({copy.verdict})", copy.message
            )
        else:
            self.violate(
                f"{copy} is lost: promised ({copy.sent.how}) in life {copy.life}, and never seen", copy.message
            )

    def _account_letter(self, copy: Copy) -> None:
        source = copy.source
        assert source is not None
        if copy.verdict != "ack" and source.promised_at and not source.given_at > copy.given_at:
            self.violate(
                f"{copy} is lost: a letter, given last in life {copy.given_in} ({copy.verdict or 'held'})", copy.message
            )

    def _account_transaction(self, number: int, queue: str, members: list[Copy]) -> None:
        """For an unanswered commit: of the messages not settled in its life, all must have come later, or none."""
        if self._transactions.get(number) != "commit":
            return
        open_ones = [copy for copy in members if not (copy.verdict == "ack" and copy.given_in == copy.life)]
        later = [copy for copy in open_ones if copy.given_in > copy.life]
        if later and len(later) != len(open_ones):
            self.violate(f"{queue}: {len(later)} of {len(open_ones)} messages of transaction {number}")


def _counts_again(copy: Copy) -> bool:
    """Return whether another return is counted; otherwise the message is dead-lettered, or comes with its old count."""
    return copy.returns < DELIVERY_LIMITS[copy.queue]
