"""RabbitMQ's command line tools: exit codes, list columns, JSON keys. Commands about the whole node run alone."""

from __future__ import annotations

from interop.compare.steps import Conversation, Step, ctl, exchange, publish, queue, talk

CLASSIC = [queue("q1", args={"x-max-length": 10}), queue("q2"), publish("q1")]


def lists(name: str, *more: str) -> list[Step]:
    """A list command: its header, its JSON, and an invalid column."""
    vhost = "" if name in {"list_connections", "list_channels", "list_users", "list_vhosts"} else "-p {v} "
    return [
        ctl(f"-q {name} {vhost}{' '.join(more)}", "columns"),
        ctl(f"{name} {vhost}--formatter json", "keys"),
        ctl(f"{name} {vhost}nosuchcolumn"),
    ]


def every(*lines: str) -> list[Step]:
    return [ctl(line) for line in lines]


def all_of(tool: str, names: str, show: str = "") -> list[Step]:
    """names: command lines of the tool, one per line or separated by |."""
    lines = [name.strip() for line in names.splitlines() for name in line.split("|")]
    return [ctl(f"{tool} {line}", show) for line in lines if line]


WITHOUT_OPERANDS = (
    "add_user", "add_vhost", "authenticate_user", "await_online_nodes", "autocomplete", "change_password",
    "clear_password", "clear_policy", "clear_permissions", "close_connection", "close_all_user_connections",
    "delete_queue", "delete_user", "delete_vhost", "enable_feature_flag", "export_definitions", "eval_file",
    "forget_cluster_node", "list_user_permissions", "list_user_topic_permissions", "purge_queue", "set_cluster_name",
    "set_disk_free_limit", "set_log_level", "set_parameter", "set_permissions", "set_policy", "set_topic_permissions",
    "set_user_tags", "set_vm_memory_high_watermark", "sync_queue", "wait", "rabbitmq-diagnostics check_port_listener",
    "rabbitmq-diagnostics check_protocol_listener", "rabbitmq-diagnostics resolve_hostname",
    "rabbitmq-queues add_member", "rabbitmq-queues grow", "rabbitmq-queues shrink", "rabbitmq-queues rebalance",
    "rabbitmq-queues quorum_status", "rabbitmq-queues peek", "rabbitmq-streams stream_status",
    "rabbitmq-streams add_super_stream", "rabbitmq-streams delete_super_stream", "rabbitmq-plugins is_enabled",
)  # fmt: skip

# Created with rabbitmqctl 3.10.8: encode '<<"guest">>' secret, encode '"guest"' secret.
BINARY = "Jw7RNZUXKcqfbTifwqt+UskBlvloEYB9jSfP5OSy0tmXpIDwH8APZqAXniRwva/c"
STRING = "fj/tR9Ku11vL3+MiyuO9zqSLb/Tm9O2aWPTq/DVvzGn1CB3l598h00Oh3lleUr3C"

