"""The logs of durable queues, to read without consuming: for exports whose workers share no disk with the broker.

What Spark's source needs is the files of a queue's directory, their sizes, and ranges of their bytes; it reads the high
watermark among them and no further than that. Files are sent by the kernel (file_response.py). The caller needs the read
permission on the queue, as on AMQP; only files of the log itself have names here. A queue that has no file yet has none
to list, which is an empty log.

`If-Match` with the queue's id, as the listing tells it, answers 412 once the queue was deleted and declared anew.
"""

from __future__ import annotations

import asyncio
import os
import re
from typing import TYPE_CHECKING, Any, Final

from amqpd.management.request import ApiError, Call, NotThere, Reply, Role, reply
from amqpd.management.listing import Body
from amqpd.management.router import Route
from amqpd.management.time_slice import Slices

if TYPE_CHECKING:
    from amqpd.broker.vhost.vhost import VHost
    from amqpd.broker.queue.queue import Queue
    from amqpd.storage.queue_log import QueueLog

FILE: Final = re.compile(
    r"\d{20}\.(?:log|log\.swap|log\.deleted|index|timeindex|settled|settled\.swap)|high-watermark|leader-epoch-checkpoint"
    r"|log-start-offset-checkpoint|cleaner-offset-checkpoint|queue\.json|export-[A-Za-z0-9_.-]+\.offset"
)


class QueueChanged(ApiError):
    """The queue of that id is gone, and another one has its name."""

    status = 412
    error = "precondition_failed"


async def get_logs(call: Call) -> Reply:
    """The durable queues of the vhost that the caller may read."""
    vhost = call.vhost()
    found: list[dict[str, Any]] = []
    slices = Slices()
    for queue in (*vhost.queues.values(), *vhost.own_queues.values()):
        store = _store(queue)
        if store is not None and _may_read(call, vhost, queue.name):
            found.append({"queue": queue.name, "vhost": vhost.name, "id": store.queue_id})
        if slices.due:
            await slices.rest()
    body = Body()
    body.add("[")
    await body.add_items(found, slices)
    body.add("]")
    return Reply(200, body.finished())


async def get_log(call: Call) -> Reply:
    """The queue's id, and name and size of each file."""
    store = _readable(call)
    files = await asyncio.get_running_loop().run_in_executor(None, _files, store.directory)
    return reply({"id": store.queue_id, "files": files})


async def get_log_file(call: Call) -> Reply:
    """The bytes of one file, or a range of them."""
    store = _readable(call)
    wanted = call.headers.get("If-Match")
    if wanted is not None and wanted.strip('"') != store.queue_id:
        raise QueueChanged("the queue was deleted and declared anew")
    name = call.params["file"]
    if FILE.fullmatch(name) is None:
        raise NotThere(f"no file '{name}' in a log")
    return Reply(200, None, "application/octet-stream", file=f"{store.directory}/{name}")


def _readable(call: Call) -> QueueLog:
    vhost = call.vhost()
    call.check(vhost.name, "read", "queue", call.params["queue"])
    queue = call.queue()
    vhost.check_exclusive(queue, None)
    store = _store(queue)
    if store is None:
        raise NotThere(f"queue '{queue.name}' in vhost '{vhost.name}' keeps no log: it is not durable")
    return store


def _store(queue: Queue) -> QueueLog | None:
    return queue.store if queue.durable else None


def _may_read(call: Call, vhost: VHost, name: str) -> bool:
    return call.caller.operator or call.broker.auth.may(call.caller.user, vhost.name, "read", name)


def _files(directory: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                try:
                    if FILE.fullmatch(entry.name) is not None:
                        found.append({"name": entry.name, "size": entry.stat().st_size})
                except FileNotFoundError:
                    continue  # a segment that was given back meanwhile
    except FileNotFoundError:
        return []
    return found


ROUTES: Final = (
    Route("GET", "api/amqpd/logs/{vhost}", Role.MANAGEMENT, get_logs),
    Route("GET", "api/amqpd/logs/{vhost}/{queue}", Role.MANAGEMENT, get_log),
    Route("GET", "api/amqpd/logs/{vhost}/{queue}/{file}", Role.MANAGEMENT, get_log_file),
)
