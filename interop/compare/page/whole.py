"""docs/compatibility.md: what is equal for a user of RabbitMQ, what differs and why, and what is missing.

Made from the record (RabbitMQ's answers) and from the lists that tests check: an unlisted difference of a conversation,
a call or a metric fails a test, and so does an unneeded entry. So the page needs no broker, and a test regenerates and
compares it. `make compare` runs all comparisons and then writes it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from interop.compare.page import amqp, api, commands, definitions, metrics, versions
from interop.compare.page.markdown import table

PATH: Final = Path(__file__).parents[3] / "docs" / "compatibility.md"
PARTS: Final = (versions, amqp, api, commands, definitions, metrics)
HEAD: Final = """\
# Beside RabbitMQ

This page lists how amqpd differs from RabbitMQ for clients, scripts and other programs. It compares the answers of
{peer} and amqpd to the same steps. Answers that are not listed were equal. `make compare` makes the page from
[RabbitMQ's recorded answers](../interop/compare/README.md) and from lists of known differences. A difference in no
list fails a test, and so does a listed one that no longer exists. [Clients](clients.md) shows which client libraries
work, in a matrix.

The main differences: amqpd is one node with its own disk, or [several over an Apache Kafka](cluster.md), which this
page does not cover. It speaks AMQP 0-9-1 only: no AMQP 1.0, MQTT, STOMP or stream protocol. It has no federation, no
shovel, and no logins by LDAP or OAuth 2. If you need one of these, stay with RabbitMQ. [Streams](streams.md) are
those of AMQP; `x-queue-type: quorum` is a durable queue with delivery limits, which keeps transient messages, too.

"""
TAIL: Final = """
## How to try it yourself

<!-- not run: minutes, and a RabbitMQ; CI runs what holds this page -->
```sh
make compare                  # compares your checkout with RabbitMQ's recorded answers, and writes this page
make compare-record           # records the answers again, with a RabbitMQ of its own (Debian's package rabbitmq-server)
make test-peer                # tests beside a live RabbitMQ: recordings played again, definitions there and back
```
"""


def text() -> str:
    """Return the whole page. Cost: reads the record, 0.1 s."""
    parts = [part.section() for part in PARTS]
    lines = [HEAD.format(peer=amqp.peer())]
    lines.append(table(("what", "compared", "different", "missing"), [part.row for part in parts]))
    lines += [f"\n## {part.title}\n\n{part.text}" for part in parts]
    return "".join(lines) + TAIL


def write() -> bool:
    """Write the page. Return True if it has changed."""
    made = text()
    if PATH.exists() and PATH.read_text("utf-8") == made:
        return False
    PATH.write_text(made, "utf-8")
    return True
