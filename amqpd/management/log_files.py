"""Log files of durable queues over HTTP, and the exporters that keep segments from removal.

**Exports** (`storage/acks/retained.py`): setting and clearing an exporter needs the configure permission on the
queue; committing an offset and reading need the read permission. The list of all exporters is visible as lists of
queues are, because it only has counts.

**Log files**, for exports whose workers share no disk with the broker: names and sizes of the files in a queue's
directory, and ranges of their bytes, sent by `sendfile` (`file_response.py`). Spark's source reads the high
watermark among the files and no records above it. The caller needs the read permission on the queue. Only files of
the log can be read. A queue without files yet has an empty log. With `?compression=zstd` a thread compresses ranges,
for readers behind a slow network.

With the queue's id in `If-Match`, the answer is 412 if the queue was deleted and declared again.
"""

from __future__ import annotations

import asyncio
import os
import re
from typing import TYPE_CHECKING, Any, Final

from amqpd.auth.permissions import Kind
from amqpd.broker.queue.log_opener import opened
from amqpd.management.listing import Body, listing, sort_by_name
from amqpd.management.request import (
    NO_CONTENT,
    ApiError,
    ApiRequest,
    ApiResponse,
    BadRequest,
    ResourceNotFound,
    Role,
    name_of,
    parse_int,
    reply,
)
from amqpd.management.router import ApiRoute
from amqpd.management.time_slice import TimeSlice
from amqpd.storage.acks.retained import NAME

if TYPE_CHECKING:
    from amqpd.broker.queue.queue import Queue
    from amqpd.storage.acks.retained import ExportHold
    from amqpd.storage.queue_log import QueueLog


OFFSET_MAX: Final = (1 << 63) - 1


async def get_exports(call: ApiRequest) -> ApiResponse:
    """List the exporters of the queue, with their offsets and the bytes kept for them."""
    store = _store(call, "read")
    hold = call.broker.storage.find_export_hold(store)
    if hold is None:
        return reply({"id": store.queue_id, "exports": [], "kept_bytes": 0})
    found = [{"name": name, "offset": offset} for name, offset in sorted(hold.exported.items())]
    kept = {"kept_bytes": hold.kept_bytes, "max_bytes": hold.limit_bytes}
    return reply({"id": store.queue_id, "exports": found, **kept})


async def get_all_exports(call: ApiRequest) -> ApiResponse:
    """List the exporters of all queues, with the number of records that they are behind."""
    slices = TimeSlice()
    found: list[tuple[Queue, QueueLog, ExportHold, str]] = []
    for vhost in call.vhosts():
        for queue in await sort_by_name(list(vhost.queues.values()), name_of, slices):
            await opened(queue)
            hold = None if queue.store is None else call.broker.storage.find_export_hold(queue.store)
            if hold is not None and queue.store is not None:
                found += [(queue, queue.store, hold, name) for name in sorted(hold.exported)]
            await slices.yield_if_due()
    return await listing(call, found, lambda each: _export_item(*each), lambda each: each[0].name)


def _export_item(queue: Queue, store: QueueLog, hold: ExportHold, name: str) -> dict[str, Any]:
    """Return one exporter.

    `lag` counts offsets, so it includes records that compaction has removed. `declared`: the exporter is in the
    queue's argument x-export.
    """
    offset = hold.exported.get(name, 0)
    return {
        "vhost": queue.vhost_name,
        "queue": queue.name,
        "name": name,
        "declared": hold.declared == name,
        "offset": offset,
        "end_offset": store.high_watermark,
        "lag": max(0, store.high_watermark - offset),
        "kept_bytes": hold.kept_bytes,
        "max_bytes": hold.limit_bytes,
    }


async def put_export(call: ApiRequest) -> ApiResponse:
    """Keep settled segments of the queue until the exporter has committed an offset behind them."""
    store = _store(call, "configure")
    name = call.text("name")
    if NAME.fullmatch(name) is None:
        raise BadRequest("name: expected letters, digits, dots, dashes and underscores, 64 at most")
    limit = call.fields().get("max_bytes")
    if limit is not None:
        limit = parse_int("max_bytes", limit, 0, OFFSET_MAX)
    call.broker.storage.export_hold(store).add(name, limit)
    call.broker.storage.on_export_hold_changed(store)
    return NO_CONTENT


async def commit_export(call: ApiRequest) -> ApiResponse:
    """Commit the offset below which all messages are exported.

    `id` is the queue's id; it protects a queue that was declared later under the same name.
    """
    store = _store(call, "read")
    if call.text("id", store.queue_id) != store.queue_id:
        raise ResourceNotFound("the queue was deleted and declared again")
    name, offset = call.text("name"), parse_int("offset", call.required("offset"), 0, OFFSET_MAX)
    hold = call.broker.storage.find_export_hold(store)
    if hold is None or not hold.commit(name, offset):
        raise ResourceNotFound(f"the queue has no export '{name}'")
    call.broker.storage.on_export_hold_changed(store)
    return NO_CONTENT


