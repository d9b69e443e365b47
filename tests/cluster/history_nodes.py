"""The history of `tests/crash/history.py` over several nodes: its lanes, its judge, and the differences.

A life is one connection of all clients, through one node, to the vhost `/`. It ends when all are closed or when a story
ends it. The next life begins through any node when no connection and no unsent batch is left. The end counts as a power
cut: unconfirmed messages may be lost even if they were seen. An ack counts if it is older than AGE_S and than twice the
slowest confirm, because Kafka may have been away for that long.

Other differences from one node:

- A publish may be nacked; the message then may or may not arrive.
- Messages unconfirmed at the end of a life went through another node than later ones, and may arrive at any time.
- Each new owner repeats an unacked dead letter, so several copies may occur between two lives. All except the first are
  flagged: an owner that does not know its predecessor's deliveries flags all as redelivered.
- Nodes have their own clocks: timed messages may arrive early by their difference (`clock_s`).
"""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import Awaitable, Iterable
from typing import Any, Final

from history import Event, Given, History
from history_copies import Copy
from history_judge import Judge
from history_load import PATIENCE_S, Crowd
from quickclient import Gone, Link, connect
from streams_load import POLICIES, Ask, StreamLoad
from streams_story import KEPT_BYTES, Reader, StreamStory, body

WITHOUT: Final = frozenset(("later", "kept", "numbered"))
"""Lanes that a cluster does not support."""
HEARD_S: Final = 0.3
"""Time to receive deliveries on their way before clients disconnect."""
_LOGIN: Final = "Basic " + b64encode(b"guest:guest").decode()


class NodesJudge(Judge):
    """The judge of a cluster. clock_s: the largest difference of the nodes' clocks."""

    def __init__(self, clock_s: float = 0.0) -> None:
        super().__init__()
        self.clock_s += clock_s

    def _nacked(self, event: Event) -> None:
        """Record a nack: the message is not promised."""

    def _unmarked_max(self, copy: Copy) -> int:
        return copy.possible if copy.passed else 1

    def _may_be_late(self, copy: Copy, given: Given) -> bool:
        if copy.queue == "retry" and given.returns and copy.life < self.life:
            return True  # it was on its way to a lost client and has waited since
        return super()._may_be_late(copy, given) or (copy.life < self.life and not copy.promised_at)


class NodesStream(StreamStory):
    """The stream's account in a cluster. A nack is no promise, and each new owner writes a barrier, which has an offset
    but is no message.

    barriers: offsets below a stored offset that were neither acked nor seen; no message may appear there later. uncut:
    an owner cut below it and was replaced before Kafka knew; the next owner still has the messages and cuts again.
    moved: a client lost its connection, so the next owner may already serve. Offsets known only to the former owner are
    not stored there; reported offsets are.
    """

    def __init__(self) -> None:
        super().__init__()
        self.barriers: set[int] = set()
        self.uncut = -1
        self.moved = False
        self._replaced = False

    def found(self, messages: Iterable[tuple[int, int]], stored: dict[str, int], now: float | None = None) -> None:
        there = list(messages)
        kept = sum(len(body(number)) for offset, number in there if offset >= self.cut_to)
        if self._replaced and there[0][0] < self.cut_to and kept >= KEPT_BYTES:
            self.uncut, self.cut_to = max(self.uncut, self.cut_to), there[0][0]
        super().found(there, stored, now)

    def see(self, offset: int, number: int) -> None:
        super().see(offset, number)
        if offset in self.barriers:
            self.violate(f"offset {offset} shows {number}, and was passed over by what is stored for a reader")

    def _not_beyond(self, offset: int) -> None:
        last = offset
        while last > max(self.acked, 0) and last - 1 not in self.at:
            last -= 1
        if last <= self.acked < offset:
            self.barriers.update(range(last, offset))
            offset = last
        if offset > self.uncut:
            super()._not_beyond(offset)

    def _due(self, reader: Reader, offset: int) -> int:
        due = super()._due(reader, offset)
        return min(due, max(offset, self.told)) if self.moved else due

    def ended(self, how: str) -> None:
        super().ended(how)
        self.moved = False
        self._after_cut = True
        self._replaced = how == "cut"

    def nacked(self, number: int) -> None:
        pass


