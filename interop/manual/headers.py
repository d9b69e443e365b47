"""docs/reference/headers.md: headers that the broker reads or writes. A test checks every `x-...` in the code against
it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from interop.manual.markdown import MADE, code, table


class Header(NamedTuple):
    """kind: the AMQP type of the value. page: the page of docs/ with more."""

    name: str
    kind: str
    meaning: str
    page: str


READ: Final = (
    Header("CC", "array of texts", "more routing keys; stays in the message", "exchange-types"),
    Header("BCC", "array of texts", "more routing keys; removed before delivery", "exchange-types"),
    Header("x-delay", "number", "how many ms it waits in an exchange that delays; delivered as a negative number", "retries"),
    Header("x-deliver-at", "number or timestamp", "when it is due, in ms since 1970; delivered as `x-delivered-at`", "retries"),
    Header("x-deduplication-header", "any", "the id by which an exchange of type x-message-deduplication drops copies", "deduplication"),
    Header("x-producer-id", "number", "the publisher that numbers its messages", "deduplication"),
    Header("x-producer-epoch", "number", "raised when another process takes over; a lower one is refused", "deduplication"),
    Header("x-sequence", "number", "the message's number, from 0", "deduplication"),
    Header("x-stream-filter-value", "text", "a consumer's `x-stream-filter` is compared with it", "filters"),
    Header("x-tombstone", "true", "with an empty body, in a compacted stream: removes older messages with this routing key", "streams"),
    Header("x-recent-history-no-store", "true", "an exchange of type x-recent-history does not keep this message", "exchange-types"),
)  # fmt: skip
WRITTEN: Final = (
    Header("x-death", "array of tables", "dead letters: from which queue, why, how often, the newest first", "dead-letters"),
    Header("x-first-death-queue", "text", "the queue in which it died first", "dead-letters"),
    Header("x-first-death-reason", "text", "why: rejected, expired, maxlen or delivery_limit", "dead-letters"),
    Header("x-first-death-exchange", "text", "the exchange of its first death", "dead-letters"),
    Header("x-death-redelivered", "true", "dead letters after a crash: the message may have reached its queues before", "dead-letters"),
    Header("x-delivery-count", "number", "quorum queues: how often it returned", "retries"),
    Header("x-delivered-at", "as it was sent", "when it was due, if it was published with `x-deliver-at`", "retries"),
    Header("x-delayed-redelivered", "true", "after a crash: the message may have reached its queues before", "retries"),
    Header("x-stream-offset", "number", "streams: the message's offset", "streams"),
    Header("x-source-queue", "text", "a job moved or copied it out of this queue", "dead-letters"),
    Header("x-source-offset", "number", "the offset that it had there", "dead-letters"),
    Header("x-source-redelivered", "true", "it had been delivered there before", "dead-letters"),
    Header("x-redrive-count", "number", "number of redrives", "dead-letters"),
)  # fmt: skip
INSIDE: Final = {"x-amqpd-delayed"}
"""Headers of delayed messages on disk; they are never delivered."""
HEAD = """\
# Headers

Headers of a message (in its property `headers`) that the broker reads or writes. Arguments of queues, exchanges and
consumers have similar names, and are on [another page](arguments.md).

## Read when you publish

"""
MIDDLE = """
Some headers with a value of another type are refused with 406; their pages say so.

## Written when you consume

"""


def text() -> str:
    def rows(headers: tuple[Header, ...]) -> list[tuple[str, ...]]:
        return [(code(one.name), one.kind, f"{one.meaning}: [more](../{one.page}.md)") for one in headers]

    columns = ("header", "type", "meaning")
    return MADE + HEAD + table(columns, rows(READ)) + MIDDLE + table(columns, rows(WRITTEN))
