"""Prints what message groups cost: `python tests/broker/measure_groups.py [MESSAGES]`, with the amqpd that is
importable. No test: figures depend on the machine.

Durable queues, bodies of 100 bytes, 50 consumers (interpreted ones: they cost the same with and without groups) with a
prefetch of 100 that ack in each turn; 10,000 groups. Figures are processor time per message; `turn`: the most of it
that one turn took. The collector rests: a broker's comes seldom and finds little.
"""

from __future__ import annotations

import gc
import random
import resource
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from measure_filters import BODY, RealRoom, report
from taker import Taker, take

from amqpd.broker.message import Message, MessageRoute, make_message
from amqpd.broker.queue.queue import Queue
from amqpd.protocol.properties import Properties, encode_properties, scan_properties

GROUPS = 10_000
CONSUMERS = 50
PER_TURN = 500


def messages_of(like: str) -> list[Message]:
    """One of each group, in no order. like: what tells the group, `key` or `header`."""
    made = []
    for number in range(GROUPS):
        headers = {"customer": f"customer-{number}", "n": 5}
        encoded = encode_properties(Properties(headers=headers if like == "header" else None, delivery_mode=2))
        envelope = MessageRoute("", f"key-{number}" if like == "key" else "q")
        made.append(make_message(envelope, encoded, BODY, True, scan_properties(encoded, 0, len(encoded))))
    random.Random(1).shuffle(made)
    return made


def answer(takers: list[Taker]) -> None:
    for taker in takers:
        taker.ack_all()


def queue_of(room: RealRoom, by: str) -> Queue:
    return room.queue("q", **({"x-group-by": by} if by else {}))


def flow(count: int, by: str, like: str) -> None:
    """Publish, deliver, ack, turn by turn."""
    with tempfile.TemporaryDirectory(prefix="measure-groups-") as folder:
        room = RealRoom(Path(folder))
        queue = queue_of(room, by)
        messages = messages_of(like)
        takers = [take(room, queue, credit=100) for _ in range(CONSUMERS)]
        began_s = time.process_time()
        for number in range(count):
            queue.enqueue(messages[number % GROUPS])
            if number % PER_TURN == PER_TURN - 1:
                room.turn.schedule()
                room.turns()
                answer(takers)
        while queue.ready_count or queue.unacked_count:
            room.turns()
            answer(takers)
        took_s = time.process_time() - began_s
        report(f"publish, deliver, ack; group by {by or 'nothing'} ({like})", took_s / count * 1e6)
        assert sum(len(each.got) for each in takers) == count
        room.storage.close(clean=False)


def backlog(room: RealRoom, queue: Queue, messages: list[Message], count: int) -> None:
    for number in range(count):
        queue.enqueue(messages[number % len(messages)])
        if number % 1000 == 0:
            room.turn.schedule()
            room.turns()
    room.turns()


def drain(count: int, by: str, like: str) -> None:
    """A backlog in the log, of all groups mixed."""
    with tempfile.TemporaryDirectory(prefix="measure-groups-") as folder:
        room = RealRoom(Path(folder))
        queue = queue_of(room, by)
        backlog(room, queue, messages_of(like), count)
        began_s = time.process_time()
        longest_s = 0.0
        takers = [take(room, queue, credit=100, turn=False) for _ in range(CONSUMERS)]
        while queue.ready_count or queue.unacked_count:
            turn_s = time.process_time()
            room.turns()
            longest_s = max(longest_s, time.process_time() - turn_s)
            answer(takers)
        took_s = time.process_time() - began_s
        report(
            f"deliver a backlog, ack; group by {by or 'nothing'} ({like})",
            took_s / count * 1e6,
            f"   turns {longest_s * 1000:.1f} ms",
        )
        room.storage.close(clean=False)


def far(count: int) -> None:
    """One group is held; behind so many messages of it lies one of another. Then all of them, by one consumer."""
    with tempfile.TemporaryDirectory(prefix="measure-groups-") as folder:
        room = RealRoom(Path(folder))
        queue = queue_of(room, "routing_key")
        messages = messages_of("key")
        one = take(room, queue, credit=1)
        queue.enqueue(messages[0])
        room.turns()
        one.leave()  # else what comes is looked at when it comes
        backlog(room, queue, messages[:1], count)
        queue.enqueue(messages[1])
        room.turn.schedule()
        room.turns()
        one = take(room, queue, credit=1)
        before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began_s = time.process_time()
        two = take(room, queue, credit=1, turn=False)
        longest_s = time.process_time() - began_s
        while not two.got:
            turn_s = time.process_time()
            room.turn.run()
            longest_s = max(longest_s, time.process_time() - turn_s)
        took_s = time.process_time() - began_s
        grown_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb) / 1024
        more = f"   turn {longest_s * 1000:.1f} ms, {grown_mb:.1f} MB"
        report("found behind a held group", took_s / count * 1e6, more)
        began_s = time.process_time()
        two.leave(requeue=False)
        one.credit = 100
        while queue.ready_count:
            one.ack_all()
            queue.activate(one)
            room.turns()
        report("and that group, passed over, to its holder", (time.process_time() - began_s) / count * 1e6)
        room.storage.close(clean=False)


def main() -> None:
    gc.disable()
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200_000
    for by, like in (("", "key"), ("routing_key", "key"), ("", "header"), ("header:customer", "header")):
        flow(count, by, like)
        drain(count, by, like)
    far(5 * count)


if __name__ == "__main__":
    main()
