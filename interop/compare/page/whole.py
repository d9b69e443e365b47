"""docs/compatibility.md: what a user of RabbitMQ finds the same, what is otherwise and why, what is missing.

Made of what is on record (what RabbitMQ answered) and of the lists that the tests hold: a conversation, a call or a
metric that answers otherwise without being in them fails a test, and so does an entry that nothing needs. So the page
needs no broker, and a test makes it again and compares. `make compare` holds everything and then writes it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from interop.compare.page import amqp, api, commands, definitions, metrics
from interop.compare.page.markdown import table

PATH: Final = Path(__file__).parents[3] / "docs" / "compatibility.md"
PARTS: Final = (amqp, api, commands, definitions, metrics)
HEAD: Final = """\
# Beside RabbitMQ

What clients, scripts and programs that know RabbitMQ find when the broker is amqpd. The same steps were taken with
{peer} and with amqpd, and their answers compared; what is not named here as different was the same. The page is
made by `make compare`, out of [what RabbitMQ answered](../interop/compare/README.md) and of the lists of differences
that the tests hold: a difference that is in no list fails a test, and so does one that is no more.

Before all else, amqpd is one node without copies elsewhere, and speaks AMQP 0-9-1: no AMQP 1.0, MQTT, STOMP or stream
protocol, no federation and no shovel, no logins by LDAP or OAuth 2, no web page to click in. Who needs one of them
stays with RabbitMQ. Who does not, changes an image name and a URL. [Streams](streams.md) are as AMQP has them;
`x-queue-type: quorum` is a durable queue with delivery limits on this one node.

"""
TAIL: Final = """
## How to try it yourself

```
make compare                  # all of it with your checkout, against RabbitMQ's recorded answers; then writes this page
make compare-record           # the answers anew, from a RabbitMQ of its own (Debian's package rabbitmq-server)
make test-peer                # what runs beside a live RabbitMQ: recordings heard again, definitions there and back
```
"""


def text() -> str:
    """The whole page. Cost: reads the record, a tenth of a second."""
    parts = [part.section() for part in PARTS]
    lines = [HEAD.format(peer=amqp.peer())]
    lines.append(table(("what", "compared", "otherwise, and why", "missing"), [part.row for part in parts]))
    lines += [f"\n## {part.title}\n\n{part.text}" for part in parts]
    return "".join(lines) + TAIL


def write() -> bool:
    """Whether the page was another before."""
    made = text()
    if PATH.exists() and PATH.read_text("utf-8") == made:
        return False
    PATH.write_text(made, "utf-8")
    return True
