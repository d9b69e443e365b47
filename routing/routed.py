"""A message as an exchange sees it that is given its routing key and headers, and nothing else of it. Compiled by
mypyc."""

from __future__ import annotations

from typing import final

from amqpd.routing.selector_fields import ROUTING_KEY
from amqpd.routing.selector_ast import Selectable


@final
class Routed(Selectable):
    """headers: decoded, not to be changed."""

    def __init__(self, key: str, headers: dict[str, object]) -> None:
        self._key = key
        self._headers = headers

    def headers(self) -> dict[str, object]:
        return self._headers

    def field(self, number: int) -> object:
        return self._key if number == ROUTING_KEY else None
