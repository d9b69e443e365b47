"""What other nodes have changed of what is the cluster's, made so in this node's broker.

Users, permissions, users' limits, global parameters, what is said of a vhost that is served here. A row that this node
has written itself comes back the same way, and is found to be so already.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpd.broker.vhost import vhosts
from amqpd.storage.metadata.rows import DeleteBindings, Put, VhostRow

if TYPE_CHECKING:
    from amqpd.broker.broker import Broker
    from amqpd.cluster.state import ClusterState
    from amqpd.storage.metadata.rows import Change


def follow(state: ClusterState, broker: Broker) -> None:
    """From here on. What was there before is what the broker began with (`ClusterState.metadata_state`)."""

    def changed(change: Change) -> None:
        if isinstance(change, DeleteBindings):  # of no table of slot 0
            return
        broker.auth.follow(change)
        broker.user_limits.follow(change)
        broker.global_parameters.follow(change)
        row = change.row
        if isinstance(row, VhostRow) and isinstance(change, Put) and row.state != "deleting":
            vhost = broker.vhosts.get(row.name)
            if vhost is not None and not vhost.deleted and vhost.id == row.id and vhost.row() != row:
                vhosts.become(vhost, row)

    state.on_row.append(changed)