class StreamOfSetClocks(StreamLoad):
    """A stream load for changed clocks: it reads nothing by time, and nothing expires by time."""

    kinds = ("first", "last", "next", "offset")
    policies = tuple(each for each in POLICIES if "max-age" not in each)


class NodesCrowd(Crowd):
    """All clients of one life, through one node. broken: one of them lost its connection early."""

    without = WITHOUT

    def __init__(
        self, address: tuple[str, int], http: tuple[str, int], history: History, seed: int, *, draining: bool = False
    ) -> None:
        self._http = http
        super().__init__(address[1], self._asked, history, seed, draining=draining)
        self.host = address[0]
        self.broken = asyncio.Event()
        self.why = ""
        self.set_clocks = False

    def stream_load(self, ask: Ask, seed: int) -> StreamLoad:
        kind = StreamOfSetClocks if self.set_clocks else StreamLoad
        return kind(self, ask, self.history.stream, seed)

    async def connect(self) -> Link:
        link = await connect(self.port, host=self.host, patience_s=PATIENCE_S)
        self._links.append(link)
        return link

    async def gone(self) -> None:
        """Disconnect all clients. Raises: an error of a client other than a lost connection."""
        await asyncio.sleep(HEARD_S)
        self.ended = True
        for link in self._links:
            link.abort()
        await asyncio.wait(self._tasks, timeout=1.0)
        for task in self._tasks:
            task.cancel()
        ends = await asyncio.gather(*self._tasks, return_exceptions=True)
        for link in self._links:
            link.abort()
            await link.gone.wait()
            if link.close_code not in (0, 320):
                self.history.violations.append(f"a client was told {link.why}")
        for end in ends:
            if isinstance(end, Exception):
                raise end

    def _run(self, client: Awaitable[None]) -> None:
        async def until_gone() -> None:
            try:
                await client
            except (Gone, OSError) as error:
                if not self.ended:
                    self.why = self.why or repr(error)
                    self.broken.set()
                    self.history.stream.moved = True

        self._tasks.append(asyncio.create_task(until_gone()))
        self._seed += 1

    async def _asked(self, verb: str, path: str, value: object) -> object:
        """Send a job request. A refusal other than "not now" is a violation. Raises: OSError when the life ends."""
        while not self.ended and not self.broken.is_set():
            try:
                status, answer = await request(self._http, verb, path, value)
            except OSError:
                status, answer = 503, None
            if status < 400:
                return answer
            if status != 503 and not await self._breaks():
                self.history.violations.append(f"{verb} {path} -> {status} {answer}")
            await asyncio.sleep(0.2)
        raise OSError("the life has ended")

    async def _breaks(self) -> bool:
        """Return True if this was the end of the life: a node forgets a vhost's jobs before the connections end."""
        try:
            async with asyncio.timeout(10):
                await self.broken.wait()
        except TimeoutError:
            return self.ended
        return True


def http_api(http: tuple[str, int]) -> Ask:
    """Return a function that calls one node's HTTP API. Raises: OSError for every error status."""

    async def ask(verb: str, path: str, value: object) -> object:
        status, answer = await request(http, verb, path, value)
        if status >= 400:
            raise OSError(f"{verb} {path} -> {status} {answer}")
        return answer

    return ask


async def request(
    http: tuple[str, int], verb: str, path: str, value: object, patience_s: float = 30.0
) -> tuple[int, Any]:
    """Send a request in this event loop, so that it ends with its caller. Return (status, JSON). Raises: OSError,
    including TimeoutError.
    """
    body = b"" if value is None else json.dumps(value).encode()
    head = (
        f"{verb} {path} HTTP/1.0\r\nHost: {http[0]}\r\nAuthorization: {_LOGIN}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    async with asyncio.timeout(patience_s):
        reader, writer = await asyncio.open_connection(*http)
        try:
            writer.write(head.encode() + body)
            answer = await reader.read(-1)
        finally:
            writer.transport.abort()
    top, _, content = answer.partition(b"\r\n\r\n")
    if not content and not top:
        raise OSError("closed without an answer")
    status = int(top.split(b" ", 2)[1])
    return status, json.loads(content) if content and b"application/json" in top else content.decode("utf-8", "replace")
