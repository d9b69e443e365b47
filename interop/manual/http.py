"""docs/reference/http-api.md: every route of the HTTP API with the needed tag, from the route table."""

from __future__ import annotations

from amqpd.management.openapi import kind, summary
from amqpd.management.request import Role
from amqpd.management.routes import ROUTES
from interop.manual.markdown import MADE, cell, table

HEAD = """\
# Paths of the admin API

Every path, with the user tag that it asks for (or one above it: `management`, `policymaker` and `monitoring`,
`administrator`). Permissions of the virtual host come on top. What a path takes and answers is RabbitMQ's where RabbitMQ
has it; the rest, lists, samples and bounds: [the admin API](../admin-api.md). A running broker has the same for programs,
as an OpenAPI description at `/api/openapi.json`:

```sh
curl -s http://127.0.0.1:15672/api/openapi.json
```

Names within a path are percent-encoded, a slash included: the virtual host `/` is `%2F`.
"""


def text() -> str:
    groups: dict[str, list[tuple[str, ...]]] = {}
    for route in sorted(ROUTES, key=lambda route: (route.path, route.method)):
        tag = "" if route.role == Role.PUBLIC else route.role.name.lower()
        line = (route.method, f"`/{route.path}`", tag, cell(summary(route)))
        groups.setdefault(kind(route) or "page", []).append(line)
    parts = [MADE, HEAD]
    for name, lines in sorted(groups.items()):
        parts.append(f"\n## {name}\n\n" + table(("", "path", "tag", ""), lines))
    return "".join(parts)
