"""Exchange types by name: those of this package, and guests.

`BUILT_IN` holds the types of this package. A name that is not among them is looked for among the installed entry points
of the group `amqpd.exchange_types` (name = type name, value = a callable without arguments that returns an
ExchangeType). Guests are looked for only on such a miss, so an ordinary start reads no package metadata. A guest cannot
replace a built-in. A guest that cannot be loaded is logged, and its type counts as unknown.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Final

from amqpd.routing.base import ExchangeType, UnknownExchangeType
from amqpd.routing.direct_fanout import Direct, Fanout
from amqpd.routing.hashing import ConsistentHash, LocalRandom, ModulusHash, Random
from amqpd.routing.headers import Headers
from amqpd.routing.jms_topic import JmsTopic
from amqpd.routing.stateful import Deduplication, RecentHistory
from amqpd.routing.topic import Topic

log = logging.getLogger(__name__)

ENTRY_POINT_GROUP: Final = "amqpd.exchange_types"

BUILT_IN: Final[dict[str, Callable[[], ExchangeType]]] = {
    "direct": Direct,
    "fanout": Fanout,
    "headers": Headers,
    "topic": Topic,
    "x-consistent-hash": ConsistentHash,
    "x-jms-topic": JmsTopic,
    "x-local-random": LocalRandom,
    "x-message-deduplication": Deduplication,
    "x-modulus-hash": ModulusHash,
    "x-random": Random,
    "x-recent-history": RecentHistory,
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
