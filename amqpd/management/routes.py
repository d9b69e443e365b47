"""The route table: what each kind of thing has registered in its own file, collected.

A new file of handlers ends with its `ROUTES` and stands here once.
"""

from __future__ import annotations

from typing import Final

from amqpd.management import alarms, node_admin, append, arguments, audit, auth_attempts, backup, bindings, certificates, clustering, connections, definitions, definitions_difference, definitions_import, delayed, diagnostics, event_stream, exchanges, log_files, rabbitmq_compat, health, limits, listener_control, logs, maintenance, messages, nodes, one_node, overview, ui, page_sessions, parameters, policies, policy_preview, pulse, queues, reload, reset, server_log, status, stream_offsets, queue_jobs, threads, topology, users, vhosts
from amqpd.management import metrics_routes as metrics
from amqpd.management.openapi import reference
from amqpd.management.router import Route

_OF_THINGS: Final[tuple[Route, ...]] = (
    *overview.ROUTES,
    *ui.ROUTES,
    *page_sessions.ROUTES,
    *pulse.ROUTES,
    *nodes.ROUTES,
    *health.ROUTES,
    *connections.ROUTES,
    *exchanges.ROUTES,
    *queues.ROUTES,
    *stream_offsets.ROUTES,
    *queue_jobs.ROUTES,
    *delayed.ROUTES,
    *append.ROUTES,
    *arguments.ROUTES,
    *bindings.ROUTES,
    *topology.ROUTES,
    *vhosts.ROUTES,
    *users.ROUTES,
    *policies.ROUTES,
    *policy_preview.ROUTES,
    *parameters.ROUTES,
    *limits.ROUTES,
    *definitions.ROUTES,
    *definitions_import.ROUTES,
    *definitions_difference.ROUTES,
    *node_admin.ROUTES,
    *alarms.ROUTES,
    *audit.ROUTES,
    *messages.ROUTES,
    *logs.ROUTES,
    *log_files.ROUTES,
    *listener_control.ROUTES,
    *maintenance.ROUTES,
    *backup.ROUTES,
    *auth_attempts.ROUTES,
    *server_log.ROUTES,
    *diagnostics.ROUTES,
    *event_stream.ROUTES,
    *threads.ROUTES,
    *reload.ROUTES,
    *reset.ROUTES,
    *clustering.ROUTES,
    *rabbitmq_compat.ROUTES,
    *certificates.ROUTES,
    *status.ROUTES,
    *one_node.ROUTES,
    *metrics.ROUTES,
)
ROUTES: Final = (*_OF_THINGS, *reference(_OF_THINGS))
