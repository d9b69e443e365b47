"""Requests and answers of one connection to a Kafka broker, without the socket.

A broker answers in the order of the requests and repeats their correlation ids. Any deviation raises BadAnswer: an
answer without a request, another id, a length below that of an id or above `answer_size_max`. The connection must
end then, and the outcome of its unanswered requests is unknown.
"""

from __future__ import annotations

from collections import deque
from typing import Final, final

from librt.strings import read_i32_be
from mypy_extensions import i64

from amqpd.kafka.requests import CORRELATION_MAX
from amqpd.kafka.wire import BadAnswer

_LENGTH_SIZE: Final[i64] = 4
_LEAST: Final[i64] = 4  # the length of a correlation id


@final
class Correlator:
    """The unanswered requests of one connection, and its partial answer.

    Args:
        answer_size_max: The largest answer in bytes; a larger one raises BadAnswer.
    """

    def __init__(self, answer_size_max: i64) -> None:
        self.answer_size_max: i64 = answer_size_max
        self._asked: deque[int] = deque()
        self._next_id: i64 = 0
        self._parts: list[bytes] = []
        self._held: i64 = 0  # bytes in `_parts`
        self._wanted: i64 = _LENGTH_SIZE  # bytes that complete the length, or the next answer

    @property
    def unanswered(self) -> i64:
        return len(self._asked)

    def next_correlation_id(self) -> i64:
        """Return the correlation id for the next request, which is sent now."""
        number: i64 = self._next_id
        self._next_id = 0 if number == CORRELATION_MAX else number + 1
        self._asked.append(number)
        return number

    def feed(self, data: bytes) -> list[bytes]:
        """Add received bytes; return the answers that are now complete, in order, without their lengths.

        Cost: one copy.
        Raises: BadAnswer.
        """
        self._parts.append(data)
        self._held += len(data)
        answers: list[bytes] = []
        if self._held < self._wanted:
            return answers
        held = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        position: i64 = 0
        size: i64 = len(held)
        self._wanted = _LENGTH_SIZE
        while size - position >= _LENGTH_SIZE:
            length: i64 = i64(read_i32_be(held, position))
            if length < _LEAST or length > self.answer_size_max:
                raise BadAnswer(f"an answer of {length} bytes is over the limit of {self.answer_size_max}")
            if size - position - _LENGTH_SIZE < length:
                self._wanted = _LENGTH_SIZE + length
                break
            start: i64 = position + _LENGTH_SIZE
            position = start + length
            self._check(i64(read_i32_be(held, start)))
            answers.append(held[start:position])
        rest = held[position:] if position > 0 else held
        self._parts = [rest] if len(rest) > 0 else []
        self._held = len(rest)
        return answers

    def _check(self, correlation_id: i64) -> None:
        if not self._asked:
            raise BadAnswer("an answer without a request")
        expected: i64 = self._asked.popleft()
        if correlation_id != expected:
            raise BadAnswer(f"the answer to {correlation_id}, expected that to {expected}")
