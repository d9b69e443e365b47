"""One record of the audit log: what of an event goes into it, and the message that it becomes.

The body is a JSON object, the headers are those fields of it that readers select by (`event = 'queue.deleted' AND name
= 'orders'`); the routing key and the property `type` are the event, `timestamp` and `time` say when. Whatever is empty
is left out.

| field | |
|---|---|
| event | `queue.deleted`, ... : the keys of RULES, mostly those of RabbitMQ's event exchange |
| time | ISO 8601, UTC, to the millisecond |
| user | who did it; `rmq-cli` is the operator (amqpctl), `rmq-internal` the broker by itself |
| front_end, peer, connection | `amqp`, `http` or `amqpctl`; address and port; the connection's name |
| vhost, name | where, and of what: the queue, exchange, user, policy, ... |
| result, reason | `ok` or `refused`, and why |
| count | how often: of what is repeated (repeats.py) |
| details | the rest that RULES names |

RULES is a list of what may be recorded, not of what may not: no password, hash, parameter's value or message gets into
a record by being forgotten here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, NamedTuple

from amqpd.broker.message import Envelope, Message, make_message
from amqpd.protocol.field_table import Long, Timestamp
from amqpd.protocol.properties import Properties, encode_properties, scan

NAME_MAX: Final = 255
TEXT_MAX: Final = 512
DETAILS_SIZE_MAX: Final = 4096
"""Bytes of JSON: arguments and definitions that are larger are told by their size."""

OK: Final = "ok"
REFUSED: Final = "refused"


class Rule(NamedTuple):
    """name: the event's field that says of what it is. details: those that are kept."""

    name: str
    details: tuple[str, ...] = ()


_PERMISSION: Final = Rule("user", ("configure", "write", "read"))
_TOPIC_PERMISSION: Final = Rule("user", ("exchange", "write", "read"))
_BINDING: Final = Rule("destination_name", ("source_name", "destination_kind", "routing_key", "arguments"))
_VHOST: Final = Rule("name", ("description", "tags", "default_queue_type"))
_LIMITS: Final = ("max-connections", "max-queues", "max-channels")
_POLICY: Final = Rule("name", ("pattern", "apply-to", "priority", "definition"))
_LOGIN: Final = Rule(
    "name", ("auth_mechanism", "users", "peer_cert_subject", "peer_cert_issuer", "peer_cert_validity")
)

LOGIN: Final = "user.authentication.success"
LOGIN_REFUSED: Final = "user.authentication.failure"
ACCESS_REFUSED: Final = "access.refused"
REQUEST: Final = "admin.request"
LOST: Final = "audit.lost"

RULES: Final[dict[str, Rule]] = {
    "queue.created": Rule("name", ("durable", "auto_delete", "arguments")),
    "queue.deleted": Rule("name"),
    "queue.purged": Rule("name", ("messages",)),
    "queue.messages": Rule(
        "name", ("action", "job", "to_queue", "to_exchange", "routing_key", "where", "limit", "dry_run")
    ),
    "exchange.created": Rule("name", ("type", "durable", "auto_delete", "internal", "arguments")),
    "exchange.deleted": Rule("name"),
    "binding.created": _BINDING,
    "binding.deleted": _BINDING,
    "vhost.created": _VHOST,
    "vhost.updated": _VHOST,
    "vhost.deleted": Rule("name"),
    "vhost.limits.set": Rule("vhost", _LIMITS),
    "vhost.limits.cleared": Rule("vhost"),
    "user.created": Rule("name"),
    "user.deleted": Rule("name"),
    "user.password.changed": Rule("name"),
    "user.tags.set": Rule("name", ("tags",)),
    "user.limits.set": Rule("username", _LIMITS),
    "user.limits.cleared": Rule("username"),
    "permission.created": _PERMISSION,
    "permission.deleted": _PERMISSION,
    "topic.permission.created": _TOPIC_PERMISSION,
    "topic.permission.deleted": _TOPIC_PERMISSION,
    "policy.set": _POLICY,
    "policy.cleared": Rule("name"),
    "operator.policy.cleared": Rule("name"),
    "parameter.set": Rule("name", ("component",)),
    "parameter.cleared": Rule("name", ("component",)),
    "alarm.set": Rule("source"),
    "alarm.cleared": Rule("source"),
    "connection.force_closed": Rule("name", ("user", "why")),
    "definitions.imported": Rule("name", ("items",)),
    LOGIN: _LOGIN,
    LOGIN_REFUSED: _LOGIN,
    ACCESS_REFUSED: Rule("name"),
    REQUEST: Rule("name"),
    LOST: Rule("name"),
}
TOLD_APART: Final = frozenset({"vhost-limits", "operator_policy", "policy"})
"""Components of parameters whose changes have events of their own."""


class Where(NamedTuple):
    """From where it was done. peer: address and port, as text; empty: within the broker, or its unix socket."""

    front_end: str = "broker"
    peer: str = ""
    connection: str = ""


class Record(NamedTuple):
    """about: fields of the event, of which its rule takes some; `vhost` and `reason` always. at_ms: since 1970."""

    event: str
    at_ms: int
    user: str
    where: Where
    about: Mapping[str, object]
    result: str = OK
    times: int = 1


def fields_of(record: Record) -> dict[str, object]:
    """What its body says."""
    rule = RULES[record.event]
    about = record.about
    fields: dict[str, object] = {
        "event": record.event,
        "time": datetime.fromtimestamp(record.at_ms / 1000, UTC).isoformat(timespec="milliseconds")[:-6] + "Z",
        "user": _text(record.user, NAME_MAX),
        "front_end": record.where.front_end,
        "peer": record.where.peer,
        "connection": _text(record.where.connection, TEXT_MAX),
        "vhost": _text(about.get("vhost", ""), NAME_MAX),
        "name": _text(about.get(rule.name, ""), TEXT_MAX),
        "result": record.result,
        "reason": _text(about.get("reason", ""), TEXT_MAX),
        "count": record.times if record.times != 1 else "",
    }
    details = {each: about[each] for each in rule.details if about.get(each) not in (None, {})}
    told = {name: value for name, value in fields.items() if value != ""}
    if details:
        size = len(json.dumps(details, default=_plain))
        told["details"] = details if size <= DETAILS_SIZE_MAX else {"omitted_bytes": size}
    return told


def message_of(record: Record) -> Message:
    """The message that is appended. Cost: 40 us."""
    fields = fields_of(record)
    headers: dict[str, object] = {
        name: Long(value) if isinstance(value, int) else value
        for name, value in fields.items()
        if name not in ("time", "details", "reason")
    }
    properties = encode_properties(
        Properties(
            content_type="application/json",
            headers=headers,
            delivery_mode=2,
            timestamp=Timestamp(record.at_ms // 1000),
            type=record.event,
        )
    )
    body = json.dumps(fields, default=_plain).encode()
    info = scan(properties, 0, len(properties))
    return make_message(Envelope("", record.event), properties, body, True, info)


def _text(value: object, most: int) -> str:
    """A name came from a client: it may be long, and no UTF-8."""
    text = value if isinstance(value, str) else str(value)
    return text[:most].encode("utf-8", "replace").decode()[:most]


def _plain(value: object) -> object:
    """What a field table has beyond JSON."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
