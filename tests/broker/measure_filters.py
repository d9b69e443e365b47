"""Measure the cost of filters on a work queue: `python tests/broker/measure_filters.py [MESSAGES]`.

It uses the amqpd that is importable. It is not a test: the figures depend on the machine.

The backlog is in the log of a durable queue, in the page cache, with bodies of 100 bytes and five headers. The last
message is the one that matches. Figures are processor time; `turn` is the longest turn during the search. The garbage
collector is off: in a broker it runs rarely and finds little.
"""

from __future__ import annotations

import gc
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from conftest import Room
from taker import Taker, take

from amqpd.broker.message import MessageRoute, make_message
from amqpd.broker.queue.queue import Queue
from amqpd.protocol.properties import Properties, encode_properties, scan_properties
from amqpd.routing.selector import parse_selector
from amqpd.storage.filesystem import Clock

BODY = b"." * 100


class RealRoom(Room):
    """A room with the machine's clocks."""

    def __init__(self, data_dir: Path) -> None:
        super().__init__(data_dir)
        self.storage.close(clean=False)
        self.clock = Clock()  # type: ignore[assignment]
        self.open()


def report(label: str, figure_us: float, suffix: str = "") -> None:
    sys.stdout.write(f"{label:<66}{figure_us:8.3f} us{suffix}\n")


def offer(room: Room, queue: Queue, properties: bytes) -> None:
    message = make_message(
        MessageRoute("", "q"), properties, BODY, True, scan_properties(properties, 0, len(properties))
    )
    queue.enqueue(message)


def headers_of(number: int, last: int) -> dict[str, object]:
    colour = "red" if number == last else "blue"
    return {"colour": colour, "n": number, "site": "zurich", "kind": "order", "weight": 2.5}


def backlog(label: str, count: int, selector: str, properties_of: Callable[[int], Properties], window: int) -> None:
    with tempfile.TemporaryDirectory(prefix="measure-filters-") as folder:
        room = RealRoom(Path(folder))
        queue = room.queue("q")
        queue.order.memory.count_max = window
        for number in range(count):
            offer(room, queue, encode_properties(properties_of(number)))
            if number % 1000 == 0:
                room.turn.schedule()
                room.turns()
        room.turns()
        parse_selector(selector)  # the first call builds the parser
        began_s = time.process_time()
        consumer: Taker = take(room, queue, selector, turn=False)
        longest_s = time.process_time() - began_s
        while not consumer.got:
            turn_s = time.process_time()
            room.turn.run()
            longest_s = max(longest_s, time.process_time() - turn_s)
        total_s = time.process_time() - began_s
        assert len(consumer.got) == 1
        report(label, total_s / count * 1e6, f"   turn {longest_s * 1000:.1f} ms, {total_s:.2f} s")
        room.storage.close(clean=False)


def flow(label: str, count: int, filters: int) -> None:
    """Publish and deliver transient messages without acks: the cost per message with this number of filters."""
    with tempfile.TemporaryDirectory(prefix="measure-filters-") as folder:
        room = RealRoom(Path(folder))
        queue = room.queue("q", durable=False)
        consumers = [take(room, queue, f"colour = 'c{number}'", no_ack=True) for number in range(filters)]
        if not filters:
            consumers = [take(room, queue, no_ack=True)]
        names = [f"c{number % max(filters, 1)}" for number in range(count)]
        encoded = [encode_properties(Properties(headers={"colour": name, "n": 5})) for name in names[:64]]
        messages = [
            make_message(MessageRoute("", "q"), each, BODY, False, scan_properties(each, 0, len(each)))
            for each in encoded
        ]
        began_s = time.process_time()
        for number in range(count):
            queue.enqueue(messages[number % 64])
            if number % 64 == 63:
                room.turn.run()
        room.turns()
        report(label, (time.process_time() - began_s) / count * 1e6)
        assert sum(len(each.got) for each in consumers) == count
        room.storage.close(clean=False)


def main() -> None:
    gc.disable()
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    last = count - 1
    red = "colour = 'red'"
    backlog("log, each message's headers its own", count, red, lambda n: Properties(headers=headers_of(n, last)), 4096)
    backlog(
        "log, headers alike",
        count,
        red,
        lambda n: Properties(headers={**headers_of(n, last), "n": 0}),
        4096,
    )
    backlog(
        "log, a property, no header",
        count,
        "p.type = 'red'",
        lambda n: Properties(type="red" if n == last else "blue", headers=headers_of(n, -1)),
        4096,
    )
    ten = "colour = 'red' AND n > 1 AND n < 1e9 AND " + " AND ".join(f"site <> 's{n}'" for n in range(7))
    backlog("log, ten terms", count, ten, lambda n: Properties(headers=headers_of(n, last)), 4096)
    backlog(
        "memory, each message's headers its own",
        min(count, 30_000),
        red,
        lambda n: Properties(headers=headers_of(n, min(count, 30_000) - 1)),
        1 << 20,
    )
    flow("publish and deliver, no filter", count, 0)
    flow("publish and deliver, one filter, all match", count, 1)
    flow("publish and deliver, eight filters, one matches", count, 8)


if __name__ == "__main__":
    main()
