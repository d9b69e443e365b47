"""Bindings: of all vhosts, of a queue or exchange, between two objects, and one by its properties key.

The properties key identifies a binding among those between the same source and destination:

- `~` for an empty routing key without arguments,
- the routing key without arguments, percent-encoded as in a form, with `~` as `%7E`,
- with arguments, the routing key, `~` and a hash of the arguments.

In a URL the key is percent-encoded once more, as every name is.

Every queue is bound to the default exchange under its name. These bindings are listed and cannot be changed.
"""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64encode
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote, quote_plus, unquote

from amqpd.broker.queue.queue import Queue
from amqpd.broker.vhost import declare
from amqpd.broker.vhost.pending import wait_done
from amqpd.management.listing import amqp_to_json, listing, object_reply
from amqpd.management.request import NO_CONTENT, ApiRequest, ApiResponse, BadRequest, ResourceNotFound, Role
from amqpd.management.router import ApiRoute
from amqpd.protocol.field_table import encode_table

if TYPE_CHECKING:
    from collections.abc import Callable

    from amqpd.broker.vhost.exchange import Binding, Exchange
    from amqpd.broker.vhost.vhost import VHost


class BindingItem(NamedTuple):
    """One entry of a list of bindings."""

    source: str
    vhost: str
    destination: str
    destination_type: str
    routing_key: str
    arguments: dict[str, object]


def binding_item(binding: Binding) -> BindingItem:
    vhost = ""
    destination = binding.destination
    if binding.destination_type == "queue":
        vhost = destination.vhost_name  # type: ignore[union-attr]  # a queue, as its type says
    return BindingItem(
        binding.source.name, vhost, destination.name, binding.destination_type, binding.routing_key, binding.arguments
    )


def default_binding(queue: Queue) -> BindingItem:
    return BindingItem("", queue.vhost_name, queue.name, "queue", queue.name, {})


def properties_key(routing_key: str, arguments: dict[str, object]) -> str:
    """Return the properties key: `~`, `key` or `key~hash`.

    The hash is over the encoded arguments, so an int and a float of the same value differ. RabbitMQ computes
    another hash; clients must not interpret the key. Raises: CodecError.
    """
    if not routing_key and not arguments:
        return "~"
    key = quote_plus(routing_key, errors="surrogateescape").replace("~", "%7E")
    if not arguments:
        return key
    digest = hashlib.sha256(encode_table(arguments)).digest()[:16]
    return f"{key}~{urlsafe_b64encode(digest).decode().rstrip('=')}"


def render_binding(item: BindingItem) -> dict[str, Any]:
    return {
        "source": item.source,
        "vhost": item.vhost,
        "destination": item.destination,
        "destination_type": item.destination_type,
        "routing_key": item.routing_key,
        "arguments": amqp_to_json(item.arguments),
        "properties_key": properties_key(item.routing_key, item.arguments),
    }


Names = tuple[str, ...]
_KEYS: Final = ("routing_key", "source", "destination")


def _source(item: BindingItem) -> Names:
    return (item.source,)


def by_source(item: BindingItem) -> Names:
    """Return the texts in which `name` is searched in a list of bindings with one destination."""
    return (item.source, item.routing_key)


def _by_destination(item: BindingItem) -> Names:
    return (item.destination, item.routing_key)


async def bindings_reply(
    call: ApiRequest,
    found: list[tuple[VHost, list[Queue | Binding]]],
    names_of: Callable[[BindingItem], Names] = _source,
) -> ApiResponse:
    """Return the reply for a list of bindings.

    Args:
        found: vhosts with snapshots of their bindings. A queue represents its default binding.
        names_of: the texts in which `name` is searched.

    Items are created one by one as they are encoded: freeing 200,000 items at once would block the loop.
    """
    things: list[Queue | Binding] = []
    vhost_of: dict[Exchange, str] = {}
    for vhost, its in found:
        things += its
        vhost_of |= dict.fromkeys(vhost.exchanges.values(), vhost.name)

    def item(thing: Queue | Binding) -> BindingItem:
        if isinstance(thing, Queue):
            return default_binding(thing)
        return binding_item(thing)._replace(vhost=vhost_of[thing.source])

    def key(column: str, thing: Queue | Binding) -> object:
        return getattr(item(thing), column)

    keys = {column: partial(key, column) for column in _KEYS}
    return await listing(call, things, lambda each: render_binding(item(each)), lambda each: names_of(item(each)), keys)


async def get_bindings(call: ApiRequest) -> ApiResponse:
    """List bindings, of all virtual hosts or of one."""
    return await bindings_reply(
        call, [(vhost, [*vhost.queues.values(), *vhost.all_bindings()]) for vhost in call.vhosts()]
    )


async def get_source_bindings(call: ApiRequest) -> ApiResponse:
    """List bindings from the exchange; `name` is searched in destinations and routing keys."""
    vhost = call.vhost()
    try:
        exchange = call.exchange()
    except ResourceNotFound:
        return await bindings_reply(call, [])  # rabbit: nothing is bound to what there is not
    if exchange.matcher is None:
        return await bindings_reply(call, [(vhost, [*vhost.queues.values()])], _by_destination)
    return await bindings_reply(call, [(vhost, [*exchange.bindings.values()])], _by_destination)


async def get_destination_bindings(call: ApiRequest) -> ApiResponse:
    """List bindings to the exchange; `name` is searched in sources and routing keys."""
    vhost = call.vhost()
    try:
        exchange = call.exchange()
    except ResourceNotFound:
        return await bindings_reply(call, [])
    return await bindings_reply(call, [(vhost, [*vhost.bindings_to(exchange)])], by_source)


