"""The scenarios, and the targets of amqpd.

A scenario is a preset of the generator (amqpload.c) plus options. A target compares the same scenario in the same
round. For `rate`, amqpd's figure divided by the peer's must be at least `must` (better: `aim`); for other figures
(latency, memory) at most. Targets are against RabbitMQ 3.10.8 with every feature of amqpd enabled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

RATE = "rate"


@dataclass(frozen=True)
class Target:
    """figure: a key of a run's result. must, aim: factors of the peer's figure."""

    figure: str
    must: float
    aim: float

    @property
    def more_is_better(self) -> bool:
        return self.figure == RATE


@dataclass(frozen=True)
class Scenario:
    """One row of the report.

    group: rows measured together (S4's drain needs S4's publish). coalesce_us: the generator's sleep between passes,
    which makes the generator cheaper, not the broker; 0 if latency or a small window is measured. longer: factor of
    length and warm-up, if the slowest thousandth counts or the set-up needs time.
    """

    name: str
    what: str
    targets: tuple[Target, ...] = ()
    interpreted: Target | None = None
    group: str = ""
    coalesce_us: int = 0
    longer: float = 1.0

    @property
    def run_with(self) -> str:
        return self.group or self.name


def _faster(must: float, aim: float) -> tuple[Target, ...]:
    return (Target(RATE, must, aim),)


SCENARIOS: tuple[Scenario, ...] = (
    Scenario("S1", "16 B transient, auto-ack", _faster(12, 30), Target(RATE, 2, 2), coalesce_us=50),
    Scenario("S2", "1 KiB transient, auto-ack", _faster(5, 10), coalesce_us=50),
    Scenario(
        "S3",
        "1 KiB persistent, durable queue, confirms (window 1000) after the sync, acks (prefetch 500, every 100)",
        _faster(5, 12),
        Target(RATE, 3, 3),
    ),
    Scenario(
        "S4pub",
        "persistent 1 KiB with confirms into a durable queue without consumer",
        (Target(RATE, 6, 18), Target("anon_peak_mb", 1 / 20, 1 / 40)),
        group="S4",
    ),
    Scenario("S4drain", "that backlog consumed, acks (prefetch 500, every 100)", _faster(6, 20), group="S4"),
    Scenario("S4cold", "a backlog drained after a restart, page cache dropped", _faster(4, 10)),
    Scenario("S5", "fanout to 10 queues with a consumer each, 16 B; deliveries", _faster(10, 45), coalesce_us=50),
    Scenario("S6", "topic exchange, 10,000 bindings, 1,000 keys over and over", _faster(50, 200), coalesce_us=50),
    Scenario("S6u", "the same bindings, no routing key comes twice", _faster(15, 40), coalesce_us=50),
    Scenario(
        "S7",
        "latency at 1,000 messages a second, 16 B",
        (Target("p50_us", 1 / 2, 1 / 3), Target("p99_us", 1 / 2, 1 / 4)),
        longer=3,
    ),
    Scenario("S1v", "S1 with bodies of 16 to 48 B, another size each", _faster(25, 40), coalesce_us=50),
    Scenario("S1h", "S1, five headers, one an id of its own, and an expiration each", _faster(15, 25), coalesce_us=50),
    Scenario(
        "S1c",
        "S1 with Celery task messages: 16 headers, correlation-id, reply-to, ids of their own, 60 to 260 B",
        _faster(15, 25),
        coalesce_us=50,
    ),
    Scenario("S3h", "S3, five headers, one an id of its own, and an expiration each", _faster(13, 18)),
    Scenario("S3c", "S3 with Celery task messages: ids of their own, 60 to 260 B", _faster(15, 20)),
    Scenario("S3x200", "S3 over 200 durable queues with a consumer connection each", _faster(5, 12), longer=2),
    Scenario("S3x50", "S3 with 50 consumers of one queue (prefetch 100), a header that names one of 10,000 groups"),
    Scenario("S3g", "the same in a queue with message groups (x-group-by)"),
    Scenario("ST3", "S3 into a stream, its consumer at the end of it", _faster(5, 12)),
    Scenario(
        "STpub",
        "persistent 1 KiB with confirms into a stream without consumer",
        _faster(5, 12),
        group="ST",
    ),
    Scenario("ST1", "that stream read by one, acks (prefetch 2000, every 500)", _faster(10, 20), group="ST"),
    Scenario("ST10", "the same by ten, each from another place on", _faster(10, 20), group="ST"),
    Scenario("50x50", "50 publishers, 50 queues, 50 consumers, 16 B transient, auto-ack", coalesce_us=50),
    Scenario("window1", "S1 with 1 message in flight"),
    Scenario("window10", "S1 with 10 messages in flight"),
    Scenario("window100", "S1 with 100 messages in flight"),
)
"""In the order of the report."""

DURABLE = frozenset({"S3", "S3h", "S3c", "S3x200", "S3x50", "S3g", "S4", "S4cold", "ST", "ST3"})
"""Scenarios run last in a round, so that their pending writes do not disturb the others."""


def select(names: Sequence[str]) -> list[str]:
    """Return the groups to run, in the order of a round, those without disk access first. names: scenarios or groups,
    in any case.

    Raises: ValueError for an unknown name.
    """
    wanted = []
    for name in names:
        found = [each.run_with for each in SCENARIOS if name.lower() in {each.name.lower(), each.group.lower()}]
        if not found:
            raise ValueError(f"no scenario {name}; there are {' '.join(each.name for each in SCENARIOS)}")
        wanted.append(found[0])
    order = list(dict.fromkeys(each.run_with for each in SCENARIOS))
    return sorted(set(wanted), key=lambda group: (group in DURABLE, order.index(group)))


def scenario(name: str) -> Scenario:
    """Return the scenario with this exact name. Raises: StopIteration if there is none."""
    return next(each for each in SCENARIOS if each.name == name)
