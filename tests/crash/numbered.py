"""A publisher of numbered messages that records the confirm of each."""

from __future__ import annotations

import asyncio

from quickclient import Link

DURABLE = b"\x10\x00\x02"


def body_of(number: int, size: int | None) -> bytes:
    """Return the number, followed by zeros. size: see `Publisher`."""
    text = b"%d;" % number
    return text + bytes(number % 3000) if size is None else text.ljust(size, b"\x00")


def number_of(body: bytes) -> int:
    return int(body.partition(b";")[0])


class Publisher:
    """Publishes numbered messages with confirms; records which were acked, nacked, and answered twice (`doubled`).

    size: bytes of every body; None: 0 to 3,000 besides the number. first: the number of the first message less one.
    """

    def __init__(self, link: Link, size: int | None = None, first: int = 0) -> None:
        self.link = link
        self.size = size
        self.first = first
        self.acked: set[int] = set()
        self.nacked: set[int] = set()
        self.doubled: list[int] = []
        self.queue_of: dict[int, str] = {}
        self._done = 0
        link.on_confirm = self._confirm

    def _confirm(self, tag: int, multiple: bool, acked: bool) -> None:
        numbers = range(self._done + 1, tag + 1) if multiple else (tag,)
        for number in numbers:
            if number not in self.acked and number not in self.nacked:
                (self.acked if acked else self.nacked).add(number)
            elif not multiple:
                self.doubled.append(number)
        while self._done + 1 in self.acked or self._done + 1 in self.nacked:
            self._done += 1

    def publish(self, queue: str) -> int:
        number = len(self.queue_of) + 1
        self.queue_of[number] = queue
        self.link.publish("", queue, DURABLE, body_of(self.first + number, self.size))
        return number

    @property
    def unanswered(self) -> int:
        return len(self.queue_of) - len(self.acked) - len(self.nacked)

    async def answered(self, timeout_s: float = 60.0) -> bool:
        deadline = self.link.loop.time() + timeout_s
        while self._done < len(self.queue_of):
            if self.link.gone.is_set() or self.link.loop.time() > deadline:
                return False
            await asyncio.sleep(0.01)
        return True
