"""A proxy before a broker that makes some Produce requests fail, each kind of fault in turn.

lost request     the connection ends before the broker has it
lost answer      the broker has it, and the connection ends
late answer      this answer and the following ones come `late_s` late
REFUSED codes    the broker does not get it; the proxy answers
STORED codes     the broker has stored it, but the answer is an error
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Self

PRODUCE: Final = 0
REFUSED: Final = {"NOT_ENOUGH_REPLICAS": 19, "NOT_LEADER_OR_FOLLOWER": 6}
STORED: Final = {"NOT_ENOUGH_REPLICAS_AFTER_APPEND": 20, "REQUEST_TIMED_OUT": 7}
KINDS: Final = ("lost request", "lost answer", "late answer", *REFUSED, *STORED)


class PendingRequest(NamedTuple):
    """A request on its way. fault: of KINDS, or "". made: the answer, if the broker does not get the request."""

    number: int
    fault: str
    made: bytes = b""


class FaultyProxy:
    """Listens at `port` and forwards to `target`. every: each n-th Produce request fails; 0: none. kinds: the faults,
    in turn. done: the count of each.
    """

    def __init__(
        self, port: int, target: tuple[str, int], every: int = 0, late_s: float = 2.0, kinds: Sequence[str] = KINDS
    ) -> None:
        self.port = port
        self.target = target
        self.every = every
        self.late_s = late_s
        self.kinds = kinds
        self.done: Counter[str] = Counter()
        self.produces = 0
        self._faults = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        back: asyncio.StreamWriter | None = None
        ways: list[asyncio.Task[None]] = []
        try:
            to, back = await asyncio.open_connection(*self.target)
            pending: deque[PendingRequest] = deque()
            ways = [
                asyncio.create_task(self._requests(reader, back, writer, pending)),
                asyncio.create_task(self._answers(to, writer, pending)),
            ]
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        except (OSError, asyncio.CancelledError):
            pass  # the broker is away, or the test and this proxy have ended
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            for each in (writer, back):
                if each is not None:
                    each.transport.abort()
            self._tasks.discard(task)

    async def _requests(
        self,
        reader: asyncio.StreamReader,
        back: asyncio.StreamWriter,
        writer: asyncio.StreamWriter,
        pending: deque[PendingRequest],
    ) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                frame = await _frame(reader)
                key, _, number = struct.unpack_from(">hhi", frame, 4)
                fault = self._fault() if key == PRODUCE else ""
                if fault == "lost request":
                    return
                if fault in REFUSED:
                    pending.append(PendingRequest(number, fault, _refusal(frame, REFUSED[fault])))
                    _answer_made(pending, writer)
                    continue
                pending.append(PendingRequest(number, fault))
                back.write(frame)
                await back.drain()

    def _fault(self) -> str:
        self.produces += 1
        if not self.every or self.produces % self.every:
            return ""
        self._faults += 1
        fault = self.kinds[self._faults % len(self.kinds)]
        self.done[fault] += 1
        return fault

    async def _answers(
        self, to: asyncio.StreamReader, writer: asyncio.StreamWriter, pending: deque[PendingRequest]
    ) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                frame = await _frame(to)
                one = pending[0]
                assert struct.unpack_from(">i", frame, 4)[0] == one.number, "answers must come in order"
                if one.fault == "lost answer":
                    return
                if one.fault == "late answer":
                    await asyncio.sleep(self.late_s)
                if one.fault in STORED:
                    code = STORED[one.fault]
                    frame = changed_answer(frame, lambda *_, code=code: (code, -1))  # type: ignore[misc]
                writer.write(frame)
                pending.popleft()
                _answer_made(pending, writer)
                await writer.drain()


def _answer_made(pending: deque[PendingRequest], writer: asyncio.StreamWriter) -> None:
    """Write the made answers whose turn it is: answers keep the order of requests."""
    while pending and pending[0].made:
        writer.write(pending.popleft().made)


async def _frame(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readexactly(4)
    return head + await reader.readexactly(int.from_bytes(head, "big"))


# -- Produce, version 9


def _uvarint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _compact(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = _uvarint(data, at)
    return data[at : at + size - 1], at + size - 1


def _out(value: int) -> bytes:
    found = b""
    while value >= 0x80:
        found += bytes([value & 0x7F | 0x80])
        value >>= 7
    return found + bytes([value])


def _refusal(request: bytes, code: int) -> bytes:
    """Build the answer to that request with this code for each partition."""
    _, version, number, client = struct.unpack_from(">hhih", request, 4)
    assert version == 9
    at = 4 + 10 + max(client, 0)
    _, at = _uvarint(request, at)  # no tags
    transactional, at = _uvarint(request, at)
    at += max(transactional - 1, 0) + 6  # acks, timeout
    topics, at = _uvarint(request, at)
    body = _out(topics)
    for _ in range(topics - 1):
        name, at = _compact(request, at)
        partitions, at = _uvarint(request, at)
        body += _out(len(name) + 1) + name + _out(partitions)
        for _ in range(partitions - 1):
            (index,) = struct.unpack_from(">i", request, at)
            _, at = _compact(request, at + 4)
            _, at = _uvarint(request, at)
            body += struct.pack(">ihqqq", index, code, -1, -1, -1) + b"\x01\x00\x00"
        body += b"\x00"
        _, at = _uvarint(request, at)
    answer = struct.pack(">i", number) + b"\x00" + body + struct.pack(">i", 0) + b"\x00"
    return struct.pack(">i", len(answer)) + answer


def changed_answer(answer: bytes, change: Callable[[bytes, int, int, int], tuple[int, int]]) -> bytes:
    """Return the answer with changed codes and offsets. `change` gets each partition's topic, number, code and first
    offset, and returns code and first offset. answer: with its length prefix.
    """
    found = bytearray(answer)
    at = 9  # size, correlation id, no tags
    topics, at = _uvarint(answer, at)
    for _ in range(topics - 1):
        topic, at = _compact(answer, at)
        partitions, at = _uvarint(answer, at)
        for _ in range(partitions - 1):
            number, code, offset = struct.unpack_from(">ihq", answer, at)
            struct.pack_into(">hq", found, at + 4, *change(topic, number, code, offset))
            at += 4 + 2 + 24
            errors, at = _uvarint(answer, at)
            assert errors <= 1, "a single record was refused"
            text, at = _uvarint(answer, at)
            at += max(text - 1, 0)
            _, at = _uvarint(answer, at)
        _, at = _uvarint(answer, at)
    return bytes(found)