CONVERSATIONS: tuple[Conversation, ...] = (
    talk(
        "tools/users",
        every("add_user {u} secret", "add_user {u} again", "add_user '' secret", "set_user_tags {u} management x"),
        ctl("-q list_users", "mine"),
        ctl("list_users --formatter json", "keys"),
        every("authenticate_user {u} secret", "authenticate_user {u} wrong", "authenticate_user nobody x"),
        every("change_password {u} other", "change_password nobody x", "authenticate_user {u} other"),
        every("clear_password {u}", "clear_password nobody", "authenticate_user {u} other"),
        every("set_user_tags nobody x", "delete_user {u}", "delete_user {u}"),
    ),
    talk(
        "tools/permissions",
        every("add_user {u} secret", "set_permissions -p {v} {u} '^a' '' '.*'", "set_permissions -p {v} {u} '(' . ."),
        every("set_permissions -p {v} nobody . . .", "set_permissions -p nosuch {u} . . ."),
        ctl("-q list_permissions -p {v}", "rows"),
        ctl("-q list_user_permissions {u}", "rows"),
        every("list_permissions -p nosuch", "list_user_permissions nobody"),
        every("set_topic_permissions -p {v} {u} amq.topic '^a' '^b'", "set_topic_permissions -p {v} {u} amq.topic ( ."),
        ctl("-q list_topic_permissions -p {v}", "rows"),
        ctl("-q list_user_topic_permissions {u}", "rows"),
        ctl("list_user_topic_permissions {u} --formatter json", "keys"),
        every("list_user_topic_permissions nobody", "list_topic_permissions -p nosuch"),
        every("clear_topic_permissions -p {v} {u} amq.topic", "clear_topic_permissions -p {v} nobody"),
        every("clear_permissions -p {v} {u}", "clear_permissions -p {v} nobody", "clear_permissions -p nosuch {u}"),
    ),
    talk(
        "tools/vhosts",
        every("add_vhost {v}x --description d --tags t1,t2", "add_vhost {v}x", "add_vhost ''"),
        ctl("-q list_vhosts name description tags", "mine"),
        lists("list_vhosts"),
        every("set_vhost_tags {v}x t3", "set_vhost_tags nosuch t", "restart_vhost -p {v}x", "restart_vhost -p nosuch"),
        every("trace_on -p {v}x", "trace_off -p {v}x", "trace_on -p nosuch", "delete_vhost {v}x", "delete_vhost {v}x"),
    ),
    talk(
        "tools/queues",
        CLASSIC,
        ctl("-q list_queues -p {v} name messages durable auto_delete arguments type", "rows"),
        ctl("-s list_queues -p {v} name", "rows"),
        ctl("list_queues -p {v} --formatter csv name messages", "rows"),
        ctl("list_queues -p {v} --formatter pretty_table name messages"),
        lists("list_queues"),
        ctl("-q list_queues -p {v} --offline", "rows"),
        ctl("-q list_queues -p {v} --online name", "rows"),
        ctl("-q list_queues -p {v} --local name", "rows"),
        ctl("list_queues -p nosuch"),
        ctl("-q list_unresponsive_queues -p {v}", "rows"),
        every("list_unresponsive_queues -p {v} nosuchcolumn", "list_unresponsive_queues --queue-timeout x"),
        every("delete_queue -p {v} q1 --if-empty", "delete_queue -p {v} nosuch", "delete_queue -p {v} q2 --if-unused"),
        every("purge_queue -p {v} q1", "purge_queue -p {v} nosuch", "delete_queue -p {v} q1"),
        every("sync_queue -p {v} nosuch", "cancel_sync_queue -p {v} nosuch"),
    ),
    talk(
        "tools/exchanges and bindings",
        exchange("x1", "topic"),
        queue("q1"),
        ctl("-q list_exchanges -p {v} name type durable auto_delete internal", "rows"),
        lists("list_exchanges"),
        ctl("-q list_bindings -p {v}", "rows"),
        lists("list_bindings", "source_name", "routing_key"),
        every("list_exchanges -p nosuch", "list_bindings -p nosuch"),
    ),
    talk(
        "tools/connections",
        queue("q1"),
        lists("list_connections"),
        lists("list_channels"),
        lists("list_consumers"),
        every("close_connection '<0.0.0>' why", "close_connection nonsense why"),
        every("close_all_connections -p {v} why", "close_all_connections -p {v} --limit 5 why"),
        every("close_all_user_connections nobody why"),
    ),
    talk(
        "tools/policies",
        every("set_policy -p {v} p1 ^q '{\"max-length\":5}'"),
        every("set_policy -p {v} p2 ^q nojson", "set_policy -p {v} p2 '(' '{\"max-length\":5}'"),
        every("set_policy -p nosuch p ^q '{\"max-length\":5}'", "set_policy -p {v} p3 ^q '{\"max-length\":-5}'"),
        every("set_policy -p {v} p4 ^q '{\"max-length\":5}' --priority x"),
        every("set_policy -p {v} --apply-to queues p5 q '{\"expires\":1}'"),
        ctl("-q list_policies -p {v}", "rows"),
        ctl("list_policies -p {v} --formatter json", "keys"),
        every("list_policies -p nosuch", "clear_policy -p {v} p1", "clear_policy -p {v} p1"),
        every("set_operator_policy -p {v} o1 ^q '{\"max-length\":5}'", "set_operator_policy -p {v} o2 ^q '{\"x\":5}'"),
        ctl("-q list_operator_policies -p {v}", "rows"),
        every("clear_operator_policy -p {v} o1", "clear_operator_policy -p {v} o1"),
    ),
    talk(
        "tools/parameters and limits",
        every("set_parameter -p {v} nosuch a '{}'", "clear_parameter -p {v} nosuch a", "list_parameters -p nosuch"),
        every("set_global_parameter cmp-{v} '{\"a\":1}'"),
        ctl("-q list_global_parameters", "mine"),
        every("set_global_parameter cmp-{v} nojson"),
        every("clear_global_parameter cmp-{v}", "clear_global_parameter cmp-{v}"),
        every("set_vhost_limits -p {v} '{\"max-queues\":5}'"),
        ctl("-q list_vhost_limits -p {v}", "rows"),
        ctl("-q list_vhost_limits --global", "mine"),
        every("set_vhost_limits -p {v} '{\"nosuch\":5}'", "clear_vhost_limits -p {v}"),
        every("set_vhost_limits -p nosuch '{}'"),
        every("add_user {u} secret", "set_user_limits {u} '{\"max-connections\":5}'"),
        ctl("-q list_user_limits --user {u}", "rows"),
        every("set_user_limits nobody '{}'", "clear_user_limits {u} max-connections", "clear_user_limits nobody all"),
        every("clear_user_limits {u} all", "set_user_limits {u} nojson"),
    ),
    talk(
        "tools/the node",
        every("ping", "-q ping", "version", "rabbitmq-diagnostics ping", "rabbitmq-diagnostics -q ping"),
        ctl("-q cluster_status --formatter json", "keys"),
        ctl("status --formatter json", "keys"),
        every("status --unit mb", "status --unit lightyears", "status --formatter erlang", "cluster_status"),
        every("environment", "report", "node_health_check", "await_startup", "force_gc", "list_hashes", "list_ciphers"),
        every("await_online_nodes 1", "await_online_nodes 2 -t 1", "set_log_level info", "set_log_level nosuch"),
        every("rotate_logs", "reset", "force_reset", "force_boot", "join_cluster a@b", "forget_cluster_node a@b"),
        every("update_cluster_nodes a@b", "change_cluster_node_type ram", "rename_cluster_node a@b c@d"),
        every("wait", "wait --pid 99999999 -t 3", "wait /nonexistent/pid -t 1", "eval_file /nonexistent", "eval ''"),
        every("encode 1 secret", "decode 1 secret", "list_user_limits --user nobody", "hipe_compile /tmp/x"),
        every("federation_status", "shovel_status", "delete_shovel x", "restart_shovel x", "restart_federation_link x"),
    ),
    talk(
        "tools/flags",
        ctl("-q list_feature_flags", "columns"),
        ctl("list_feature_flags --formatter json", "keys"),
        ctl("-q list_feature_flags name state stability provided_by desc doc_url", "columns"),
        every("list_feature_flags nosuchcolumn", "enable_feature_flag all", "enable_feature_flag quorum_queue"),
        every("enable_feature_flag nosuch"),
    ),
    talk(
        "tools/definitions",
        CLASSIC,
        every("export_definitions /dev/null"),
        ctl("import_definitions -", stdin='{"vhosts": [{"name": "{v}"}]}'),
        ctl("import_definitions -", stdin='{"vhosts": '),
        every("export_definitions /nonexistent/x"),
        ctl("import_definitions --skip-if-unchanged -", stdin='{"vhosts": [{"name": "{v}"}]}'),
        ctl("-q export_definitions -"),
        every("import_definitions /nonexistent/x", "export_definitions x --format nosuch"),
    ),
    talk(
        "tools/usage",
        every(*WITHOUT_OPERANDS),
        every("nosuchcommand", "list_queue", "list_queues --nosuchoption", "list_users x", "add_vhost a b"),
        every("help", "help list_queues", "help nosuch", "list_queues --help", "--help", "version --formatter json"),
        every("-q", "list_queues -p", "list_queues --formatter nosuch", "list_queues -t x"),
    ),
    talk(
        "tools/completion of words",
        ctl("autocomplete list_q", "text"),
        ctl("autocomplete list_user_", "text"),
        ctl("autocomplete nosuch", "text"),
    ),
    talk(
        "tools/diagnostics",
        all_of(
            "rabbitmq-diagnostics",
            """
            alarms | check_alarms | check_local_alarms | check_running | -q check_running | is_running
            is_booting | check_port_connectivity | check_port_listener 1 | check_port_listener x
            check_port_listener 0 | check_protocol_listener amqp | check_protocol_listener amqp091
            check_protocol_listener nosuch | check_protocol_listener http | check_virtual_hosts
            check_certificate_expiration | check_certificate_expiration --within 2 --unit weeks
            check_certificate_expiration --unit nosuch | check_if_node_is_mirror_sync_critical
            check_if_node_is_quorum_critical | certificates | cipher_suites | command_line_arguments
            discover_peers | erlang_version | list_network_interfaces | listeners | -q listeners
            log_location | memory_breakdown | memory_breakdown --unit mb | memory_breakdown --unit nosuch
            os_env | resolve_hostname localhost | resolve_hostname nosuch.invalid | resolver_info
            server_version | -q server_version | status | tls_versions | add_user x y | nosuch
            enable_auth_attempt_source_tracking | list_node_auth_attempt_stats
            list_node_auth_attempt_stats --by-source | reset_node_auth_attempt_metrics
            disable_auth_attempt_source_tracking | list_queues -p {v} name | quorum_status nosuch
            stream_status nosuch | reclaim_quorum_memory nosuch | cluster_status | list_hashes
            """,
        ),
    ),
    talk(
        "tools/diagnostics as JSON",
        all_of(
            "rabbitmq-diagnostics --formatter json",
            """
            alarms | check_alarms | check_local_alarms | check_running | is_running | is_booting
            check_virtual_hosts | check_if_node_is_quorum_critical | listeners | log_location
            resolve_hostname localhost | server_version | discover_peers | tls_versions
            """,
            "keys",
        ),
    ),
    talk(
        "tools/encryption",
        every("encode 1 p", "encode 1", "encode 1 p q", "encode 1 p --cipher rot13", "encode 1 p --hash crc32"),
        every("encode 1 p --iterations 0", "encode { p", "encode Abc p", "decode x p", "decode 1 p", "decode 1"),
        every("decode '<<\"abc\">>' p", "decode 1 p --cipher rot13", "decode 1 p --iterations 0"),
        ctl(f"-q decode '{{encrypted,<<\"{BINARY}\">>}}' secret", "text"),
        ctl(f"-q decode '<<\"{BINARY}\">>' secret", "text"),
        ctl(f"-q decode '<<\"{STRING}\">>' secret --cipher aes_128_cbc --hash sha256 --iterations 1", "text"),
        every(f"decode '<<\"{BINARY}\">>' wrong", f"decode '<<\"{BINARY}\">>' secret --hash sha512"),
    ),
    talk(
        "tools/diagnostics that look longer",
        all_of(
            "rabbitmq-diagnostics",
            """
            cipher_suites --format openssl | cipher_suites --format map | cipher_suites --format erlang
            cipher_suites --format nosuch | cipher_suites --all | cipher_suites x | maybe_stuck
            runtime_thread_stats --sample-interval 1 | runtime_thread_stats x | consume_event_stream --duration 1
            consume_event_stream --duration 1 --pattern nosuch | consume_event_stream x
            """,
        ),
    ),
    talk(
        "tools/dry runs",
        every("--dry-run add_user {u} p", "authenticate_user {u} p", "--dry-run add_user {u}", "--dry-run nosuch"),
        every("--dry-run list_queues nosuchcolumn", "--dry-run delete_queue -p {v} nosuch", "--dry-run list_users x"),
        every("--print-stacktrace -q list_hashes", "list_users --formatter json_stream"),
    ),
    talk(
        "tools/replicas",
        queue("qq", args={"x-queue-type": "quorum"}),
        queue("qs", args={"x-queue-type": "stream"}),
        queue("qc"),
        all_of(
            "rabbitmq-queues",
            """
            rebalance all | rebalance quorum | rebalance nosuch | check_if_node_is_quorum_critical
            check_if_node_is_mirror_sync_critical | quorum_status -p {v} qq | quorum_status -p {v} qc
            quorum_status -p {v} nosuch | quorum_status -p {v} qs | stream_status -p {v} qs
            stream_status -p {v} qq | stream_status -p {v} nosuch | grow a@b all | shrink a@b
            add_member -p {v} qq a@b | add_member -p {v} nosuch a@b | add_member -p {v} qc a@b
            delete_member -p {v} qq a@b | delete_member -p {v} nosuch a@b | peek -p {v} qq 1
            peek -p {v} nosuch 1 | peek -p {v} qq x | reclaim_quorum_memory -p {v} qq
            reclaim_quorum_memory -p {v} nosuch | reclaim_quorum_memory -p {v} qc | list_queues
            """,
        ),
        all_of(
            "rabbitmq-streams",
            """
            stream_status -p {v} qs | add_replica -p {v} qs a@b | add_replica -p {v} nosuch a@b
            delete_replica -p {v} qs a@b | delete_replica -p {v} nosuch a@b | list_queues
            set_stream_retention_policy -p {v} nosuch 1D
            """,
        ),
        every("rabbitmq-upgrade await_online_quorum_plus_one -t 5", "rabbitmq-upgrade post_upgrade"),
        every("rabbitmq-upgrade await_online_synchronized_mirror -t 5", "rabbitmq-upgrade list_queues"),
        every("sync_queue -p {v} qc", "cancel_sync_queue -p {v} qc"),
    ),
    talk(
        "tools/super streams",
        every("rabbitmq-streams add_super_stream -p {v} inv --partitions 3"),
        ctl("-q list_queues -p {v} name type arguments", "rows"),
        ctl("-q list_bindings -p {v} source_name destination_name routing_key arguments", "rows"),
        ctl("-q list_exchanges -p {v} name type arguments", "rows"),
        every("rabbitmq-streams add_super_stream -p {v} inv --partitions 3"),
        every("rabbitmq-streams add_super_stream -p {v} two --routing-keys a,b --max-length-bytes 1gb --max-age P1D"),
        every("rabbitmq-streams add_super_stream -p {v} three --partitions 0"),
        every("rabbitmq-streams add_super_stream -p {v} three --partitions 2 --routing-keys a"),
        every("rabbitmq-streams add_super_stream -p {v} three --max-age soon"),
        every("rabbitmq-streams add_super_stream -p {v} three --max-length-bytes much"),
        every("rabbitmq-streams delete_super_stream -p {v} inv", "rabbitmq-streams delete_super_stream -p {v} inv"),
        ctl("-q list_queues -p {v} name arguments", "rows"),
        all_of(
            "rabbitmq-streams -q", "list_stream_connections | list_stream_consumers | list_stream_publishers", "rows"
        ),
    ),
    talk(
        "tools/plugins",
        ctl("rabbitmq-plugins list --formatter json", "keys"),
        all_of(
            "rabbitmq-plugins",
            """
            list | list -e -m | list -E | list -v rabbitmq_management$ | -q list | list '('
            is_enabled rabbitmq_management | is_enabled rabbitmq_mqtt | is_enabled nosuch
            is_enabled rabbitmq_management rabbitmq_mqtt | enable rabbitmq_management | enable nosuch | enable
            disable nosuch | disable | directories | version | help | nosuch
            """,
        ),
    ),
    talk(
        "tools/alarms of the node",
        every("set_vm_memory_high_watermark 0.00000001", "rabbitmq-diagnostics alarms"),
        every("rabbitmq-diagnostics check_alarms", "rabbitmq-diagnostics check_local_alarms", "node_health_check"),
        ctl("rabbitmq-diagnostics alarms --formatter json", "keys"),
        every("set_vm_memory_high_watermark 0.4", "rabbitmq-diagnostics check_local_alarms"),
        every("set_vm_memory_high_watermark 2", "set_vm_memory_high_watermark x", "set_disk_free_limit x"),
        every("set_disk_free_limit 50MB", "set_cluster_name it", "set_cluster_name rabbit@it"),
        alone=True,
    ),
    talk(
        "tools/listeners of the node suspended",
        every("suspend_listeners", "suspend_listeners", "rabbitmq-diagnostics check_running"),
        every("rabbitmq-diagnostics check_port_connectivity", "resume_listeners", "resume_listeners"),
        every("rabbitmq-diagnostics check_port_connectivity"),
        alone=True,
    ),
    talk(
        "tools/the app stopped",
        every("stop_app", "stop_app", "list_queues", "status", "cluster_status", "environment", "list_ciphers"),
        all_of(
            "rabbitmq-diagnostics",
            """
            check_running | is_running | is_booting | listeners | check_port_connectivity
            check_virtual_hosts | check_local_alarms | alarms | ping | server_version | memory_breakdown
            log_location | os_env
            """,
        ),
        every("await_startup -t 1", "await_online_nodes 1 -t 3", "set_log_level info", "set_cluster_name x"),
        every("list_feature_flags", "enable_feature_flag all", "export_definitions -", "report", "node_health_check"),
        every("close_all_user_connections a b", "rotate_logs", "force_gc", "restart_vhost", "list_unresponsive_queues"),
        every("list_node_auth_attempt_stats", "list_users", "set_policy p q '{\"max-length\":5}'", "add_user x y"),
        every("change_cluster_node_type ram", "change_cluster_node_type disc", "force_boot"),
        every("rabbitmq-queues rebalance all", "rabbitmq-queues check_if_node_is_quorum_critical"),
        every("rabbitmq-upgrade post_upgrade", "rabbitmq-plugins list -e -m"),
        every("start_app", "start_app", "list_users", "rabbitmq-diagnostics check_running", "await_startup"),
        alone=True,
    ),
    talk(
        "tools/the node taken back",
        every("add_user {u} secret", "add_vhost {v}y", "reset", "stop_app", "reset", "force_reset", "start_app"),
        ctl("-q list_users", "rows"),
        ctl("-q list_vhosts", "rows"),
        ctl("-q list_permissions", "rows"),
        ctl("authenticate_user guest guest"),
        alone=True,
    ),
)
