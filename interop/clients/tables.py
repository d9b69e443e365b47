"""The tables of the matrix: which clients do which scenarios, and the broker beside amqpd."""

from __future__ import annotations

from typing import Final, NamedTuple

from .brokers import KAFKA, KAFKA_SIDES, RABBITMQ, SIDES
from .programs import CLIENTS, HTTP_CLIENTS, KAFKA_CLIENTS, TASK_FRAMEWORKS, Client
from .scenarios import HTTP_SCENARIOS, KAFKA_SCENARIOS, SCENARIOS, TASK_SCENARIOS, Scenario


class Table(NamedTuple):
    """Clients of one kind, and the catalogue of what they do.

    Attributes:
        peer: The broker with which amqpd is compared.
        own_vhosts: Each scenario of a client has a vhost of its own, because its names cannot be chosen.
    """

    name: str
    title: str
    clients: tuple[Client, ...]
    scenarios: tuple[Scenario, ...]
    sides: tuple[str, ...] = SIDES
    peer: str = RABBITMQ
    own_vhosts: bool = False

    def part(self, clients: list[str], scenarios: list[str], sides: list[str]) -> Table:
        """Return the table with these names only. No names mean all."""
        return self._replace(
            clients=tuple(each for each in self.clients if not clients or each.name in clients),
            scenarios=tuple(each for each in self.scenarios if not scenarios or each.name in scenarios),
            sides=tuple(each for each in self.sides if not sides or each in sides),
        )


AMQP: Final = Table("amqp", "AMQP 0-9-1", CLIENTS, SCENARIOS)
TASKS: Final = Table("tasks", "Frameworks for tasks", TASK_FRAMEWORKS, TASK_SCENARIOS, own_vhosts=True)
HTTP: Final = Table("http", "The HTTP API", HTTP_CLIENTS, HTTP_SCENARIOS, own_vhosts=True)
KAFKA_PROTOCOL: Final = Table("kafka", "Kafka's protocol", KAFKA_CLIENTS, KAFKA_SCENARIOS, KAFKA_SIDES, KAFKA)

TABLES: Final = (AMQP, TASKS, HTTP, KAFKA_PROTOCOL)
