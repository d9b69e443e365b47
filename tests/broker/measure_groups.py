"""Measure the cost of message groups: `python tests/broker/measure_groups.py [MESSAGES]`.

It uses the amqpd that is importable. It is not a test: the figures depend on the machine.

Durable queues, bodies of 100 bytes, 10,000 groups, and 50 consumers with a prefetch of 100 that ack in each turn. The
consumers are interpreted and cost the same with and without groups. Figures are processor time per message; `turn` is
the longest turn. The garbage collector is off: in a broker it runs rarely and finds little.
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


def messages_of(group_source: str) -> list[Message]:
    """Return one message of each group, shuffled. like: the group is the `key` or the `header`."""
    made = []
    for number in range(GROUPS):
        headers = {"customer": f"customer-{number}", "n": 5}
        encoded = encode_properties(Properties(headers=headers if group_source == "header" else None, delivery_mode=2))
        envelope = MessageRoute("", f"key-{number}" if group_source == "key" else "q")
        made.append(make_message(envelope, encoded, BODY, True, scan_properties(encoded, 0, len(encoded))))
    random.Random(1).shuffle(made)
    return made


def ack_all(consumers: list[Taker]) -> None:
    for consumer in consumers:
        consumer.ack_all()


def queue_of(room: RealRoom, group_by: str) -> Queue:
    return room.queue("q", **({"x-group-by": group_by} if group_by else {}))


def flow(count: int, group_by: str, group_source: str) -> None:
    """Publish, deliver and ack, turn by turn."""
    with tempfile.TemporaryDirectory(prefix="measure-groups-") as folder:
        room = RealRoom(Path(folder))
        queue = queue_of(room, group_by)
        messages = messages_of(group_source)
        consumers = [take(room, queue, credit=100) for _ in range(CONSUMERS)]
        began_s = time.process_time()
        for number in range(count):
            queue.enqueue(messages[number % GROUPS])
            if number % PER_TURN == PER_TURN - 1:
                room.turn.schedule()
                room.turns()
                ack_all(consumers)
        while queue.ready_count or queue.unacked_count:
            room.turns()
            ack_all(consumers)
        total_s = time.process_time() - began_s
        report(f"publish, deliver, ack; group by {group_by or 'nothing'} ({group_source})", total_s / count * 1e6)
        assert sum(len(each.got) for each in consumers) == count
        room.storage.close(clean=False)


def backlog(room: RealRoom, queue: Queue, messages: list[Message], count: int) -> None:
    for number in range(count):
        queue.enqueue(messages[number % len(messages)])
        if number % 1000 == 0:
            room.turn.schedule()
            room.turns()
    room.turns()


def drain(count: int, group_by: str, group_source: str) -> None:
    """Deliver and ack a backlog in the log, with all groups mixed."""
    with tempfile.TemporaryDirectory(prefix="measure-groups-") as folder:
        room = RealRoom(Path(folder))
        queue = queue_of(room, group_by)
        backlog(room, queue, messages_of(group_source), count)
        began_s = time.process_time()
        longest_s = 0.0
        consumers = [take(room, queue, credit=100, turn=False) for _ in range(CONSUMERS)]
        while queue.ready_count or queue.unacked_count:
            turn_s = time.process_time()
            room.turns()
            longest_s = max(longest_s, time.process_time() - turn_s)
            ack_all(consumers)
        total_s = time.process_time() - began_s
        report(
            f"deliver a backlog, ack; group by {group_by or 'nothing'} ({group_source})",
            total_s / count * 1e6,
            f"   turns {longest_s * 1000:.1f} ms",
        )
        room.storage.close(clean=False)


def behind_locked_group(count: int) -> None:
    """Find a message of another group behind `count` messages of a locked group, then deliver the locked group."""
    with tempfile.TemporaryDirectory(prefix="measure-groups-") as folder:
        room = RealRoom(Path(folder))
        queue = queue_of(room, "routing_key")
        messages = messages_of("key")
        one = take(room, queue, credit=1)
        queue.enqueue(messages[0])
        room.turns()
        one.leave()  # otherwise each message is looked at on arrival
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
        total_s = time.process_time() - began_s
        grown_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb) / 1024
        more = f"   turn {longest_s * 1000:.1f} ms, {grown_mb:.1f} MB"
        report("found behind a held group", total_s / count * 1e6, more)
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
    for group_by, group_source in (("", "key"), ("routing_key", "key"), ("", "header"), ("header:customer", "header")):
        flow(count, group_by, group_source)
        drain(count, group_by, group_source)
    behind_locked_group(5 * count)


if __name__ == "__main__":
    main()
