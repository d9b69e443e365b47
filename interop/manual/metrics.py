"""docs/reference/metrics.md: every metric, from the families of the HTTP API."""

from __future__ import annotations

from amqpd.management import prometheus
from interop.manual.markdown import MADE, cell, code, table

HEAD = """\
# Metrics

Every metric that `/metrics` and its siblings have; how to get at them, and dashboards: [monitoring](../metrics.md).

`family` is what `/metrics/detailed?family=` calls it. On `/metrics` there is one sample each, or one for each protocol and kind of
queue. `rabbitmq_queue_get_*`, `rabbitmq_queue_messages_delivered_*` and the like are on `/metrics/detailed` alone, `*_offset` not on
`/metrics`. There, names begin with `rabbitmq_detailed_`.

"""


def text() -> str:
    found = {family.name: family for family in prometheus.ALL}
    theirs = [one for one in found.values() if not one.name.startswith("amqpd_")]
    ours = [one for one in found.values() if one.name.startswith("amqpd_")]
    parts = [MADE, HEAD]
    for heading, members in (("Of amqpd alone", ours), ("With RabbitMQ's names", theirs)):
        rows = [(code(one.name), one.kind, code(one.group), cell(one.help)) for one in members]
        parts.append(f"## {heading}\n\n{table(('metric', 'kind', 'family', 'meaning'), rows)}\n")
    return "".join(parts).rstrip("\n") + "\n"
