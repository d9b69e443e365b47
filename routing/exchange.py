"""Exchange types: what one is, which there are, and how guests join.

An exchange type is the matching structure of one exchange and nothing else: names, durability, alternate exchanges and
permissions belong to the vhost. The broker makes one instance per exchange, tells it of every binding, and asks it
where a message goes. Destinations are opaque here; they need a hash and an equality, no more.

`BUILT_IN` holds the types of this package. A name that is not among them is looked for among the installed entry points
of the group `amqpd.exchange_types` (name = type name, value = a callable without arguments that returns an
ExchangeType). Guests are looked for only on such a miss, so an ordinary start reads no package metadata. A guest cannot
replace a built-in. A guest that cannot be loaded is logged, and its type counts as unknown.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Final, Protocol, TypeAlias

from amqpd.routing.direct import Direct
from amqpd.routing.errors import BadBinding, RoutingError, UnknownExchangeType
from amqpd.routing.fanout import Fanout
from amqpd.routing.headers import Headers
from amqpd.routing.topic import Topic

__all__ = [
    "Arguments",
    "BadBinding",
    "ExchangeType",
    "FieldValue",
    "RoutingError",
    "UnknownExchangeType",
    "exchange_type",
    "exchange_type_names",
]

log = logging.getLogger(__name__)

ENTRY_POINT_GROUP: Final = "amqpd.exchange_types"

FieldValue: TypeAlias = object
"""A decoded field: bool int float str bytes bytearray Decimal None list dict, or a subclass of int for a timestamp."""

Arguments: TypeAlias = Mapping[str, FieldValue]


class ExchangeType(Protocol):
    """The matching structure of one exchange."""

    @property
    def needs_headers(self) -> bool:
        """True when `match` looks at headers: such a route may not be cached by its routing key."""

    def validate(self, key: str, arguments: Arguments) -> None:
        """Called before `bind`. Raises: BadBinding, whose text goes to the client."""

    def bind(self, key: str, arguments: Arguments, destination: object) -> None:
        """Adds a binding. The caller guarantees that this (key, arguments, destination) is not there yet."""

    def unbind(self, key: str, arguments: Arguments, destination: object) -> None:
        """Removes a binding. The caller guarantees that it is there; others to the same destination stay."""

    def match(self, key: str, headers: Arguments | None) -> set[object]:
        """Destinations of a message, each once.

        key: the routing key, at most 255 bytes as sent. headers: decoded; None when the message has none or when
        `needs_headers` is False. Raises: nothing.
        The set may be the exchange type's own: callers neither change it nor keep it beyond the next bind or unbind.
        """


BUILT_IN: Final[dict[str, Callable[[], ExchangeType]]] = {
    "direct": Direct,
    "fanout": Fanout,
    "headers": Headers,
    "topic": Topic,
}


def exchange_type(name: str) -> Callable[[], ExchangeType]:
    """What makes an empty exchange of this type.

    Cost: a dict look-up; the first miss reads the metadata of the installed packages (milliseconds), once.
    Raises: UnknownExchangeType.
    """
    built_in = BUILT_IN.get(name)
    return built_in if built_in is not None else _load_guest(name)


def exchange_type_names() -> list[str]:
    """Every name `exchange_type` may answer to, sorted; guests are listed without being loaded."""
    return sorted(BUILT_IN.keys() | guests().keys())


@cache
def guests() -> dict[str, EntryPoint]:
    """Installed guests by name; of two with one name the first found serves, and the other is logged."""
    found: dict[str, EntryPoint] = {}
    for entry_point in entry_points(group=ENTRY_POINT_GROUP):
        if entry_point.name in BUILT_IN or entry_point.name in found:
            log.warning("exchange type %s: %s is ignored, the name is taken", entry_point.name, entry_point.value)
        else:
            found[entry_point.name] = entry_point
    return found


def forget_guests() -> None:
    """Has installed packages looked at afresh with the next miss."""
    guests.cache_clear()
    _load_guest.cache_clear()


@cache
def _load_guest(name: str) -> Callable[[], ExchangeType]:
    # Only successes are remembered by `cache`, so names that clients make up do not pile up here.
    guest = guests().get(name)
    if guest is None:
        raise UnknownExchangeType(name)
    try:
        make: object = guest.load()
    except Exception as error:  # a guest may fail in any way; to the client its type simply does not exist
        log.exception("exchange type %s: cannot load %s", name, guest.value)
        raise UnknownExchangeType(name) from error
    if not callable(make):
        log.error("exchange type %s: %s is not callable", name, guest.value)
        raise UnknownExchangeType(name)
    return make
