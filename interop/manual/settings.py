"""docs/reference/settings.md: every setting by section, from the settings schema."""

from __future__ import annotations

from amqpd.config import rows
from amqpd.config.help import shown
from interop.manual.markdown import MADE, cell, code, table

HEAD = """\
# Settings

Every setting has one name, and may be given in three places; the later wins:

| where | example |
|---|---|
| a TOML file: the one that `--config` or `AMQPD_CONFIG` names, else `./amqpd.toml` if it is there | `port = 5673` below `[amqp]` |
| the environment: `AMQPD_`, and two underscores for each dot | `AMQPD_AMQP__PORT=5673` |
| the command line | `--amqp.port 5673` |

A file whose name ends in `.conf` is RabbitMQ's own: [rabbitmq.conf](../moving.md#rabbitmqconf). Sizes may be written with `KiB`,
`MiB` and `GiB`. An unknown name, or a value that cannot be used, is refused with exit code 64; all mistakes are named at once.

```sh
amqpd --print-settings                       # each setting, its value, and where that came from; secrets are hidden
amqpd --check-config                         # whether a broker could start with them
amqpd --print-settings --formatter toml      # a file with all of them, to begin with
```

*Reloaded* is what `amqpctl reload` and SIGHUP take over; the rest waits for the next start.
"""
SECTIONS = {
    "": "General",
    "amqp": "AMQP",
    "amqp.tls": "AMQP over TLS",
    "http": "Admin API",
    "http.tls": "Admin API over HTTPS",
    "metrics": "Metrics",
    "auth": "Logins",
    "definitions": "Definitions",
    "definitions.local": "",
    "log": "Log",
    "limits": "Limits and alarms",
    "storage": "Storage",
    "metadata": "Metadata",
    "default": "The first start",
    "audit": "Audit log",
    "cluster": "Cluster",
    "cluster.tls": "Cluster: Kafka over TLS",
    "cluster.sasl": "Cluster: login at Kafka",
}
"""Headings; other sections have their name as heading."""


def text() -> str:
    parts = [HEAD]
    by_section: dict[str, list[tuple[str, ...]]] = {}
    for row in rows():
        section = row.name.rpartition(".")[0]
        heading = SECTIONS.get(section, f"`{section}`") or SECTIONS[section.rpartition(".")[0]]
        whole = isinstance(row.default, float) and row.default.is_integer()
        default = code(str(int(row.default)) if whole else shown(row.default))
        also = f" Also `{row.environ_also}`." if row.environ_also else ""
        change = "reloaded" if row.reloaded else ""
        kind = cell(row.kind.word.replace("|", " or "))
        line = (f"`{row.name}`", kind, default, cell(row.doc) + also, change)
        by_section.setdefault(heading, []).append(line)
    for heading, lines in by_section.items():
        parts.append(f"\n## {heading}\n\n" + table(("setting", "type", "default", "meaning", ""), lines))
    return MADE + "".join(parts)
