"""Exchange types that choose one of several destinations, wrapped so that each choice is recorded."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from program_routing import CHOOSING

from amqpd.routing import registry
from amqpd.routing.message_exchange import MessageExchangeType, destination_label


class RecordingExchangeType(MessageExchangeType):
    """A wrapper that records the choices of an exchange. choices: routing key and label of each chosen destination."""

    def __init__(self, matcher: Any) -> None:
        super().__init__()
        self.matcher = matcher
        self.depends_on = matcher.depends_on
        self.choices: list[tuple[str, str]] = []

    def configure(self, arguments: Any) -> None:
        self.matcher.configure(arguments)
        self.depends_on = self.matcher.depends_on

    def validate(self, key: str, arguments: Any) -> None:
        self.matcher.validate(key, arguments)

    def validate_destination(self, kind: str) -> None:
        self.matcher.validate_destination(kind)

    def bind(self, key: str, arguments: Any, destination: object) -> None:
        self.matcher.bind(key, arguments, destination)

    def unbind(self, key: str, arguments: Any, destination: object) -> None:
        self.matcher.unbind(key, arguments, destination)

    def route(self, keys: list[str], message: Any) -> Collection[object]:
        found = self.matcher.route(keys, message)
        self.choices += [(keys[0], destination_label(each)) for each in found]
        return found


@contextmanager
def record_choices() -> Iterator[None]:
    """Record the choices of all exchanges that are declared within the context."""
    before = dict(registry.BUILT_IN)
    for name in CHOOSING:
        registry.BUILT_IN[name] = _recording(before[name])
    try:
        yield
    finally:
        registry.BUILT_IN.update(before)


def _recording(make: Any) -> Any:
    return lambda: RecordingExchangeType(make())
