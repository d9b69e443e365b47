"""The audit log over HTTP: /audit, for administrators. RabbitMQ has no such route.

A page of records, oldest first. Which ones: `offset` and `since` say where it begins, `last` as many from the end;
`until` ends it; `where` is a selector on the records' fields (docs/watching.md), `count` how many there are at most.
Ask again with `offset` of `next_offset`, until `ended`. Backwards: `last=100&before=OFFSET` are the hundred offsets
below OFFSET, and there are older ones while `first_offset` of the page is above `start_offset` of the log.
"""

from __future__ import annotations

import json
from typing import Any, Final

from amqpd.broker.queues.opening import opened
from amqpd.broker.surgery.browsing import browse
from amqpd.management.call import Call, Reply, Role, Unavailable, number, reply
from amqpd.management.router import Route
from amqpd.management.slices import Slices
from amqpd.management.surgery import COUNT_MAX, OFFSET_MAX, selector_of, time_ms


async def get_audit(call: Call) -> Reply:
    """Records of the audit log.
    `lost`: records that could not be written, so far not made up for by one that says so."""
    query = call.query
    count = number("count", query.get("count", 100), 1, COUNT_MAX)
    begin = number("offset", query.get("offset", 0), 0, OFFSET_MAX)
    begin_ms = time_ms(query.get("since"))
    until_ms = time_ms(query["until"]) if "until" in query else OFFSET_MAX
    selector = selector_of(query.get("where"))
    queue = call.broker.audit.queue
    if not await opened(queue):
        raise Unavailable("the audit log cannot be read; the broker's log says more")
    assert queue.store is not None  # a stream has one
    before = number("before", query.get("before", OFFSET_MAX), 0, OFFSET_MAX)
    end = min(before, queue.store.high_watermark)
    if "last" in query:
        begin = max(begin, end - number("last", query["last"], 1, OFFSET_MAX))
    # Nothing in it was settled but from its start on, by retention.
    start = queue.store.next_offset - queue.store.record_count
    begin = max(begin, start)
    page = await browse(queue, selector, count, begin, begin_ms)
    slices = Slices()
    records: list[dict[str, Any]] = []
    ended = page.ended or page.next_offset >= before
    for entry, _ in page.messages:
        message = entry.message
        assert message is not None  # what is read has its message
        if message.logged_ms > until_ms or entry.offset >= before:
            ended = True
            break
        records.append({"offset": entry.offset, **json.loads(message.body())})
        if slices.due:
            await slices.rest()
    lost = call.broker.audit.lost_count
    told = {"records": records, "next_offset": page.next_offset, "ended": ended, "lost": lost}
    return reply({**told, "first_offset": begin, "start_offset": start})


ROUTES: Final = (Route("GET", "api/audit", Role.ADMINISTRATOR, get_audit),)
