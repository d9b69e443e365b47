"""Handlers for browsing queues and for jobs: move, copy, delete, redrive and rewind messages. Not in RabbitMQ.

/queues/V/Q/messages shows messages, /queues/V/Q/jobs starts jobs, /amqpd/jobs lists them. Browsing requires the read
permission on the queue. A job requires read and configure on its source (copy: only read), and write on the target:
the queue, the exchange, or each queue that a redrive sends messages to. Topic permissions apply as to a publish.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from amqpd.broker.jobs.job import QueueJob
from amqpd.broker.jobs.jobs import COPY, DELETE, MOVE, REDRIVE, REWIND, JobRequest, browse
from amqpd.broker.queue.log_opener import opened
from amqpd.errors import AccessRefused
from amqpd.management.queues import message_item
from amqpd.management.request import (
    DEFAULT_EXCHANGE,
    ApiRequest,
    ApiResponse,
    BadRequest,
    ResourceNotFound,
    Role,
    forbidden_key,
    parse_int,
    reply,
)
from amqpd.management.router import ApiRoute
from amqpd.management.time_slice import TimeSlice
from amqpd.protocol.field_table import SHORT_STRING_SIZE_BYTES_MAX
from amqpd.routing.base import BadSelector
from amqpd.routing.selector import MATCHES_ALL, Selector, parse_selector
from amqpd.routing.selector_parser import suggest_fix

if TYPE_CHECKING:
    from amqpd.broker.consumer import QueueEntry
    from amqpd.broker.jobs.targets import MayPublish
    from amqpd.broker.queue.queue import Queue
    from amqpd.broker.vhost.exchange import Exchange

COUNT_MAX: Final = 1000
OFFSET_MAX: Final = 1 << 60
WAIT_MS_MAX: Final = 30_000
VERBS: Final = (MOVE, COPY, DELETE, REDRIVE, REWIND)
_FIELDS: Final[dict[str, frozenset[str]]] = {
    MOVE: frozenset({"to_queue", "to_exchange", "routing_key"}),
    COPY: frozenset({"to_queue", "to_exchange", "routing_key", "offset", "time"}),
    DELETE: frozenset(),
    REDRIVE: frozenset(),
    REWIND: frozenset({"to_queue", "offset", "time", "until_offset", "until_time"}),
}
_SHARED: Final = frozenset({"action", "where", "limit", "dry_run", "wait_ms"})


async def get_messages(call: ApiRequest) -> ApiResponse:
    """Show messages without removing them, a page at a time.

    Query: `count`, `offset`, `time`, `where`, `encoding`, `truncate`. With `end=true` the answer has no messages, and
    its `next_offset` is the offset of the next message to arrive.
    """
    query = call.query
    count = parse_int("count", query.get("count", 100), 1, COUNT_MAX)
    begin = parse_int("offset", query.get("offset", 0), 0, OFFSET_MAX)
    begin_ms = time_ms(query.get("time"))
    selector = selector_of(query.get("where"))
    encoding = query.get("encoding", "auto")
    if encoding not in ("auto", "base64"):
        raise BadRequest("encoding must be auto or base64")
    truncate = parse_int("truncate", query["truncate"], 0, OFFSET_MAX) if "truncate" in query else None
    queue = await _source(call, configure=False)
    if call.query_flag("end"):
        return reply({"messages": [], "next_offset": int(queue.backing.next_offset), "ended": True, "hint": ""})
    page = await browse(queue, selector, count, begin, begin_ms)
    slices = TimeSlice()
    messages: list[dict[str, Any]] = []
    for entry, state in page.messages:
        messages.append(_shown(entry, state, encoding, truncate))
        await slices.yield_if_due()
    hint = suggest_fix(selector.text) if selector is not None and not messages else ""
    return reply({"messages": messages, "next_offset": page.next_offset, "ended": page.ended, "hint": hint})


def _shown(entry: QueueEntry, state: str, encoding: str, truncate: int | None) -> dict[str, Any]:
    message = entry.message
    assert message is not None  # a scan returns entries with their messages
    item = {
        "offset": entry.offset,
        "time": message.logged_ms or None,
        "state": state,
        "redelivered": entry.redelivered,
        "delivery_count": entry.delivery_count,
        "exchange": message.envelope.exchange,
        "routing_key": message.envelope.routing_key,
        "payload_bytes": message.body_size,
    }
    return message_item((item, message.properties(), message.body()), encoding, truncate)


async def post_job(call: ApiRequest) -> ApiResponse:
    """Start a job that moves, copies, deletes, redrives or rewinds messages.

    Answers 202 with the job, or 200 if it has ended within `wait_ms`.
    """
    fields = call.fields()
    verb = call.text("action")
    if verb not in VERBS:
        raise BadRequest(f"action must be one of {', '.join(VERBS)}")
    unknown = sorted(set(fields) - _SHARED - _FIELDS[verb])
    if unknown:
        raise BadRequest(f"{verb} does not accept {', '.join(unknown)}")
    wait_ms = parse_int("wait_ms", fields.get("wait_ms", 0), 0, WAIT_MS_MAX)
    job = call.broker.jobs.begin(await _request(call, verb))
    call.broker.turn.schedule()
    await call.broker.jobs.until_ended(job, wait_ms)
    return reply(job_item(job), 202 if job.ended_ms == 0 else 200)


async def _request(call: ApiRequest, verb: str) -> JobRequest:
    """Check the body completely and return the request. Raises: BadRequest, NotAuthorised, ResourceNotFound."""
    fields = call.fields()
    vhost = call.vhost()
    to_queue, to_exchange = _optional(call, "to_queue"), _optional(call, "to_exchange")
    if verb in (MOVE, COPY):
        if (to_queue is None) == (to_exchange is None):
            raise BadRequest(f"{verb} requires either to_queue or to_exchange")
        if to_queue is not None and "routing_key" in fields:
            raise BadRequest("routing_key requires to_exchange")
        if len((_optional(call, "routing_key") or "").encode()) > SHORT_STRING_SIZE_BYTES_MAX:
            raise BadRequest("routing_key can have at most 255 bytes")
    if verb == REWIND and ("offset" in fields) == ("time" in fields):
        raise BadRequest("rewind requires either offset or time")
    if "until_offset" in fields and "until_time" in fields:
        raise BadRequest("until_offset and until_time exclude each other")
    until = parse_int("until_offset", fields.get("until_offset", -1), -1, OFFSET_MAX)
    until_ms = time_ms(fields["until_time"]) if "until_time" in fields else -1
    limit = parse_int("limit", fields.get("limit", 0), 0, OFFSET_MAX)
    begin = parse_int("offset", fields.get("offset", 0), 0, OFFSET_MAX)
    begin_ms = time_ms(fields.get("time"))
    selector = selector_of(fields.get("where"))
    dry_run = call.flag("dry_run")
    source = await _source(call, configure=verb != COPY)
    if to_queue is not None:
        call.check(vhost.name, "write", "queue", to_queue)
        target = vhost.find_queue(to_queue)
        if target is None:
            raise ResourceNotFound(f"no queue '{to_queue}' in vhost '{vhost.name}'")
        await opened(target)
    if to_exchange is not None:
        to_exchange = "" if to_exchange == DEFAULT_EXCHANGE else to_exchange
        call.check(vhost.name, "write", "exchange", to_exchange)
        exchange = vhost.find_exchange(to_exchange)
        if exchange is not None and exchange.internal:
            raise AccessRefused(f"cannot publish to internal exchange '{to_exchange}' in vhost '{vhost.name}'")
    return JobRequest(
        verb,
        vhost,
        source,
        to_queue,
        to_exchange,
        _optional(call, "routing_key"),
        selector,
        limit,
        dry_run,
        begin,
        begin_ms,
        until,
        until_ms,
        _may_write(call, vhost.name),
        _may_publish(call, vhost.name),
        call.caller.user.name,
    )


def _may_write(call: ApiRequest, vhost: str) -> Any:
    caller, auth = call.caller, call.broker.auth

    def may_write(kind: str, name: str) -> bool:
        return caller.operator or auth.is_allowed(caller.user, vhost, "write", name or DEFAULT_EXCHANGE)

    return may_write


def _may_publish(call: ApiRequest, vhost: str) -> MayPublish:
    caller, auth = call.caller, call.broker.auth

    def may_publish(exchange: Exchange, keys: list[str]) -> bool:
        return forbidden_key(caller, auth, vhost, exchange, "write", keys) is None

    return may_publish


async def _source(call: ApiRequest, *, configure: bool) -> Queue:
    """Return the queue of the path, opened. Raises: NotAuthorised, ResourceNotFound, ResourceLocked, ResourceError."""
    queue = call.permitted_queue("read", *(("configure",) if configure else ()))
    await opened(queue)
    queue.prepare()
    return queue


async def get_jobs(call: ApiRequest) -> ApiResponse:
    """List jobs of the virtual hosts that the caller may see, or of the queue in the path."""
    jobs = [job for job in call.broker.jobs.all() if call.may_see(job.source.vhost_name)]
    if "queue" in call.params:
        vhost = call.vhost()
        name = call.params["queue"]
        jobs = [job for job in jobs if job.source.vhost_name == vhost.name and job.source.name == name]
    return reply([job_item(job) for job in jobs])


async def get_job(call: ApiRequest) -> ApiResponse:
    """Return one job. With `wait_ms` in the query, the answer waits so long for its end."""
    job = _job(call)
    await call.broker.jobs.until_ended(job, parse_int("wait_ms", call.query.get("wait_ms", 0), 0, WAIT_MS_MAX))
    return reply(job_item(job))


async def delete_job(call: ApiRequest) -> ApiResponse:
    """Stop a job and return it.

    The answer comes when the job has stopped, at the latest after WAIT_MS_MAX. An ended job does not change.
    """
    job = _job(call)
    call.check(job.source.vhost_name, "read" if job.kind == COPY else "configure", "queue", job.source.name)
    job.stop()
    await call.broker.jobs.until_ended(job, WAIT_MS_MAX)
    return reply(job_item(job))


def _job(call: ApiRequest) -> QueueJob:
    job = call.broker.jobs.get(call.params["job"])
    if job is None or not call.may_see(job.source.vhost_name):
        raise ResourceNotFound(f"no job '{call.params['job']}'")
    return job


def job_item(job: QueueJob) -> dict[str, Any]:
    """Return a job as the API shows it."""
    took_ms: int = max(1, (job.ended_ms or job.now_ms()) - job.begun_ms)
    selector = job.conditions.selector
    nothing = job.ended_ms > 0 and job.done_count == 0 and not job.conditions.left_counts
    return {
        "id": job.id,
        "action": job.kind,
        "vhost": job.source.vhost_name,
        "queue": job.source.name,
        **job.description,
        "limit": job.limit,
        "dry_run": job.counts_only,
        "state": job.state,
        "reason": job.reason,
        "done": job.done_count,
        "looked_at": job.conditions.looked_count,
        "under_way": job.under_way_count,
        "left": dict(job.conditions.left_counts),
        "hint": suggest_fix(selector.text) if nothing and selector is not None else "",
        "begun": job.begun_ms,
        "ended": job.ended_ms or None,
        "rate": int(job.done_count) * 1000 // took_ms,
    }


def _optional(call: ApiRequest, name: str) -> str | None:
    return call.text(name) if call.fields().get(name) is not None else None


def selector_of(text: object) -> Selector | None:
    """Return the selector, or None if it is missing or matches all. Raises: BadRequest."""
    if text is None:
        return None
    if not isinstance(text, str):
        raise BadRequest("where must be text")
    try:
        selector = parse_selector(text)
    except BadSelector as error:
        raise BadRequest(f"where: {error}") from None
    return None if selector is MATCHES_ALL else selector


def time_ms(value: object) -> int:
    """Return milliseconds since 1970 from a number or an ISO 8601 time (without a zone: UTC). None is 0.

    Raises: BadRequest.
    """
    if value is None:
        return 0
    if isinstance(value, str) and not value.isdigit():
        try:
            moment = datetime.fromisoformat(value)
            if moment.tzinfo is None:
                moment = moment.replace(tzinfo=UTC)
            return max(0, int(moment.timestamp() * 1000))
        except (ValueError, OverflowError):
            raise BadRequest("time must be in ms since 1970, or a time like 2026-11-22T14:30:00") from None
    return parse_int("time", value, 0, OFFSET_MAX)


_QUEUE: Final = "api/queues/{vhost}/{queue}"
ROUTES: Final = (
    ApiRoute("GET", _QUEUE + "/messages", Role.MANAGEMENT, get_messages),
    ApiRoute("GET", _QUEUE + "/jobs", Role.MANAGEMENT, get_jobs),
    ApiRoute("POST", _QUEUE + "/jobs", Role.MANAGEMENT, post_job),
    ApiRoute("GET", "api/amqpd/jobs", Role.MANAGEMENT, get_jobs),
    ApiRoute("GET", "api/amqpd/jobs/{job}", Role.MANAGEMENT, get_job),
    ApiRoute("DELETE", "api/amqpd/jobs/{job}", Role.MANAGEMENT, delete_job),
)