async def delete_export(call: ApiRequest) -> ApiResponse:
    """Remove the exporter; the queue keeps nothing for it any more."""
    store = _store(call, "configure")
    name = call.params["name"]
    hold = call.broker.storage.find_export_hold(store)
    if hold is not None and hold.declared == name:
        raise BadRequest(f"the queue is declared with x-export '{name}'")
    if hold is None or not hold.clear(name):
        raise ResourceNotFound(f"the queue has no export '{name}'")
    call.broker.storage.on_export_hold_changed(store)
    return NO_CONTENT


def _store(call: ApiRequest, kind: Kind) -> QueueLog:
    queue = call.permitted_queue(kind)
    store = _local_log(queue)
    queue.prepare()
    return store


def _local_log(queue: Queue) -> QueueLog:
    """Return the queue's log. Raises: ResourceNotFound: it has none, or Kafka has it and the disk only a cache."""
    name = f"queue '{queue.name}' in vhost '{queue.vhost_name}'"
    if not queue.durable or queue.store is None:
        raise ResourceNotFound(f"{name} has no log: it is not durable")
    if not queue.store.local:
        raise ResourceNotFound(f"{name} is in a cluster: its log is in Kafka")
    return queue.store


FILE: Final = re.compile(
    r"\d{20}\.(?:log|log\.swap|log\.deleted|index|timeindex|settled|settled\.swap)|high-watermark|leader-epoch-checkpoint"
    r"|log-start-offset-checkpoint|cleaner-offset-checkpoint|queue\.json|export-[A-Za-z0-9_.-]+\.offset"
)


class QueueChanged(ApiError, status=412, error="precondition_failed"):
    """The queue with this id was deleted, and its name belongs to another one."""


async def get_logs(call: ApiRequest) -> ApiResponse:
    """List the durable queues of the virtual host that the caller may read."""
    vhost = call.vhost()
    found: list[dict[str, Any]] = []
    slices = TimeSlice()
    for queue in (*vhost.queues.values(), *vhost.own_queues.values()):
        store = queue.store if queue.durable else None
        if store is not None and call.is_allowed(vhost.name, "read", queue.name):
            found.append({"queue": queue.name, "vhost": vhost.name, "id": store.queue_id})
        await slices.yield_if_due()
    body = Body()
    body.add("[")
    await body.add_items(found, slices)
    body.add("]")
    return ApiResponse(200, body.finished())


async def get_log(call: ApiRequest) -> ApiResponse:
    """Return the queue's id, and name and size of each file of its log."""
    store = _local_log(call.permitted_queue("read"))
    files = await asyncio.get_running_loop().run_in_executor(None, _files, store.directory)
    return reply({"id": store.queue_id, "files": files})


async def get_log_file(call: ApiRequest) -> ApiResponse:
    """Return the bytes of one file, or a range of them. `compression=zstd`: a range may be compressed."""
    store = _local_log(call.permitted_queue("read"))
    compression = call.query.get("compression", "none")
    if compression not in ("none", "zstd"):
        raise BadRequest("compression: expected none or zstd")
    wanted = call.headers.get("If-Match")
    if wanted is not None and wanted.strip('"') != store.queue_id:
        raise QueueChanged("the queue was deleted and declared again")
    name = call.params["file"]
    if FILE.fullmatch(name) is None:
        raise ResourceNotFound(f"no file '{name}' in a log")
    path = f"{store.directory}/{name}"
    return ApiResponse(200, None, "application/octet-stream", file=path, compresses=compression == "zstd")


def _files(directory: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                try:
                    if FILE.fullmatch(entry.name) is not None:
                        found.append({"name": entry.name, "size": entry.stat().st_size})
                except FileNotFoundError:
                    continue  # a segment that was removed meanwhile
    except FileNotFoundError:
        return []
    return found


ROUTES: Final = (
    ApiRoute("GET", "api/amqpd/exports", Role.MANAGEMENT, get_all_exports),
    ApiRoute("GET", "api/amqpd/exports/{vhost}", Role.MANAGEMENT, get_all_exports),
    ApiRoute("GET", "api/amqpd/exports/{vhost}/{queue}", Role.MANAGEMENT, get_exports),
    ApiRoute("PUT", "api/amqpd/exports/{vhost}/{queue}", Role.MANAGEMENT, put_export),
    ApiRoute("POST", "api/amqpd/exports/{vhost}/{queue}", Role.MANAGEMENT, commit_export, quiet=True),
    ApiRoute("DELETE", "api/amqpd/exports/{vhost}/{queue}/{name}", Role.MANAGEMENT, delete_export),
    ApiRoute("GET", "api/amqpd/logs/{vhost}", Role.MANAGEMENT, get_logs),
    ApiRoute("GET", "api/amqpd/logs/{vhost}/{queue}", Role.MANAGEMENT, get_log),
    ApiRoute("GET", "api/amqpd/logs/{vhost}/{queue}/{file}", Role.MANAGEMENT, get_log_file),
)
