"""`amqpctl reset`: a broker as after its first start. Everything declared goes with its messages, every user too.

The app has to be stopped, as in RabbitMQ, so nobody is connected. What stays: the settings, and the audit log, which
then says who did it. A crash in the middle leaves some of it: the next `reset` ends it.
"""

from __future__ import annotations

import json
import logging
from functools import partial
from typing import Final

from amqpd.broker.vhost import vhosts
from amqpd.broker.vhost.pending import finished
from amqpd.broker.vhost.parameters import CLUSTER_ID, cluster_id_row
from amqpd.management.request import NO_CONTENT, ApiError, BadRequest, Call, Reply, Role
from amqpd.management.router import Route

log = logging.getLogger(__name__)


class AppRuns(ApiError):
    """What asks for a stopped app got a running one."""

    status = 409
    error = "app_running"


async def reset(call: Call) -> Reply:
    """Deletes everything, as before the first start. Raises: AppRuns; BadRequest of a node in a cluster."""
    if call.cluster is not None:
        raise BadRequest("the node is in a cluster, whose vhosts and users are not its own: it is not reset")
    if call.server.app_running:
        raise AppRuns("the app is running; stop it with amqpctl stop_app")
    broker = call.broker
    auth, first = broker.auth, broker.settings.default
    log.warning("reset: all vhosts, users and messages go")
    for vhost in list(broker.vhosts.values()):
        if vhost.protected:
            await finished(partial(vhosts.protect, vhost, False))
        await finished(partial(vhosts.delete, broker.vhosts, vhost))
    async with auth.changing:
        for name, _ in broker.user_limits.all():
            await finished(partial(broker.user_limits.declare, name, {}))
    for name, _ in broker.global_parameters.all():
        await finished(partial(broker.global_parameters.clear, name))
    await finished(partial(broker.global_parameters.declare, CLUSTER_ID, json.loads(cluster_id_row().value)))
    await finished(partial(vhosts.declare, broker.vhosts, first.vhost, "Default virtual host", (), "classic"))
    for row in auth.users():
        if row.name != first.user:
            await auth.delete_user(row.name)
    # The first user is replaced, not deleted: at no moment is there nobody who may log in. The vhosts took their
    # permissions with them.
    await auth.add_user(first.user, first.password.encode(), tags=first.tags, replace=True)
    await auth.set_permissions(first.user, first.vhost, first.configure, first.write, first.read)
    log.warning("reset: done, start_app serves clients again")
    return NO_CONTENT


ROUTES: Final = (
    Route("POST", "api/amqpd/reset", Role.ADMINISTRATOR, reset),
)
