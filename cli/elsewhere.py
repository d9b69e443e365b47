"""Commands of RabbitMQ's tools that amqpctl does not have, or has nothing to do for.

A name of RabbitMQ that stands nowhere fails a test: each works, is answered as RabbitMQ on a single node answers it, or
is told here with what there is instead. docs/compatibility.md is made of these lists.
"""

from __future__ import annotations

from typing import Final

_ERLANG: Final = "of Erlang's runtime, which amqpd does not have"
_STOMP: Final = "amqpd speaks AMQP 0-9-1 alone"

ELSEWHERE: Final[dict[str, str]] = {
    "add_uaa_key": "logins by OAuth 2 are not built",
    "clear_auth_backend_cache": "amqpd keeps no logins in a cache",
    "consistent_hash_exchange_ring_state": "`list_bindings` has the weights, which decide alone",
    "decommission_mqtt_node": _STOMP,
    "decrypt_conf_value": "of RabbitMQ 4.1; `decode` does it",
    "encrypt_conf_value": "of RabbitMQ 4.1; `encode` does it",
    "erlang_cookie_hash": "there is no cookie: who may open the socket in the data directory may do all",
    "erlang_cookie_sources": "there is no cookie: who may open the socket in the data directory may do all",
    "exec": f"Elixir {_ERLANG}",
    "force_standalone_khepri_boot": "there are no peers to leave, and the metadata are SQLite's",
    "list_amqp10_connections": _STOMP,
    "list_mqtt_connections": _STOMP,
    "list_stomp_connections": _STOMP,
    "list_web_mqtt_connections": _STOMP,
    "list_web_stomp_connections": _STOMP,
    "message_size_stats": "of RabbitMQ 4.1; the metrics have sizes by queue",
    "observer": f"{_ERLANG}; `status`, `memory_breakdown` and `runtime_thread_stats` tell what there is",
    "schema_info": "Mnesia's tables; the metadata are tables of SQLite, or of the database of `metadata.url`",
    "reconcile_vhosts": "of RabbitMQ 4.0; virtual hosts are on all nodes there are",
    "remote_shell": f"a shell {_ERLANG}",
}
"""By name: why, and what there is instead."""

_ONE_NODE: Final = """
    discover_peers join_cluster forget_cluster_node change_cluster_node_type update_cluster_nodes
    rename_cluster_node force_boot rebalance grow shrink add_member delete_member add_replica
    delete_replica transfer_leadership restart_stream post_upgrade
    await_online_quorum_plus_one await_online_synchronized_mirror await_online_nodes
    check_if_node_is_quorum_critical check_if_node_is_mirror_sync_critical
    check_if_new_quorum_queue_replicas_have_finished_initial_sync
"""
ONE_NODE: Final = frozenset(_ONE_NODE.split())
"""Answered as RabbitMQ answers them on a single node."""

_NOTHING_TO_DO: Final = """
    force_gc reclaim_quorum_memory force_checkpoint reset_stats_db activate_free_disk_space_monitoring
    deactivate_free_disk_space_monitoring sync_queue cancel_sync_queue set_stream_retention_policy
    list_channel_interceptors list_stream_connections list_stream_consumers list_stream_publishers
    list_stream_consumer_groups list_stream_group_consumers federation_status
    restart_federation_link shovel_status delete_shovel restart_shovel hipe_compile list_deprecated_features
"""
NOTHING_TO_DO: Final = frozenset(_NOTHING_TO_DO.split())
"""What they are about is not there, or always done: they say so, and end as RabbitMQ's do."""