class BindingEnds(NamedTuple):
    """The exchange and the destination in a path below /bindings."""

    source: Exchange
    destination: Queue | Exchange


def _ends(call: ApiRequest) -> BindingEnds:
    destination = call.queue() if "queue" in call.params else call.exchange("target")
    return BindingEnds(call.exchange(), destination)


def _between(ends: BindingEnds) -> list[Binding]:
    """Return the bindings, without the one of the default exchange, which is not stored."""
    return [binding for binding in ends.source.bindings.values() if binding.destination is ends.destination]


async def get_between(call: ApiRequest) -> ApiResponse:
    """List bindings from the exchange to the destination."""
    vhost = call.vhost()
    try:
        ends = _ends(call)
    except ResourceNotFound:
        return await bindings_reply(call, [])
    if ends.source.matcher is None:
        return await bindings_reply(call, [(vhost, [ends.destination] if isinstance(ends.destination, Queue) else [])])
    return await bindings_reply(call, [(vhost, [*_between(ends)])])


def _check(call: ApiRequest, ends: BindingEnds, routing_key: str) -> None:
    """Check the permissions of queue.bind and exchange.bind. Raises: NotAuthorised, AccessRefused, ResourceLocked."""
    vhost = call.vhost()
    vhost.check_not_default(ends.source.name)
    if "queue" in call.params:
        call.check(vhost.name, "write", "queue", ends.destination.name)
        vhost.check_exclusive(ends.destination, None)  # type: ignore[arg-type]  # the path names a queue
    else:
        vhost.check_not_default(ends.destination.name)
        call.check(vhost.name, "write", "exchange", ends.destination.name)
    call.check(vhost.name, "read", "exchange", ends.source.name)
    call.check_topic(vhost.name, ends.source, "read", [routing_key])


async def post_binding(call: ApiRequest) -> ApiResponse:
    """Create a binding; 201 with its location, also if it exists already."""
    ends = _ends(call)
    key = call.text("routing_key", "")
    if len(key.encode()) > 255:
        raise BadRequest("a routing key has at most 255 bytes")
    arguments = call.arguments()
    _check(call, ends, key)
    await wait_done(partial(declare.bind, call.vhost(), ends.source, ends.destination, key, arguments))
    names = [call.vhost().name, "e", ends.source.name]
    names += ["q" if "queue" in call.params else "e", ends.destination.name, properties_key(key, arguments)]
    # rabbit: relative to the request's path
    location = "/".join(quote(name, safe="") for name in names[-2:])
    return ApiResponse(201, headers={"Location": location})


def _find(call: ApiRequest, ends: BindingEnds) -> Binding:
    wanted = call.params["props"]
    for binding in _between(ends):
        if properties_key(binding.routing_key, binding.arguments) == wanted:
            return binding
    for binding in _between(ends):
        # Some clients encode the routing key only once.
        if binding.routing_key == wanted and not binding.arguments:
            return binding
    for binding in _between(ends):
        # Ansible does not encode the properties key. rabbit: decodes it once more than the path.
        if unquote(properties_key(binding.routing_key, binding.arguments), errors="surrogateescape") == wanted:
            return binding
    raise ResourceNotFound(f"no binding '{wanted}' from '{ends.source.name}' to '{ends.destination.name}'")


async def get_binding(call: ApiRequest) -> ApiResponse:
    """Return one binding."""
    ends = _ends(call)
    if ends.source.matcher is None and isinstance(ends.destination, Queue):
        name = ends.destination.name
        if call.params["props"] in (properties_key(name, {}), name):
            return object_reply(call, render_binding(default_binding(ends.destination)))
    binding = _find(call, ends)
    return object_reply(call, render_binding(binding_item(binding)._replace(vhost=call.vhost().name)))


async def delete_binding(call: ApiRequest) -> ApiResponse:
    """Delete the binding."""
    ends = _ends(call)
    binding = _find(call, ends)
    _check(call, ends, binding.routing_key)
    which = (ends.source, ends.destination, binding.routing_key, binding.arguments)
    await wait_done(partial(declare.unbind, call.vhost(), *which))
    return NO_CONTENT


_TO_QUEUE: Final = "api/bindings/{vhost}/e/{exchange}/q/{queue}"
_TO_EXCHANGE: Final = "api/bindings/{vhost}/e/{exchange}/e/{target}"
ROUTES: Final = (
    ApiRoute("GET", "api/exchanges/{vhost}/{exchange}/bindings/source", Role.MANAGEMENT, get_source_bindings),
    ApiRoute("GET", "api/exchanges/{vhost}/{exchange}/bindings/destination", Role.MANAGEMENT, get_destination_bindings),
    ApiRoute("GET", "api/bindings", Role.MANAGEMENT, get_bindings),
    ApiRoute("GET", "api/bindings/{vhost}", Role.MANAGEMENT, get_bindings),
    ApiRoute("GET", _TO_QUEUE, Role.MANAGEMENT, get_between),
    ApiRoute("POST", _TO_QUEUE, Role.MANAGEMENT, post_binding),
    ApiRoute("GET", _TO_QUEUE + "/{props}", Role.MANAGEMENT, get_binding),
    ApiRoute("DELETE", _TO_QUEUE + "/{props}", Role.MANAGEMENT, delete_binding),
    ApiRoute("GET", _TO_EXCHANGE, Role.MANAGEMENT, get_between),
    ApiRoute("POST", _TO_EXCHANGE, Role.MANAGEMENT, post_binding),
    ApiRoute("GET", _TO_EXCHANGE + "/{props}", Role.MANAGEMENT, get_binding),
    ApiRoute("DELETE", _TO_EXCHANGE + "/{props}", Role.MANAGEMENT, delete_binding),
)
