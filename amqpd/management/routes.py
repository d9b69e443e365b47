"""The route table: the routes of all handler modules.

A new handler module defines `ROUTES` and is added here.
"""

from __future__ import annotations

from typing import Final

from amqpd.management import (
    arguments,
    bindings,
    certificates,
    connections,
    definitions,
    definitions_import,
    diagnostics,
    exchanges,
    health,
    kafka_groups,
    log_files,
    messages,
    node_admin,
    overview,
    policies,
    queue_jobs,
    queues,
    rabbitmq_compat,
    topology,
    ui,
    users,
    vhosts,
)
from amqpd.management import collectors as metrics
from amqpd.management.openapi import reference
from amqpd.management.router import ApiRoute

_OF_THINGS: Final[tuple[ApiRoute, ...]] = (
    *overview.ROUTES,
    *ui.ROUTES,
    *ui.SESSION_ROUTES,
    *overview.LIVE_STATUS_ROUTES,
    *overview.NODE_ROUTES,
    *health.ROUTES,
    *connections.ROUTES,
    *exchanges.ROUTES,
    *queues.ROUTES,
    *queues.STREAM_OFFSET_ROUTES,
    *kafka_groups.ROUTES,
    *queue_jobs.ROUTES,
    *messages.DELAYED_ROUTES,
    *messages.APPEND_ROUTES,
    *arguments.ROUTES,
    *bindings.ROUTES,
    *topology.ROUTES,
    *vhosts.ROUTES,
    *users.ROUTES,
    *policies.ROUTES,
    *policies.PREVIEW_ROUTES,
    *policies.PARAMETER_ROUTES,
    *vhosts.LIMIT_ROUTES,
    *definitions.ROUTES,
    *definitions_import.ROUTES,
    *definitions_import.DIFFERENCE_ROUTES,
    *node_admin.ROUTES,
    *node_admin.ALARM_ROUTES,
    *messages.AUDIT_ROUTES,
    *messages.ROUTES,
    *log_files.LOG_ROUTES,
    *log_files.ROUTES,
    *node_admin.LISTENER_ROUTES,
    *node_admin.MAINTENANCE_ROUTES,
    *node_admin.BACKUP_ROUTES,
    *users.AUTH_ATTEMPT_ROUTES,
    *diagnostics.SERVER_LOG_ROUTES,
    *diagnostics.ROUTES,
    *diagnostics.EVENT_ROUTES,
    *diagnostics.THREAD_ROUTES,
    *node_admin.RELOAD_ROUTES,
    *node_admin.RESET_ROUTES,
    *node_admin.CLUSTER_ROUTES,
    *rabbitmq_compat.ROUTES,
    *certificates.ROUTES,
    *diagnostics.STATUS_ROUTES,
    *rabbitmq_compat.ONE_NODE_ROUTES,
    *metrics.ROUTES,
)
ROUTES: Final = (*_OF_THINGS, *reference(_OF_THINGS))
