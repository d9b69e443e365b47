"""Exchange types by name: the built-in types, and plugins.

`BUILT_IN` holds the types of this package. Any other name is looked up among the installed entry points of the group
`amqpd.exchange_types`: the entry point's name is the type's name, its value a callable without arguments that returns
an ExchangeType. The look-up happens only on a miss, so a normal start reads no package metadata. A plugin cannot
replace a built-in type. A plugin that cannot be loaded is logged, and its type is unknown to clients: a client that
declares an exchange must not be able to cause an internal error (541).
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
from amqpd.routing.murmur2 import Murmur2Hash
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
    "x-murmur2-hash": Murmur2Hash,
    "x-random": Random,
    "x-recent-history": RecentHistory,
}


def exchange_type_factory(name: str) -> Callable[[], ExchangeType]:
    """Return the callable that creates an exchange of this type.

    Cost: a dict look-up. The first miss reads the metadata of all installed packages once (milliseconds).
    Raises: UnknownExchangeType.
    """
    built_in = BUILT_IN.get(name)
    return built_in if built_in is not None else _load_plugin(name)


def exchange_type_names() -> list[str]:
    """Return all known type names, sorted. Plugins are listed without loading them."""
    return sorted(BUILT_IN.keys() | plugins().keys())


@cache
def plugins() -> dict[str, EntryPoint]:
    """Return the installed plugins by type name. If two have the same name, the first wins and the other is logged."""
    found: dict[str, EntryPoint] = {}
    for entry_point in entry_points(group=ENTRY_POINT_GROUP):
        if entry_point.name in BUILT_IN or entry_point.name in found:
            log.warning("exchange type %s: %s is ignored, the name is taken", entry_point.name, entry_point.value)
        else:
            found[entry_point.name] = entry_point
    return found


@cache
def _load_plugin(name: str) -> Callable[[], ExchangeType]:
    # `cache` keeps results, not exceptions: names that clients invent do not accumulate.
    plugin = plugins().get(name)
    if plugin is None:
        raise UnknownExchangeType(name)
    try:
        factory: object = plugin.load()
        exchange: object = factory() if callable(factory) else None
    except Exception as error:  # a plugin can fail in any way; for the client its type does not exist
        log.exception("exchange type %s: cannot load %s", name, plugin.value)
        raise UnknownExchangeType(name) from error
    if not callable(factory) or not isinstance(getattr(exchange, "depends_on", None), int):
        log.error("exchange type %s: %s does not create an exchange type (depends_on is missing)", name, plugin.value)
        raise UnknownExchangeType(name)
    return factory
