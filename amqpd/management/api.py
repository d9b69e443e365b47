"""The route table: what each kind of thing has registered in its own file, collected.

A new file of handlers ends with its `ROUTES` and stands here once.
"""

from __future__ import annotations

from typing import Final

from amqpd.management import (
    alarms,
    amqpctl,
    audit,
    auth_attempts,
    backup,
    bindings,
    certificates,
    connections,
    definitions,
    definitions_import,
    delayed,
    environment,
    event_stream,
    exchanges,
    exports,
    feature_flags,
    health,
    limits,
    listener_control,
    logs,
    maintenance,
    message_trace,
    nodes,
    one_node,
    overview,
    parameters,
    policies,
    queues,
    reload,
    reset,
    server_log,
    status,
    stream_offsets,
    surgery,
    threads,
    users,
    vhosts,
)
from amqpd.management.metrics import routes as metrics
from amqpd.management.reference import reference
from amqpd.management.router import Route

_OF_THINGS: Final[tuple[Route, ...]] = (
    *overview.ROUTES,
    *nodes.ROUTES,
    *health.ROUTES,
    *connections.ROUTES,
    *exchanges.ROUTES,
    *queues.ROUTES,
    *stream_offsets.ROUTES,
    *surgery.ROUTES,
    *delayed.ROUTES,
    *bindings.ROUTES,
    *vhosts.ROUTES,
    *users.ROUTES,
    *policies.ROUTES,
    *parameters.ROUTES,
    *limits.ROUTES,
    *definitions.ROUTES,
    *definitions_import.ROUTES,
    *amqpctl.ROUTES,
    *alarms.ROUTES,
    *audit.ROUTES,
    *message_trace.ROUTES,
    *logs.ROUTES,
    *exports.ROUTES,
    *listener_control.ROUTES,
    *maintenance.ROUTES,
    *backup.ROUTES,
    *auth_attempts.ROUTES,
    *server_log.ROUTES,
    *environment.ROUTES,
    *event_stream.ROUTES,
    *threads.ROUTES,
    *reload.ROUTES,
    *reset.ROUTES,
    *feature_flags.ROUTES,
    *certificates.ROUTES,
    *status.ROUTES,
    *one_node.ROUTES,
    *metrics.ROUTES,
)
ROUTES: Final = (*_OF_THINGS, *reference(_OF_THINGS))
