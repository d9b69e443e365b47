"""Help texts, and the table of commands compared with its documentation."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from fake_broker import Ctl

from amqpd.cli.command import GROUPS
from amqpd.cli.commands import COMMANDS, PLUGIN_COMMANDS
from amqpd.cli.help import ELSEWHERE, NOTHING_TO_DO, ONE_NODE
from amqpd.cli.options import BY_LONG, GENERAL, PLUGINS, SPECIFIC, check_options, parse

MANUAL = Path(__file__).parents[2] / "docs" / "amqpctl.md"
EXPECTED_COMMANDS = (
    "status ping version add_vhost delete_vhost list_vhosts dump_log verify_log export import sql set_export "
    "clear_export compact_export add_user delete_user change_password clear_password authenticate_user "
    "list_users set_user_tags set_permissions clear_permissions list_permissions "
    "list_user_permissions set_topic_permissions clear_topic_permissions list_topic_permissions list_queues "
    "list_exchanges list_bindings list_connections list_channels list_consumers purge_queue delete_queue "
    "set_policy clear_policy list_policies set_operator_policy clear_operator_policy list_operator_policies "
    "set_parameter clear_parameter list_parameters set_global_parameter clear_global_parameter list_global_parameters "
    "set_vhost_limits clear_vhost_limits list_vhost_limits set_user_limits clear_user_limits list_user_limits "
    "set_vhost_tags update_vhost_metadata enable_vhost_deletion_protection disable_vhost_deletion_protection "
    "set_cluster_name "
    "browse_queue move_messages copy_messages delete_messages redrive rewind_queue list_jobs stop_job "
    "audit_log trace_message "
    "list_kafka_groups describe_kafka_group reset_kafka_offsets delete_kafka_group "
    "list_stream_offsets set_stream_offset delete_stream_offset list_delayed_messages cancel_delayed_message "
    "close_connection close_all_connections set_vm_memory_high_watermark set_disk_free_limit "
    "set_alarm clear_alarm accept_clock eval stop_app start_app stop help "
    "trace_on trace_off federation_status restart_federation_link shovel_status delete_shovel restart_shovel "
    "hipe_compile "
    " activate_free_disk_space_monitoring add_member add_replica add_super_stream alarms autocomplete "
    "await_online_nodes await_online_quorum_plus_one await_online_synchronized_mirror await_startup "
    "cancel_sync_queue certificates change_cluster_node_type check_alarms check_certificate_expiration "
    "check_for_quorum_queues_without_an_elected_leader check_if_any_deprecated_features_are_used "
    "check_if_metadata_store_is_initialized check_if_metadata_store_is_initialized_with_data "
    "check_if_node_is_mirror_sync_critical check_if_node_is_quorum_critical check_local_alarms "
    "check_port_connectivity check_port_listener check_protocol_listener check_running check_virtual_hosts "
    "cipher_suites close_all_user_connections cluster_status command_line_arguments completion "
    "coordinator_status deactivate_free_disk_space_monitoring decode delete_member delete_replica "
    "delete_super_stream disable_auth_attempt_source_tracking discover_peers "
    "enable_auth_attempt_source_tracking enable_feature_flag encode environment erlang_version eval_file "
    "export_definitions force_boot force_checkpoint force_gc force_reset forget_cluster_node grow "
    "hash_password import_definitions install_aliases is_booting is_running join_cluster "
    "list_channel_interceptors list_ciphers list_deprecated_features list_feature_flags list_hashes "
    "list_network_interfaces list_node_auth_attempt_stats list_policies_that_match list_stream_connections "
    "list_stream_consumers list_stream_publishers list_unresponsive_queues list_user_topic_permissions "
    "listeners log_location log_tail log_tail_stream memory_breakdown metadata_store_status node_health_check "
    "os_env peek post_upgrade quorum_status rebalance reclaim_quorum_memory rename_cluster_node report reset "
    "reset_node_auth_attempt_metrics reset_stats_db resolve_hostname resolver_info restart_stream "
    "reload restart_vhost resume_listeners rotate_logs server_version set_log_level set_permissions_globally "
    "set_stream_retention_policy shrink shutdown stream_status suspend_listeners sync_queue tls_versions "
    "transfer_leadership update_cluster_nodes wait "
    "check_if_cluster_has_classic_queue_mirroring_policy list_policies_with_classic_queue_mirroring "
    "list_operator_policies_with_classic_queue_mirroring remove_classic_queue_mirroring_from_policies "
    "check_if_new_quorum_queue_replicas_have_finished_initial_sync maybe_stuck runtime_thread_stats "
    "consume_event_stream list_stream_tracking list_stream_consumer_groups list_stream_group_consumers "
    "drain revive backup restore cluster_import move_vhost check_cluster"
)


def test_table_has_exactly_the_expected_commands() -> None:
    assert set(COMMANDS) == set(EXPECTED_COMMANDS.split())
    assert all(name == command.name and command.group in GROUPS for name, command in COMMANDS.items())
    assert not ELSEWHERE.keys() & set(COMMANDS)
    assert set(COMMANDS) >= ONE_NODE | NOTHING_TO_DO


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_is_documented(ctl: Ctl, name: str) -> None:
    assert f"`{name}`" in MANUAL.read_text("utf-8")
    line = f"   {name.ljust(max(map(len, COMMANDS)))}  {COMMANDS[name].summary}"
    assert line in ctl("help").out.splitlines()
    assert line in ctl("help", "--list-commands").out.splitlines()


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_a_help_page_with_examples(ctl: Ctl, name: str) -> None:
    page = ctl("help", name)
    assert page.code == 0
    assert page == ctl(name, "--help") == ctl("-?", name) == ctl(name, "-h", "--bogus-x")
    command = COMMANDS[name]
    assert command.usage_of("amqpctl") in page.out
    assert command.examples
    for option in command.options:
        assert f"--{option}" in page.out
    for column in command.columns:
        assert column in page.out
    for option in GENERAL:
        assert f"--{option.long}" in page.out


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_examples_are_valid_command_lines(name: str) -> None:
    """Each example is a valid command line of the command that it documents."""
    command = COMMANDS[name]
    for example, _ in command.examples:
        line = parse(
            shlex.split(example.partition(" <")[0]) if example.startswith("add_user") else shlex.split(example)
        )
        assert line.command == name
        check_options(line, command.options)
        command.check(line.operands)
        if command.columns:
            assert set(line.operands[command.least :]) <= set(command.columns)


def test_options_are_known_and_distinct() -> None:
    used = {option for command in COMMANDS.values() for option in command.options}
    assert used == {option.long for option in SPECIFIC}
    assert {option for each in PLUGIN_COMMANDS.values() for option in each.options} == {
        option.long for option in PLUGINS
    }
    assert set(BY_LONG) == {option.long for option in (*GENERAL, *SPECIFIC, *PLUGINS)}
    for specific in (SPECIFIC, PLUGINS):
        options = (*GENERAL, *specific)
        letters = [option.short for option in options if option.short]
        assert len(letters) == len(set(letters))
        assert len(options) == len({option.long for option in options})
    manual = MANUAL.read_text("utf-8")
    assert all(f"--{option.long}" in manual for option in GENERAL)


def test_no_arguments_print_the_help(ctl: Ctl) -> None:
    result = ctl()
    assert (result.code, result.out) == (64, "")
    assert result.err == ctl("help").out == ctl("--help").out
    assert ctl("--bogus").code == 64


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("list_queue", "Command 'list_queue' not found.\nDid you mean 'list_queues'?"),
        ("listqueues --bogus", "Command 'listqueues' not found.\nDid you mean 'list_queues'?"),
        ("xyzzy", "Command 'xyzzy' not found.\n'amqpctl help' shows all commands."),
        ("observer --ram n", "Command 'observer' of RabbitMQ is not part of this version"),
        ("exec node().", "Command 'exec' of RabbitMQ is not part of this version"),
    ],
)
def test_unknown_command_gets_a_suggestion(ctl: Ctl, line: str, text: str) -> None:
    result = ctl(*line.split())
    assert (result.code, result.out) == (64, "")
    assert text in result.err


def test_help_of_unknown_command_gets_a_suggestion(ctl: Ctl) -> None:
    result = ctl("help", "list_queue")
    assert result.code == 64
    assert "Did you mean 'list_queues'?" in result.err


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("delete_vhost", "not enough arguments."),
        ("add_vhost a b", "too many arguments."),
        ("set_permissions u . .", "not enough arguments."),
        ("list_users x", "too many arguments."),
        ("close_connection <n@h.1.0>", "not enough arguments."),
    ],
)
def test_wrong_number_of_operands_prints_usage(ctl: Ctl, line: str, text: str) -> None:
    result = ctl(*line.split())
    assert result.code == 64
    name = line.split(maxsplit=1)[0]
    assert result.err == (
        f"Error (argument validation): {text}\nArguments given:\n\t-n n@h {line}\n\nUsage\n\n"
        f"{COMMANDS[name].usage_of('amqpctl')}\n"
    )


def test_credentials_are_not_printed(ctl: Ctl) -> None:
    result = ctl("--uri", "http://bob:s3cret@host", "list_users", "x")
    assert result.code == 64
    assert "s3cret" not in result.err
    assert "http://***@host" in result.err
    for url, shown in (
        ("bob:s3cret@host:8081", "***@host:8081"),
        ("http://bob:s3cret/a@host", "http://***@host"),
        ("http://host/?a=1", "http://host/?a=1"),
    ):
        result = ctl("export", "--queue", "q", "--to", "x", "--schema-registry", url)
        assert result.code == 64
        assert "s3cret" not in result.err and f"--schema-registry {shown}\n" in result.err
    for command in ("add_user", "change_password", "authenticate_user", "decode", "encode"):
        result = ctl(command, "alice", "s3cret", "x")
        assert (result.code, "s3cret" in result.err) == (64, False)
    result = ctl("eval", 'rabbit_access_control:check_user_pass_login(list_to_binary("a"), "s3cret").', "x")
    assert (result.code, "s3cret" in result.err) == (64, False)


def test_start_does_not_import_slow_modules() -> None:
    """A command may take 100 ms, mostly for imports. These modules would take most of it."""
    slow_modules = "{'asyncio', 'aiohttp', 'sqlalchemy', 'http.client', 'ssl', 'shutil', 'logging', 'cryptography'}"
    process = subprocess.run(
        [sys.executable, "-P", "-c", f"import amqpd.cli.main, sys; print(*{slow_modules} & set(sys.modules))"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert process.stdout.split() == []
