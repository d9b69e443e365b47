"""The load on features that RabbitMQ lacks or added recently: `retry`, `numbered`, `moved`, `redriven`, `later`,
`kept`, groups.

- `retry`: a queue with delayed retries.
- `numbered`: a producer with sequence numbers. It loses its connection, publishes again what was not confirmed and some
  more, and is replaced by a producer of the next epoch.
- `moved`, `redriven`: an operator moves from `moved` to `moved.to`, redrives from `redriven`, whose messages have an
  x-death of `revived`, and stops some of the jobs.
- `later`: published to two delaying exchanges; some messages are cancelled.
- `kept`: retains acked messages, and an operator rewinds batches of them.

All of them run as clients of `history_load.Crowd`.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Awaitable, Container
from typing import Any, Final, Protocol, cast

import pamqp.encode
from groups_story import ARGUMENTS as GROUPED
from history import History, Numbered, Sent
from quickclient import Gone, Link, content, method, publish_prefix, shortstr
from streams_load import Ask

from amqpd.testing import BrokerFailed

UNCONFIRMED_MAX: Final = 30
PATIENCE_S: Final = 300.0
PRODUCER: Final = 4711
AGAIN_MAX: Final = 8
"""The number of confirmed messages that are published again with the unconfirmed ones."""
DELAYS_MS: Final = (0, 15, 40, 120, 300, 300, 700, 700, 1500, 1500, 3000, 9000)
FAR_MS: Final = 3_600_000
"""A delay of `later` that is always cancelled; a remaining delay above FAR_MS / 2 is one of these."""
DELAYED: Final = {"delays": ("x-delayed-message", {"x-delayed-type": "topic"}), "times": ("topic", {"x-delayed": True})}
"""Exchanges to which `later` is published, with x-delay and with x-deliver-at."""
DEATH: Final = pamqp.encode.field_table(
    {
        "x-death": [
            {"queue": "revived", "exchange": "", "routing-keys": ["revived"], "reason": "rejected", "count": 1}
        ],
        "x-first-death-queue": "revived",
        "x-first-death-exchange": "",
        "x-first-death-reason": "rejected",
    }
)


class Crowd(Protocol):
    """The part of `history_load.Crowd` that this load needs."""

    ended: bool
    ahead: dict[str, int]
    without: frozenset[str]

    async def connect(self) -> Link: ...

    async def work(self, queue: str, verdicts: tuple[str, ...], window: int) -> None: ...

    async def confirms(self, link: Link, queue: str) -> deque[tuple[int, int]]: ...

    def waits_for_readers(self, queue: str) -> bool: ...


async def prepare_features(link: Link, without: Container[str] = ()) -> None:
    """Declare what exists besides the queues of `history.QUEUES`. without: lanes to leave out."""
    await link.declare_queue("grouped", table=GROUPED)
    for exchange, (kind, arguments) in DELAYED.items() if "later" not in without else ():
        table = pamqp.encode.field_table(arguments)
        await link.ask(method(0x0028000A, b"\0\0" + shortstr(exchange) + shortstr(kind) + b"\2" + table), 0x0028000B)
        await link.bind("due", exchange, "later.#")


async def delayed(ask: Ask) -> list[dict[str, Any]]:
    return cast("list[dict[str, Any]]", await ask("GET", "/api/delayed/%2F?limit=10000", None))


async def settled(ask: Ask) -> bool:
    """Return whether no message is delayed, waits for a retry, or is in the queue with groups."""
    queues = cast("list[dict[str, Any]]", await ask("GET", "/api/queues/%2F", None))
    waiting = sum(each["messages"] for each in queues if each["name"] in ("retry", "grouped"))
    return not waiting and not await delayed(ask)


class FeatureLoad:
    """The clients of one life. Each coroutine ends with the crowd, or raises the error of its connection."""

    def __init__(self, crowd: Crowd, ask: Ask, history: History, seed: int) -> None:
        self._crowd = crowd
        self._ask = ask
        self._history = history
        self._seed = seed * 100

    def clients(self) -> tuple[Awaitable[None], ...]:
        crowd, groups = self._crowd, self._history.groups
        later, kept, numbered = (lane not in crowd.without for lane in ("later", "kept", "numbered"))
        publishers = [queue for queue in ("retry", "moved", "redriven", "later", "kept") if queue not in crowd.without]
        return (
            *(self._publish(queue, self._lot()) for queue in publishers),
            crowd.work("retry", ("ack", "ack", "requeue", "requeue", "reject"), 15),
            crowd.work("moved", ("ack", "requeue"), 3),
            crowd.work("moved.to", ("ack", "ack", "requeue"), 20),
            crowd.work("revived", ("ack", "ack", "requeue"), 20),
            *((crowd.work("due", ("ack", "ack", "requeue"), 20), self._cancel(self._lot())) if later else ()),
            *((crowd.work("kept", ("ack", "ack", "ack", "requeue"), 20), self._rewind(self._lot())) if kept else ()),
            *((crowd.work("numbered", ("ack", "ack", "requeue"), 20),) if numbered else ()),
            *((self._publish_numbered(self._lot()),) if numbered else ()),
            self._operate(self._lot()),
            *(groups.publish(crowd.connect, publisher, 0.05) for publisher in (0, 1)),
            *(groups.consume(crowd.connect, self._has_ended) for _ in range(4)),
        )

    def drain(self) -> tuple[Awaitable[None], ...]:
        groups = self._history.groups
        consumers = (groups.consume(self._crowd.connect, self._has_ended) for _ in range(2))
        return (*consumers, *((self._cancel_far(self._lot()),) if "later" not in self._crowd.without else ()))

    def _lot(self) -> random.Random:
        self._seed += 1
        return random.Random(self._seed)

    def _has_ended(self) -> bool:
        return self._crowd.ended

    # -- publishers

    async def _publish(self, queue: str, rng: random.Random) -> None:
        """Publish with confirms, with the properties of this lane."""
        history, crowd, batches = self._history, self._crowd, self._history.batches
        link = await crowd.connect()
        window = await crowd.confirms(link, queue)
        tag = 0
        while not crowd.ended:
            if queue == "kept":
                batches.number += 1
                batches.begun[batches.number] = time.time()
            for _ in range(rng.choice((1, 2, 4, 10))):
                exchange, sent, table = "", Sent("confirm", batch=batches.number), b""
                if queue == "later":
                    exchange, sent, table = _delay(rng)
                elif queue == "redriven":
                    table = DEATH
                elif queue == "kept":
                    table = pamqp.encode.field_table({"batch": batches.number})
                message, properties, body = history.publish(queue, sent, table)
                tag += 1
                crowd.ahead[queue] += 1
                window.append((tag, message))
                key = f"later.{message}" if exchange else queue
                link.write(publish_prefix(exchange, key) + content(properties, body))
            await link.writable()
            await asyncio.sleep(rng.uniform(0.02, 0.08))
            while not crowd.ended and (len(window) > UNCONFIRMED_MAX or crowd.waits_for_readers(queue)):
                await link.writable()
                await asyncio.sleep(0.01)

    async def _publish_numbered(self, rng: random.Random) -> None:
        """Use one connection after the other; each first repeats the unconfirmed messages and some confirmed ones."""
        history, crowd = self._history, self._crowd
        producer = history.producer
        while not crowd.ended:
            link = await crowd.connect()
            written: list[int] = []

            def confirmed(tag: int, multiple: bool, acked: bool, written: list[int] = written) -> None:
                for message in written[:tag] if multiple else written[tag - 1 : tag]:
                    if message in producer.unconfirmed:
                        producer.unconfirmed.discard(message)
                        history.answered("numbered", message, acked)

            link.on_confirm = confirmed
            await link.confirm_select()
            self._publish_again(link, written, rng)
            for _ in range(rng.randrange(1, 25)):
                for _ in range(rng.choice((1, 2, 4, 20))):
                    self._publish_next(link, written)
                await link.writable()
                await asyncio.sleep(rng.uniform(0.01, 0.05))
                while not crowd.ended and (len(producer.unconfirmed) > 60 or crowd.waits_for_readers("numbered")):
                    await link.writable()
                    await asyncio.sleep(0.01)
                if crowd.ended:
                    return
            if rng.random() < 0.4:
                while producer.unconfirmed:
                    await link.writable()
                    await asyncio.sleep(0.01)
                await self._replace()
            link.close()

    def _publish_next(self, link: Link, written: list[int]) -> None:
        history, producer = self._history, self._history.producer
        table = _numbers(producer.epoch, producer.sequence)
        each = Numbered(*history.publish("numbered", Sent("confirm"), table))
        producer.sequence += 1
        producer.sent.append(each)
        producer.unconfirmed.add(each.message)
        del producer.sent[: max(0, producer.confirmed() - AGAIN_MAX)]
        self._crowd.ahead["numbered"] += 1
        written.append(each.message)
        link.write(publish_prefix("", "numbered") + content(each.properties, each.body))

    def _publish_again(self, link: Link, written: list[int], rng: random.Random) -> None:
        producer = self._history.producer
        for each in producer.sent[max(0, producer.confirmed() - rng.randrange(AGAIN_MAX)) :]:
            self._history.note("publish-again", "numbered", each.message)
            written.append(each.message)
            link.write(publish_prefix("", "numbered") + content(each.properties, each.body))

    async def _replace(self) -> None:
        """Start a producer of the next epoch when all is confirmed; then publish with the old epoch, which must be
        refused.
        """
        history, producer = self._history, self._history.producer
        producer.epoch += 1
        producer.sequence = 0
        producer.sent.clear()
        link = await self._crowd.connect()
        await link.confirm_select()
        written: list[int] = []
        self._publish_next(link, written)
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def confirmed(tag: int, multiple: bool, acked: bool) -> None:
            producer.unconfirmed.discard(written[0])
            history.answered("numbered", written[0], acked)
            answer.set_result(None)

        link.on_confirm = confirmed
        while not answer.done():
            await link.writable()
            await asyncio.sleep(0.01)
        message, properties, body = history.publish("numbered", Sent("old"), _numbers(producer.epoch - 1, 1 << 30))
        link.write(publish_prefix("", "numbered") + content(properties, body))
        try:
            await link.qos(1, PATIENCE_S)
            history.violations.append(f"numbered: {message} of a replaced producer was taken")
        except Gone:
            if link.close_code == 403:
                history.note("refused", "numbered", message)
            elif link.close_code or not self._crowd.ended:
                raise

    # -- operators

    async def _operate(self, rng: random.Random) -> None:
        """Run moves and redrives."""
        while not self._crowd.ended:
            lane = rng.choice(("moved", "redriven"))
            job: dict[str, object] = {"action": "redrive"}
            if lane == "moved":
                job = {"action": "move", "to_queue": "moved.to"}
            if rng.random() < 0.5:
                job["limit"] = rng.randint(1, 40)
            if rng.random() < 0.3:
                job["where"] = f"p.message-id LIKE '%{rng.randrange(10)}'"
            job["wait_ms"] = rng.choice((0, 0, 2000))
            item = cast("dict[str, Any]", await self._ask("POST", f"/api/queues/%2F/{lane}/jobs", job))
            if item["ended"] is None and rng.random() < 0.5:
                item = cast("dict[str, Any]", await self._ask("DELETE", f"/api/amqpd/jobs/{item['id']}", None))
            if item["state"] == "failed" or item["left"]:
                self._history.violations.append(f"{lane}: a job {item['state']}: {item['reason']} {item['left']}")
            if item["done"]:
                self._history.seen.add(f"{lane}, by a job")
            await asyncio.sleep(rng.uniform(0.0, 0.15))

    async def _cancel(self, rng: random.Random) -> None:
        """Cancel half of the messages that are due in an hour, and 2 % of the others."""
        while not self._crowd.ended:
            now_ms = time.time() * 1000
            for item in await delayed(self._ask):
                far = item["due"] > now_ms + FAR_MS / 2
                if rng.random() < (0.5 if far else 0.02) and item["due"] > now_ms + 500:
                    await self._cancel_one(item)
            await asyncio.sleep(rng.uniform(0.05, 0.5))

    async def _cancel_far(self, rng: random.Random) -> None:
        """Cancel all messages with a far due time."""
        while not self._crowd.ended:
            for item in await delayed(self._ask):
                if item["due"] > time.time() * 1000 + FAR_MS / 2:
                    await self._cancel_one(item)
            await asyncio.sleep(0.3)

    async def _cancel_one(self, item: dict[str, Any]) -> None:
        history = self._history
        message = int(item["routing_keys"][0].partition(".")[2])
        number = history.next_number()
        history.note("cancel", "later", message, number)
        try:
            await self._ask("DELETE", f"/api/delayed/%2F/{item['id']}", None)
        except BrokerFailed as error:
            if "-> 404" not in str(error):
                raise
            history.note("uncancelled", "later", message, number)
        else:
            history.note("cancelled", "later", message, number)

    async def _rewind(self, rng: random.Random) -> None:
        """Rewind batches of `kept`, except those whose state a kill left uncertain."""
        history, batches = self._history, self._history.batches
        while not self._crowd.ended:
            await asyncio.sleep(rng.uniform(0.05, 0.5))
            complete = list(batches.begun)[-60:-1]
            if not complete:
                continue
            first = rng.choice(complete)
            last = min(first + rng.randrange(4), complete[-1])
            if any(first <= end and last >= begin for begin, end in batches.uncertain):
                continue
            number = history.next_number()
            job: dict[str, object] = {"action": "rewind", "wait_ms": 30_000}
            job["where"] = f"batch BETWEEN {first} AND {last}"
            if rng.random() < 0.3:
                job["offset"] = 0
            else:
                job["time"] = int(batches.begun[first] * 1000) - 1000
            batches.uncertain.append((first, last))
            history.note("rewind", "kept", more=(number, first, last))
            item = cast("dict[str, Any]", await self._ask("POST", "/api/queues/%2F/kept/jobs", job))
            left = {why: count for why, count in item["left"].items() if why != "gone" or "time" in job}
            if item["state"] != "done" or left:
                history.violations.append(f"kept: a rewind is {item['state']}: {item['reason']} {left}")
                return
            history.note("rewound", "kept", more=(number, item["done"]))
            batches.uncertain.remove((first, last))


def _delay(rng: random.Random) -> tuple[str, Sent, bytes]:
    """Return (exchange, Sent, headers) of a message that is due by x-delay or x-deliver-at."""
    delay_ms = FAR_MS if rng.random() < 0.05 else rng.choice(DELAYS_MS)
    due = time.monotonic() + delay_ms / 1000
    if rng.random() < 0.5:
        return "delays", Sent("confirm", due=due), pamqp.encode.field_table({"x-delay": delay_ms})
    at_ms = int(time.time() * 1000) + delay_ms
    due -= 0.001  # the broker rounds down to milliseconds
    return "times", Sent("confirm", due=due), pamqp.encode.field_table({"x-deliver-at": at_ms})


def _numbers(epoch: int, sequence: int) -> bytes:
    return pamqp.encode.field_table({"x-producer-id": PRODUCER, "x-producer-epoch": epoch, "x-sequence": sequence})
