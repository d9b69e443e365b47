"""The keys of `rabbitmq.conf`: one row each, with what becomes of it.

A row's pattern is the key's words; `$name` stands for any one word, `*` at its end for any further ones. The row that
is first in ROWS counts. Its `does` says to users what becomes of the key, and stands as it is in docs/moving.md.

Kinds of rows: a key that is a setting by another name (`_same`), keys that make one together (methods of
`Translation` in `rabbitmq_translation`), keys that change nothing here (`_nothing`: a note), and keys that must not be
passed over (`_refused`, and `_only` for some values). Sources: the schemas of RabbitMQ 3.10.8, and the documentation of
3.13 and 4.x for newer keys.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from amqpd.settings.rabbitmq_translation import (
    CHANNEL_MAX,
    OLD_LISTENER,
    OWN_LIMITS,
    Translation,
    boolean,
    chain_depth,
    frame_size,
    handshake_s,
    minutes_s,
    number,
    share,
    size_bytes,
    verify,
)

Take = Callable[[Translation, Sequence[str], str, str], None]


class Key(NamedTuple):
    """A row. does: what becomes of it, for users; take: raises ValueError with text that follows the key."""

    pattern: str
    does: str
    take: Take

    def matches(self, words: Sequence[str]) -> bool:
        """Whether the key of these words is meant."""
        mine = self.pattern.split(".")
        if mine[-1] == "*":
            mine.pop()
            if len(words) <= len(mine):
                return False
            words = words[: len(mine)]
        return len(mine) == len(words) and all(
            one.startswith("$") or one == word for one, word in zip(mine, words, strict=True)
        )


def matching(words: Sequence[str]) -> Key | None:
    """The row of a key, if there is one."""
    return next((row for row in ROWS if row.matches(words)), None)


# -- kinds of rows -----------------------------------------------------------------------------------------------------


def _same(pattern: str, setting: str, convert: Callable[[str], object] = str, more: str = "") -> Key:
    """A setting by another name."""

    def take(translation: Translation, _words: Sequence[str], value: str, place: str) -> None:
        translation.set(setting, convert(value), place)

    return Key(pattern, f"`{setting}`{more}", take)


def _nothing(why: str, *patterns: str) -> list[Key]:
    """Changes nothing, and is told."""

    def take(translation: Translation, _words: Sequence[str], _value: str, place: str) -> None:
        translation.notes.append(f"{place} changes nothing: {why}")

    return [Key(pattern, f"nothing: {why}", take) for pattern in patterns]


def _refused(why: str, *patterns: str) -> list[Key]:
    """Must not be passed over."""

    def take(_translation: Translation, _words: Sequence[str], _value: str, _place: str) -> None:
        raise ValueError(f"cannot be obeyed: {why}")

    return [Key(pattern, f"**refused**: {why}", take) for pattern in patterns]


def _only(pattern: str, allowed: Sequence[str], why: str, shown: str = "") -> Key:
    """Some values say what amqpd does anyway, all others are refused. shown: for users, instead of the values."""

    def take(_translation: Translation, _words: Sequence[str], value: str, _place: str) -> None:
        if value not in allowed:
            raise ValueError(f"cannot be {value}: {why}")

    words = shown or ", ".join(f"`{each}`" for each in allowed)
    return Key(pattern, f"{words}: nothing; anything else is **refused**: {why}", take)


def _admin(pattern: str, setting: str, convert: Callable[[str], object] = str, more: str = "") -> Key:
    """Likewise, and there is such a listener of the admin API."""

    def take(translation: Translation, words: Sequence[str], value: str, place: str) -> None:
        translation.set(setting, convert(value), place)
        translation.admin_listener(words, value, place)

    return Key(pattern, f"`{setting}`{more}", take)


def _metrics(pattern: str, setting: str, convert: Callable[[str], object] = str, more: str = "") -> Key:
    """Likewise, and metrics have a listener of their own."""

    def take(translation: Translation, words: Sequence[str], value: str, place: str) -> None:
        translation.set(setting, convert(value), place)
        translation.metrics(words, value, place)

    return Key(pattern, f"`{setting}`{more}", take)


def _old_does(setting: str) -> str:
    """Of `management.listener.*`."""
    if not setting:
        return "`true`: the one listener is HTTPS, `http.port` is off"
    tls = setting.removeprefix("tls.")
    return f"`http.tls.{tls}`, where its ssl is true" + ("" if tls != setting else f"; else `http.{setting}`")


def _channels(value: str) -> int:
    return number(value) or CHANNEL_MAX


def _login_from(value: str) -> str:
    return "subject_alternative_name" if value == "subject_alt_name" else value


def _together(pattern: str, does: str, take: Take) -> Key:
    return Key(pattern, does, take)


INTERNAL: Final = ("internal", "rabbit_auth_backend_internal")
NO_CLUSTER: Final = "it is about RabbitMQ's clusters; those of amqpd have the settings cluster.*"
NO_ERLANG: Final = "it is about Erlang"
NO_PLUGIN: Final = "amqpd does not speak this protocol"
ONE_LOG: Final = "amqpd has one log, on standard error or in a file that logrotate and SIGUSR1 rotate"
MAKE_BY_HAND: Final = "declare it with amqpctl or in definitions"
PLAIN_KEYS: Final = (
    "amqpd reads keys and certificates from files, without a passphrase (openssl pkey -in KEY -out PLAIN)"
)
VERSIONS: Final = "nothing, if 1.2 is among them; else **refused**"
ALONE: Final = "Without a key of management.tcp `http.port` is off"
SOCKETS: Final = "sockets have the kernel's values, with TCP_NODELAY and a backlog as long as it allows"
STATISTICS: Final = "statistics are counted where they arise and read when they are asked for"
LOG_LEVEL: Final = "`log.level`; notice is info, critical and above are error"

# fmt: off
ROWS: Final[tuple[Key, ...]] = (
    # -- listeners
    _together("listeners.tcp", "`none`: `amqp.port` is off", Translation.no_listener),
    _together("listeners.ssl", "`none`: `amqp.tls.port` is off", Translation.no_listener),
    _together("listeners.tcp.$name", "`amqp.port`, with addresses `amqp.host`; one port", Translation.listener),
    _together("listeners.ssl.$name", "`amqp.tls.port`, with addresses `amqp.host`; one port", Translation.listener),
    _same("handshake_timeout", "amqp.handshake_timeout_s", handshake_s, ", from milliseconds; an hour at most"),
    _same("heartbeat", "amqp.heartbeat_s", number),
    _same("frame_max", "amqp.frame_max", frame_size, "; 0 is 128 MiB"),
    _same("channel_max", "amqp.channel_max", _channels, "; 0 is 65535"),
    _same("max_channels_per_connection", "amqp.channel_max", _channels, "; 0 is 65535"),
    _same("max_message_size", "amqp.message_size_max_bytes", number),
    _only("proxy_protocol", ("false",), "amqpd does not read the PROXY header, and clients' addresses would be wrong"),
    *_nothing(SOCKETS, "tcp_listen_options", "tcp_listen_options.*", "num_acceptors.tcp", "num_acceptors.ssl"),
    *_nothing("frames before connection.tune-ok have at most 8 KiB", "initial_frame_max"),
    *_nothing("a handshake with TLS may take 5 s", "ssl_handshake_timeout"),
    *_nothing("addresses are shown as numbers", "reverse_dns_lookups"),
    *_nothing(
        "the process's descriptors are the limit, see limits.reserved_descriptors", "connection_max", "max_connections"
    ),
    *_nothing(
        "see docs/limits.md for limits of a vhost or a user",
        "channel_max_per_node", "consumer_max_per_channel", "session_max_per_connection", "link_max_per_session",
        "vhost_max", "cluster_exchange_limit", "cluster_queue_limit",
    ),
    # -- TLS
    _only("ssl_options", ("none",), "name its keys, ssl_options.certfile and so on"),
    _same("ssl_options.cacertfile", "amqp.tls.ca"),
    _same("ssl_options.certfile", "amqp.tls.certificate", more="; the chain belongs into this file"),
    _same("ssl_options.keyfile", "amqp.tls.key"),
    _same("ssl_options.verify", "amqp.tls.verify_peer", verify),
    _same("ssl_options.fail_if_no_peer_cert", "amqp.tls.fail_if_no_peer_certificate", boolean),
    _together("ssl_options.versions.$n", VERSIONS, Translation.tls_version),
    *_refused(
        PLAIN_KEYS,
        "ssl_options.password", "ssl_options.cert", "ssl_options.cacerts.$name", "ssl_options.key.*",
    ),
    _only("ssl_options.crl_check", ("false",), "amqpd does not look at lists of revoked certificates"),
    _same("ssl_options.depth", "amqp.tls.depth", chain_depth),
    _together("ssl_options.ciphers.$name", "`amqp.tls.ciphers`, in the order of the lines", Translation.cipher),
    *_nothing(
        "OpenSSL chooses",
        "ssl_options.honor_cipher_order", "ssl_options.honor_ecc_order", "ssl_options.dh",
        "ssl_options.dhfile", "ssl_options.client_renegotiation", "ssl_options.secure_renegotiate",
        "ssl_options.reuse_sessions", "ssl_options.bypass_pem_cache", "ssl_options.psk_identity",
        "ssl_options.log_level", "ssl_options.log_alert", "ssl_allow_poodle_attack",
    ),
    # -- users
    _same("default_user", "default.user"),
    _same("default_pass", "default.password"),
    _same("default_vhost", "default.vhost"),
    _together("default_user_tags.$tag", "`default.tags`", Translation.user_tag),
    _same("default_permissions.configure", "default.configure"),
    _same("default_permissions.write", "default.write"),
    _same("default_permissions.read", "default.read"),
    _together("loopback_users", "`none`: `amqp.loopback_users` is empty", Translation.no_loopback_users),
    _together("loopback_users.$user", "`amqp.loopback_users`: those that are true", Translation.loopback_user),
    _only("auth_backends.$n", INTERNAL, "amqpd keeps its users itself"),
    _only("auth_backends.$n.authn", INTERNAL, "amqpd keeps its users itself"),
    _only("auth_backends.$n.authz", INTERNAL, "amqpd keeps its users itself"),
    _together("auth_mechanisms.$n", "`auth.mechanisms`: PLAIN, AMQPLAIN, EXTERNAL", Translation.mechanism),
    *_refused("amqpd keeps its users itself", "auth_ldap.*", "auth_http.*", "auth_oauth2.*"),
    *_nothing("logins are answered from memory", "auth_cache.*"),
    _only("anonymous_login_user", ("none",), "a login needs a password"),
    *_nothing("a login needs a password", "anonymous_login_pass"),
    _same("ssl_cert_login_from", "auth.ssl_cert_login_from", _login_from),
    _same("ssl_cert_login_san_type", "auth.ssl_cert_login_san_type", more="; `other_name` is **refused**"),
    _same("ssl_cert_login_san_index", "auth.ssl_cert_login_san_index", number),
    _together(
        "password_hashing_module", "`auth.password_hashing`; MD5: nothing, argon2id stays", Translation.password_hashing
    ),
    _only(
        "credential_validator.validation_backend",
        ("rabbit_credential_validator_accept_everything",),
        "amqpd takes every password",
    ),
    *_nothing("amqpd takes every password", "credential_validator.min_length", "credential_validator.regexp"),
    *_refused(MAKE_BY_HAND, "default_users.*", "default_policies.*", "default_limits.*"),
    # -- definitions
    _same("load_definitions", "load_definitions"),
    _same("management.load_definitions", "load_definitions"),
    _same("definitions.local.path", "definitions.local.path"),
    _same("definitions.skip_if_unchanged", "definitions.skip_if_unchanged", boolean),
    _only(
        "definitions.import_backend", ("local_filesystem", "rabbit_definitions_import_local_filesystem"),
        "amqpd imports definitions from files",
    ),
    *_refused("amqpd imports definitions from files", "definitions.https.url"),
    *_nothing("amqpd imports definitions from files", "definitions.tls.*"),
    *_nothing("files are compared byte for byte", "definitions.hashing.algorithm"),
    # -- memory and disk
    _same("vm_memory_high_watermark.relative", "limits.memory_high_watermark", share),
    _same("vm_memory_high_watermark.absolute", "limits.memory_bytes", size_bytes, "; units as RabbitMQ has them"),
    _same("disk_free_limit.relative", "limits.disk_free_memory_multiple", share),
    _same("disk_free_limit.absolute", "limits.disk_free_bytes", size_bytes, "; units as RabbitMQ has them"),
    *_nothing("amqpd does not page: a queue's messages are in its log", "vm_memory_high_watermark_paging_ratio"),
    *_nothing("memory and disk are looked at each second", "memory_monitor_interval", "disk_monitor_interval"),
    *_nothing("it is the resident memory", "vm_memory_calculation_strategy"),
    *_nothing("set limits.memory_bytes instead", "total_memory_available_override_value"),
    # -- queues
    _same("consumer_timeout", "consumer_timeout_ms", number, "; what it does: `consumer_timeout_response`"),
    *_nothing("it is a vhost's: amqpctl add_vhost --default-queue-type", "default_queue_type"),
    *_nothing(
        "each queue is a log; see amqpd's settings storage.*",
        "classic_queue.*", "quorum_queue.*", "stream.replication.*", "queue_index_embed_msgs_below",
        "queue_index_max_journal_entries", "message_store_shutdown_timeout", "msg_store.*", "raft.*",
        "mirroring_sync_batch_size", "mirroring_sync_max_throughput", "lazy_queue_explicit_gc_run_operation_threshold",
        "queue_explicit_gc_run_operation_threshold", "stream_queue.*",
    ),
    *_nothing("transient queues are taken as they always were", "deprecated_features.permit.*"),
    # -- the log
    _together("log.dir", "`log.file`: where a relative one is", Translation.log_key),
    _together("log.file", "`log.file`", Translation.log_key),
    _together("log.file.level", f"{LOG_LEVEL}; counts with log.file", Translation.log_key),
    _together("log.file.formatter", "`log.format`; counts with log.file", Translation.log_key),
    _together("log.console", "standard error, where there is no log.file", Translation.log_key),
    _together("log.console.level", f"{LOG_LEVEL}; counts without log.file", Translation.log_key),
    _together("log.console.formatter", "`log.format`; counts without log.file", Translation.log_key),
    _together("log.default.level", f"{LOG_LEVEL}; where the other two are not given", Translation.log_key),
    *_nothing(
        ONE_LOG,
        "log.file.*", "log.console.*", "log.default.*", "log.exchange", "log.exchange.*", "log.journald",
        "log.journald.*", "log.syslog", "log.syslog.*", "log.connection.*", "log.channel.*", "log.mirroring.*",
        "log.queue.*", "log.federation.*", "log.upgrade.*", "log.ra.*", "log.prelaunch.*", "log.shovel.*", "log.ldap.*",
        "log.user.*",
    ),
    # -- the admin API
    _admin("management.tcp.port", "http.port", number),
    _admin("management.tcp.ip", "http.host"),
    _together("management.tcp.*", f"nothing: {OWN_LIMITS}", Translation.admin_unused),
    _admin("management.ssl.port", "http.tls.port", number, f"; 15671 where it is missing. {ALONE}"),
    _admin("management.ssl.ip", "http.tls.host"),
    _admin("management.ssl.cacertfile", "http.tls.ca"),
    _admin("management.ssl.certfile", "http.tls.certificate", more="; the chain belongs into this file"),
    _admin("management.ssl.keyfile", "http.tls.key"),
    _admin("management.ssl.verify", "http.tls.verify_peer", verify),
    _admin("management.ssl.fail_if_no_peer_cert", "http.tls.fail_if_no_peer_certificate", boolean),
    _together("management.ssl.versions.$n", VERSIONS, Translation.tls_version),
    *_refused(PLAIN_KEYS, "management.ssl.password"),
    _admin("management.ssl.depth", "http.tls.depth", chain_depth),
    _together("management.ssl.ciphers.$name", "`http.tls.ciphers`, in the order of the lines", Translation.cipher),
    _together("management.ssl.*", f"nothing: {OWN_LIMITS}", Translation.admin_unused),
    *(
        _together(f"management.listener.{key}", _old_does(setting), Translation.old_admin_listener)
        for key, (setting, _) in OLD_LISTENER.items()
    ),
    _only("management.listener.ssl_opts", ("none",), "name its keys, management.ssl.certfile and so on"),
    _together(
        "management.listener.ssl_opts.versions.$n", VERSIONS, Translation.tls_version
    ),
    *_refused(
        PLAIN_KEYS, "management.listener.ssl_opts.password", "management.listener.ssl_opts.cert",
        "management.listener.ssl_opts.cacerts.$name", "management.listener.ssl_opts.key.*",
    ),
    _only(
        "management.listener.ssl_opts.crl_check", ("false",), "amqpd does not look at lists of revoked certificates"
    ),
    _together(
        "management.listener.ssl_opts.ciphers.$name", "`http.tls.ciphers`, where its ssl is true", Translation.cipher
    ),
    *_nothing("OpenSSL chooses", "management.listener.ssl_opts.*"),
    _same("management.login_session_timeout", "http.login_session_timeout_s", minutes_s, ", from minutes"),
    *_refused("the admin API is at /api", "management.path_prefix"),
    *_refused(
        "users log in by name and password, or by a certificate", "management.disable_basic_auth",
        "management.oauth_disable_basic_auth",
    ),
    _only("management.enable_uaa", ("false",), "users log in by name and password"),
    _only("management.oauth_enabled", ("false",), "users log in by name and password"),
    *_nothing(
        "users log in by name and password",
        "management.oauth_client_id", "management.oauth_client_secret", "management.oauth_provider_url",
        "management.oauth_scopes", "management.oauth_metadata_url", "management.oauth_initiated_logon_type",
        "management.oauth_response_type", "management.oauth_resource_servers.*", "management.uaa_client_id",
        "management.uaa_location",
    ),
    *_nothing(
        OWN_LIMITS,
        "management.listener.server.*", "management.http.max_body_size", "management.http_log_dir",
        "management.db_cache_multiplier", "management.cors.*", "management.csp.policy", "management.hsts.policy",
        "management.headers.*", "management.restrictions.*", "management.delegate_count",
        "management.http.hide_allow_header", "management.credential_encryption_secret", "management.definitions.*",
        "http_dispatch.access_log_dir",
    ),
    *_nothing(
        STATISTICS,
        "management.rates_mode", "management.sample_retention_policies.*", "management.disable_stats",
        "management.enable_queue_totals", "management_agent.*", "collect_statistics",
        "collect_statistics_interval",
    ),
    _metrics("prometheus.tcp.port", "metrics.port", number, "; 15692 where only others, or enabled_plugins, say so"),
    _metrics("prometheus.tcp.ip", "metrics.host"),
    _only("prometheus.path", ("/metrics",), "amqpd has metrics at /metrics"),
    _metrics("prometheus.return_per_object_metrics", "metrics.return_per_object_metrics", boolean),
    *_refused("metrics over TLS are at /metrics of management.ssl's port", "prometheus.ssl.*"),
    _together("prometheus.*", f"nothing: {OWN_LIMITS}", Translation.metrics_unused),
    # -- one node, and no Erlang
    *_nothing("amqpctl set_cluster_name sets it", "cluster_name"),
    *_nothing(
        NO_CLUSTER,
        "cluster_partition_handling", "cluster_partition_handling.*", "cluster_formation.*",
        "cluster_keepalive_interval", "khepri_default_timeout", "khepri_leader_wait_retry_timeout",
        "khepri_leader_wait_retry_limit",
        "cluster_tags.*", "node_tags.*", "queue_master_locator", "queue_leader_locator", "delegate_count",
        "mnesia_table_loading_retry_timeout", "mnesia_table_loading_retry_limit", "metadata_store.*",
        "vhost_restart_strategy", "target_cluster_size_hint",
    ),
    *_nothing(
        NO_ERLANG,
        "erlang.*", "net_ticktime", "distribution.*", "sysmon_handler.*", "hipe_compile", "background_gc_enabled",
        "background_gc_target_interval", "socket_writer.gc_threshold", "default_worker_pool_size", "runtime.*",
    ),
    *_nothing("amqpd shows its own; the setting compat names RabbitMQ to clients", "product.*", "motd_file"),
    *_nothing("nothing is encrypted in this file", "config_entry_decoder.*"),
    *_nothing("messages pass as they are", "message_interceptors.*", "channel_interceptor.*"),
    *_nothing("the setting event_exchange_vhost has it", "event_exchange.*"),
    *_nothing(NO_PLUGIN, "mqtt.*", "stomp.*", "stream.*", "web_mqtt.*", "web_stomp.*", "amqp1_0.*"),
    *_nothing("amqpd has no such plugin", "aws.*", "trust_store.*", "shovel.*", "federation.*", "tracing.*"),
)
# fmt: on
