"""The commands of RabbitMQ 3.13's tools and plugins, as their `help` lists them.

Taken from its documentation and sources; those of 3.10.8 were also recorded from the tools (a file of tests/samples).
Commands that are new in 4.x are not included, though amqpctl may have them.
"""

from __future__ import annotations

from typing import Final

_LISTS: Final = """
    list_bindings list_channels list_ciphers list_connections list_consumers list_deprecated_features list_exchanges
    list_feature_flags list_global_parameters list_hashes list_operator_policies list_parameters list_permissions
    list_policies list_queues list_topic_permissions list_unresponsive_queues list_user_limits list_user_permissions
    list_user_topic_permissions list_users list_vhost_limits list_vhosts
"""
_EVERYWHERE: Final = "autocomplete help version"


def _names(*texts: str) -> tuple[str, ...]:
    return tuple(sorted({name for text in texts for name in text.split()}))


NAMES: Final[dict[str, tuple[str, ...]]] = {
    "rabbitmqctl": _names(
        _EVERYWHERE,
        _LISTS,
        """
        activate_free_disk_space_monitoring add_user add_vhost authenticate_user await_online_nodes await_startup
        cancel_sync_queue change_cluster_node_type change_password clear_global_parameter clear_operator_policy
        clear_parameter clear_password clear_permissions clear_policy clear_topic_permissions clear_user_limits
        clear_vhost_limits close_all_connections close_all_user_connections close_connection cluster_status
        deactivate_free_disk_space_monitoring decode delete_queue delete_user delete_vhost enable_feature_flag encode
        environment eval eval_file exec export_definitions force_boot force_gc force_reset force_standalone_khepri_boot
        forget_cluster_node hash_password import_definitions join_cluster list_channel_interceptors
        list_node_auth_attempt_stats node_health_check
        ping purge_queue rename_cluster_node report reset restart_vhost resume_listeners rotate_logs schema_info
        set_cluster_name set_disk_free_limit set_global_parameter set_log_level set_operator_policy set_parameter
        set_permissions set_permissions_globally set_policy set_topic_permissions set_user_limits set_user_tags
        set_vhost_limits set_vhost_tags set_vm_memory_high_watermark shutdown start_app status stop stop_app
        suspend_listeners sync_queue trace_off trace_on update_cluster_nodes update_vhost_metadata wait
        remove_classic_queue_mirroring_from_policies
        add_super_stream add_uaa_key clear_auth_backend_cache decommission_mqtt_node delete_shovel delete_super_stream
        federation_status list_amqp10_connections list_mqtt_connections list_stomp_connections list_stream_connections
        list_stream_consumer_groups list_stream_consumers list_stream_group_consumers list_stream_publishers
        list_stream_tracking list_web_mqtt_connections list_web_stomp_connections reset_stats_db
        restart_federation_link restart_shovel shovel_status
        """,
    ),
    "rabbitmq-diagnostics": _names(
        _EVERYWHERE,
        _LISTS,
        """
        alarms certificates check_alarms check_certificate_expiration check_if_any_deprecated_features_are_used
        check_if_cluster_has_classic_queue_mirroring_policy check_if_node_is_mirror_sync_critical
        check_if_node_is_quorum_critical check_local_alarms check_port_connectivity check_port_listener
        check_protocol_listener check_running check_virtual_hosts cipher_suites cluster_status command_line_arguments
        consume_event_stream disable_auth_attempt_source_tracking discover_peers enable_auth_attempt_source_tracking
        environment erlang_cookie_hash erlang_cookie_sources erlang_version is_booting is_running
        list_network_interfaces list_node_auth_attempt_stats list_policies_that_match listeners log_location log_tail
        log_tail_stream maybe_stuck memory_breakdown metadata_store_status observer os_env ping quorum_status
        remote_shell report reset_node_auth_attempt_metrics resolve_hostname resolver_info runtime_thread_stats
        schema_info server_version status stream_status tls_versions wait
        consistent_hash_exchange_ring_state federation_status list_mqtt_connections list_stomp_connections
        node_health_check reclaim_quorum_memory list_stream_connections list_stream_consumers
        list_stream_publishers list_stream_tracking shovel_status
        """,
    ),
    "rabbitmq-plugins": _names(_EVERYWHERE, "directories disable enable is_enabled list set"),
    "rabbitmq-queues": _names(
        _EVERYWHERE,
        """
        add_member check_if_new_quorum_queue_replicas_have_finished_initial_sync check_if_node_is_mirror_sync_critical
        check_if_node_is_quorum_critical delete_member grow list_operator_policies_with_classic_queue_mirroring
        list_policies_with_classic_queue_mirroring peek quorum_status rebalance reclaim_quorum_memory shrink
        stream_status
        """,
    ),
    "rabbitmq-streams": _names(
        _EVERYWHERE,
        """
        add_replica add_super_stream coordinator_status delete_replica delete_super_stream list_stream_connections
        list_stream_consumer_groups list_stream_consumers list_stream_group_consumers list_stream_publishers
        list_stream_tracking restart_stream set_stream_retention_policy stream_status
        """,
    ),
    "rabbitmq-upgrade": _names(
        _EVERYWHERE,
        "await_online_quorum_plus_one await_online_synchronized_mirror drain post_upgrade revive",
    ),
}
"""By tool, in alphabetical order."""
