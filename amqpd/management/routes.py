"""The route table: the routes of all handler modules.

A new handler module defines `ROUTES` and is added here.
"""

from __future__ import annotations

from typing import Final

from amqpd.management import (
    arguments,
    bindings,
    certificates,
    collectors,
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
from amqpd.management.openapi import reference
from amqpd.management.router import ApiRoute

_OF_THINGS: Final[tuple[ApiRoute, ...]] = (
    *overview.ROUTES,
    *ui.ROUTES,
    *health.ROUTES,
    *connections.ROUTES,
    *exchanges.ROUTES,
    *queues.ROUTES,
    *kafka_groups.ROUTES,
    *queue_jobs.ROUTES,
    *messages.ROUTES,
    *arguments.ROUTES,
    *bindings.ROUTES,
    *topology.ROUTES,
    *vhosts.ROUTES,
    *users.ROUTES,
    *policies.ROUTES,
    *definitions.ROUTES,
    *definitions_import.ROUTES,
    *node_admin.ROUTES,
    *log_files.ROUTES,
    *diagnostics.ROUTES,
    *rabbitmq_compat.ROUTES,
    *certificates.ROUTES,
    *collectors.ROUTES,
)
ROUTES: Final = (*_OF_THINGS, *reference(_OF_THINGS))
