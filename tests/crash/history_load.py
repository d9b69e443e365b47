"""The load whose history is judged: publishers, consumers, transactions, purges, deletions, in one event loop.

`Crowd` is all clients of one life of the broker. Each lane of `history.LANES` has a publisher (confirms, priorities,
plain, transactions) and a consumer:

- `work` acks, rejects and requeues; `rank` has five priorities.
- `aged` is read too slowly for its time to live, `full` for its length limit.
- `ruled` has no arguments, and a policy that changes all the time.
- `limit` requeues up to the delivery limit.
- `tx.a` is read and written in transactions.
- `purge` is read with basic.get, held, requeued and purged; `again` is deleted and declared again.

`streams_load.py` has the clients of the stream, `features_load.py` those of retries, moves, delays, rewinds, producer
numbers and groups.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
import time
from collections import deque
from collections.abc import Awaitable, Container
from typing import Any, Final

import pamqp.encode
from features_load import FeatureLoad, prepare_features, settled
from history import (
    DELIVERY_LIMITS,
    LANES,
    LENGTH_MAX,
    LETTERS,
    PASSES,
    QUEUES,
    RETRY_MAX_MS,
    RETRY_MIN_MS,
    TTL_S,
    Held,
    History,
    Sent,
)
from quickclient import Gone, Link, connect, content, method, publish_prefix, shortstr
from streams_load import Ask, StreamLoad

ARGUMENTS: Final[dict[str, dict[str, Any]]] = {
    "rank": {"x-max-priority": 5},
    "aged": {"x-message-ttl": int(TTL_S * 1000)},
    "full": {"x-max-length": LENGTH_MAX},
    "limit": {"x-queue-type": "quorum", "x-delivery-limit": DELIVERY_LIMITS["limit"]},
    "retry": {
        "x-queue-type": "quorum",
        "x-delivery-limit": DELIVERY_LIMITS["retry"],
        "x-delayed-retry-type": "all",
        "x-delayed-retry-min": RETRY_MIN_MS,
        "x-delayed-retry-max": RETRY_MAX_MS,
    },
    "kept": {"x-retain": 40_000_000},  # far more than is published from one drain to the next
}
HOMES: Final = {queue: lane for lane, queue in PASSES.items()}
VERDICTS: Final = {
    "work": ("ack", "ack", "ack", "reject", "requeue"),
    "rank": ("ack", "ack", "requeue"),
    "aged": ("ack", "ack", "reject", "requeue"),
    "full": ("ack", "reject", "requeue"),
    "limit": ("ack", "requeue", "requeue", "reject"),
    "ruled": ("ack", "ack", "reject", "requeue"),
}
PREFETCH: Final = {"work": 20, "rank": 10, "aged": 2, "full": 2, "limit": 10, "ruled": 4}
SLOW: Final = {"aged", "full", "ruled"}
LETTERS_GO: Final = {"dead-letter-exchange": "", "dead-letter-routing-key": LETTERS["ruled"]}
POLICIES: Final[tuple[dict[str, Any], ...]] = (
    LETTERS_GO,
    LETTERS_GO | {"max-length": LENGTH_MAX},
    LETTERS_GO | {"max-length": 3},
    LETTERS_GO | {"message-ttl": int(TTL_S * 1000)},
    LETTERS_GO | {"message-ttl": 0, "max-length-bytes": 50_000},
)
"""The policies of `ruled`; all of them set its dead-letter target."""

UNCONFIRMED_MAX: Final = 60
BACKLOG_MAX: Final = 300
"""The greatest number of undelivered messages of a lane; more would only lengthen the drain."""
PATIENCE_S: Final = 300.0


def settlement(tag: int, verdict: str) -> bytes:
    if verdict == "ack":
        return method(0x003C0050, struct.pack(">QB", tag, 0))
    if verdict == "requeue" and tag % 2:
        return method(0x003C0078, struct.pack(">QB", tag, 2))  # basic.nack
    return method(0x003C005A, struct.pack(">QB", tag, verdict == "requeue"))


async def rule(ask: Ask, definition: dict[str, Any]) -> None:
    """Set the policy of `ruled`."""
    await ask("PUT", "/api/policies/%2F/ruled", {"pattern": "^ruled$", "definition": definition})


async def prepare(port: int, ask: Ask, host: str = "127.0.0.1", without: Container[str] = ()) -> None:
    """Declare all queues and the policy of `ruled`; they exist already after the first start. without: lanes to
    leave out.
    """
    await rule(ask, LETTERS_GO)
    link = await connect(port, host=host, patience_s=PATIENCE_S)
    try:
        for queue in queues(without):
            arguments = dict(ARGUMENTS.get(queue, {}))
            if queue in LETTERS and queue != "ruled":
                arguments |= {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": LETTERS[queue]}
            await link.declare_queue(queue, table=pamqp.encode.field_table(arguments))
        await prepare_features(link, without)
    finally:
        link.close()
    await link.gone.wait()


def queues(without: Container[str] = ()) -> list[str]:
    """Return the queues of all lanes except those in `without`."""
    return [queue for queue in QUEUES if queue not in without and HOMES.get(queue) not in without]


class Crowd:
    """All clients of one life of the broker.

    ask: the HTTP API. draining: no client publishes, all messages are acked, and the stream is left alone. without:
    lanes without clients.
    """

    without: frozenset[str] = frozenset()

    def __init__(self, port: int, ask: Ask, history: History, seed: int, *, draining: bool = False) -> None:
        self.port = port
        self._ask = ask
        self.history = history
        self.ended = False
        self._draining = draining
        self._seed = seed
        self._links: list[Link] = []
        self._tasks: list[asyncio.Task[None]] = []
        self.ahead = dict.fromkeys(LANES, 0)
        self._unheard: dict[str, bool] = {}

    def start(self) -> None:
        features = FeatureLoad(self, self._ask, self.history, self._seed)
        if self._draining:
            for queue in queues(self.without):
                self._run(self.work(queue, ("ack",), 200))
            for client in features.drain():
                self._run(client)
            return
        for queue in LETTERS.values():
            self._run(self.work(queue, ("ack",), 50))
        for queue, verdicts in VERDICTS.items():
            self._run(self.work(queue, verdicts, PREFETCH[queue]))
            self._run(self._publish(queue))
        self._run(self.work("plain", ("ack",), 20))
        self._run(self._publish_plain())
        self._run(self.work("tx.b", ("ack",), 20))
        self._run(self._transactions())
        self._run(self._publish("purge"))
        self._run(self._purges())
        self._run(self._deletions())
        self._run(self._policies())
        for client in (*features.clients(), *self.stream_load(self._ask, self._seed).clients()):
            self._run(client)

    def stream_load(self, ask: Ask, seed: int) -> StreamLoad:
        return StreamLoad(self, ask, self.history.stream, seed)

    async def gone(self) -> None:
        """Wait, after the broker has ended, until all clients have ended."""
        self.ended = True
        for link in self._links:
            link.close()
        await asyncio.gather(*self._tasks)
        for link in self._links:
            await link.gone.wait()

    def failed(self) -> None:
        """Raise the error of a client that ended too early."""
        for task in self._tasks:
            if task.done():
                task.result()

    def silent(self) -> bool:
        """Return whether all deliveries are settled and the broker has read the settlements."""
        return not any(self._unheard.values())

    def _run(self, client: Awaitable[None]) -> None:
        async def until_gone() -> None:
            try:
                await client
            except (Gone, OSError):
                if not self.ended:
                    raise

        self._tasks.append(asyncio.create_task(until_gone()))
        self._seed += 1

    async def connect(self) -> Link:
        link = await connect(self.port, patience_s=PATIENCE_S)
        self._links.append(link)
        return link

    # -- publishers

    async def _publish(self, queue: str) -> None:
        """Publish with confirms, in bursts and single messages."""
        history, rng = self.history, random.Random(self._seed)
        link = await self.connect()
        window = await self.confirms(link, queue)
        prefix = publish_prefix("", queue)
        tag = 0
        while not self.ended:
            for _ in range(rng.choice((1, 1, 5, 20))):
                priority = rng.randrange(6) if queue == "rank" else 0
                message, properties, body = history.publish(queue, Sent("confirm", priority))
                tag += 1
                self.ahead[queue] += 1
                window.append((tag, message))
                link.write(prefix + content(properties, body))
            await link.writable()
            await asyncio.sleep(rng.uniform(0.002, 0.02))
            while not self.ended and (len(window) > UNCONFIRMED_MAX or self.waits_for_readers(queue)):
                await link.writable()
                await asyncio.sleep(0.005)

    async def confirms(self, link: Link, queue: str) -> deque[tuple[int, int]]:
        """Return the unconfirmed publishes of the connection: (publish sequence, message)."""
        history = self.history
        window: deque[tuple[int, int]] = deque()

        def confirmed(tag: int, multiple: bool, acked: bool) -> None:
            matching = [each for each in window if each[0] == tag or (multiple and each[0] < tag)]
            if not matching:
                history.violations.append(f"{queue}: a confirm of {tag}, which was not waiting")
            for each in matching:
                window.remove(each)
                history.answered(queue, each[1], acked)

        link.on_confirm = confirmed
        await link.confirm_select()
        return window

    def waits_for_readers(self, queue: str) -> bool:
        return queue not in SLOW and queue != "purge" and self.ahead[queue] > BACKLOG_MAX

    async def _publish_plain(self) -> None:
        history, rng = self.history, random.Random(self._seed)
        link = await self.connect()
        prefix = publish_prefix("", "plain")
        while not self.ended:
            sent = []
            for _ in range(rng.randrange(1, 20)):
                message, properties, body = history.publish("plain", Sent("plain"))
                self.ahead["plain"] += 1
                sent.append(message)
                link.write(prefix + content(properties, body))
            await link.qos(1, PATIENCE_S)
            for message in sent:
                history.note("heard-publish", "plain", message)
            await asyncio.sleep(rng.uniform(0.005, 0.03))
            while self.waits_for_readers("plain") and not self.ended:
                await link.writable()
                await asyncio.sleep(0.005)

    # -- consumers

    async def work(self, queue: str, verdicts: tuple[str, ...], window: int) -> None:
        """Settle deliveries after a while, in any order; sometimes send a request to learn that settlements were
        read.
        """
        history, rng = self.history, random.Random(self._seed)
        link = await self.connect()
        held: list[Held] = []
        unheard = 0

        def delivered(message: Any) -> None:
            held.append(history.deliver(queue, queue, message))
            self._unheard[queue] = True
            lane = HOMES.get(queue, queue)
            if lane in LANES and not message.redelivered:
                self.ahead[lane] -= 1

        link.on_deliver = delivered
        await link.qos(window)
        await link.consume(queue)
        while not link.gone.is_set():
            kept, out = [], []
            for each in held:
                if not self._draining and rng.random() < 0.3:
                    kept.append(each)
                    continue
                verdict = rng.choice(verdicts)
                history.settle(each, verdict)
                out.append(settlement(each.tag, verdict))
                unheard += 1
            held[:] = kept
            link.write(b"".join(out))
            if rng.random() < 0.3 or self._draining:
                asked_at, asked = time.monotonic(), unheard
                await link.qos(window, PATIENCE_S)
                history.note("heard", queue, more=(queue, asked_at))
                unheard -= asked
                self._unheard[queue] = bool(unheard or held)
            await asyncio.sleep(rng.uniform(0.03, 0.08) if queue in SLOW else rng.uniform(0.002, 0.03))
        raise Gone(link.why)

    # -- transactions, purges, deletions

    async def _transactions(self) -> None:
        """Get and ack from tx.a, publish to tx.a and tx.b; roll back a fifth."""
        history, rng = self.history, random.Random(self._seed)
        link = await self.connect()
        await link.tx_select()
        held: list[Held] = []
        while not self.ended:
            number = history.next_number()
            for _ in range(rng.randrange(8)):
                message = await link.get("tx.a")
                if message is not None:
                    held.append(history.deliver("tx.a", "tx", message))
            settled = [each for each in held if rng.random() < 0.6]
            for each in settled:
                history.settle(each, "ack", number)
                link.write(settlement(each.tag, "ack"))
            for queue in ("tx.a", "tx.b"):
                for _ in range(rng.choice((0, 1, 2, 5)) if queue == "tx.a" else rng.choice((1, 2, 10, 70))):
                    _, properties, body = history.publish(queue, Sent("tx", transaction=number))
                    link.write(publish_prefix("", queue) + content(properties, body))
            if rng.random() < 0.2:
                history.note("rollback", more=number)
                await link.ask(method(0x005A001E), 0x005A001F, timeout_s=PATIENCE_S)
                history.note("rolled back", more=number)
            else:
                history.note("commit", more=number)
                await link.ask(method(0x005A0014), 0x005A0015, timeout_s=PATIENCE_S)
                history.note("committed", more=number)
                held = [each for each in held if each not in settled]
            await asyncio.sleep(rng.uniform(0.0, 0.05))

    async def _purges(self) -> None:
        history, rng = self.history, random.Random(self._seed)
        link = await self.connect()
        held: list[Held] = []
        while not self.ended:
            await self._get_some(link, "purge", held, rng)
            if rng.random() < 0.5:
                number = history.next_number()
                history.note("purge", "purge", more=number)
                await link.ask(
                    method(0x0032001E, b"\x00\x00" + shortstr("purge") + b"\x00"), 0x0032001F, timeout_s=PATIENCE_S
                )
                history.note("purged", "purge", more=number)
            await asyncio.sleep(rng.uniform(0.0, 0.1))

    async def _deletions(self) -> None:
        """Declare, publish, get and delete in turn. A message found after a kill belongs to the current queue."""
        history, rng = self.history, random.Random(self._seed)
        link = await self.connect()
        window = await self.confirms(link, "again")
        tag = 0
        while not self.ended:
            await link.declare_queue("again")
            held: list[Held] = []
            for _ in range(rng.randrange(1, 5)):
                await self._get_some(link, "again", held, rng)
                for _ in range(rng.randrange(10)):
                    message, properties, body = history.publish("again", Sent("confirm"))
                    tag += 1
                    window.append((tag, message))
                    link.write(publish_prefix("", "again") + content(properties, body))
                await asyncio.sleep(rng.uniform(0.0, 0.1))
            number = history.next_number()
            history.note("delete", "again", more=number)
            await link.delete_queue("again")
            history.note("deleted", "again", more=number)

    async def _policies(self) -> None:
        rng = random.Random(self._seed)
        while not self.ended:
            await rule(self._ask, rng.choice(POLICIES))
            self.history.note("ruled")
            await asyncio.sleep(rng.uniform(0.0, 0.4))

    async def _get_some(self, link: Link, queue: str, held: list[Held], rng: random.Random) -> None:
        """Run a few basic.get, ack or requeue some held messages, and send a request behind them."""
        history = self.history
        for _ in range(rng.randrange(10)):
            message = await link.get(queue)
            if message is None:
                break
            held.append(history.deliver(queue, queue, message))
        for each in [each for each in held if rng.random() < 0.5]:
            verdict = rng.choice(("ack", "ack", "requeue"))
            held.remove(each)
            history.settle(each, verdict)
            link.write(settlement(each.tag, verdict))
        asked_at = time.monotonic()
        await link.qos(1, PATIENCE_S)
        history.note("heard", queue, more=(queue, asked_at))


async def drain(port: int, ask: Ask, history: History, *, timeout_s: float = 600.0) -> None:
    """Consume until all queues are empty, all messages are settled, and the broker has read that."""
    await prepare(port, ask)  # a queue may have been deleted
    crowd = Crowd(port, ask, history, 0, draining=True)
    crowd.start()
    watcher = await connect(port, patience_s=PATIENCE_S)
    deadline = time.monotonic() + timeout_s
    quiet = 0
    while quiet < 3:
        assert time.monotonic() < deadline, f"the drain takes longer than {timeout_s} s"
        before = history.given
        await asyncio.sleep(0.15)
        crowd.failed()
        ready_counts = [(await watcher.declare_queue(queue, passive=True))[1] for queue in QUEUES]
        done = not any(ready_counts) and crowd.silent() and not history.groups.left() and await settled(ask)
        quiet = quiet + 1 if done and history.given == before else 0
    history.drained()
    watcher.close()
    await watcher.gone.wait()
    with contextlib.suppress(Gone):
        await crowd.gone()
