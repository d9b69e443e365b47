"""The keys of `rabbitmq.conf`: one row each, with what becomes of it.

A row's pattern is the key's words; `$name` stands for any one word, `*` at its end for any further ones. The row that
is first in ROWS counts. Its `does` says to users what becomes of the key, and stands as it is in docs/rabbitmq-conf.md.

Kinds of rows: a key that is a setting by another name (`_same`), keys that make one together (methods of
`Translation`, which `finish` adds up), keys that change nothing here (`_nothing`: a note), and keys that must not be
passed over (`_refused`, and `_only` for some values). Sources: the schemas of RabbitMQ 3.10.8, and the documentation of
3.13 and 4.x for newer keys.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import PurePosixPath
from typing import Final, NamedTuple

FRAME_MAX_BYTES: Final = 1 << 27
CHANNEL_MAX: Final = 65535
HANDSHAKE_MAX_S: Final = 3600.0
LEVELS: Final = {
    "debug": "debug",
    "info": "info",
    "notice": "info",
    "warning": "warning",
    **dict.fromkeys(("error", "critical", "alert", "emergency", "none"), "error"),
}
_SIZE: Final = re.compile(r"([0-9]{1,18})(?:([kmgtp])(i?b)?)?", re.IGNORECASE)


class Translation:
    """What the keys seen so far add up to. values, sources, notes, problems: as `rabbitmq_conf.Found` has them."""

    def __init__(self) -> None:
        self.values: dict[str, object] = {}
        self.sources: dict[str, str] = {}
        self.notes: list[str] = []
        self.problems: list[str] = []
        self._listeners: dict[str, list[tuple[str, int, str]]] = {"tcp": [], "ssl": []}
        self._off: dict[str, str] = {}  # protocol -> where it is said
        self._loopback: dict[str, bool] = {}
        self._loopback_place = ""
        self._tags: list[str] | None = None
        self._tags_place = ""
        self._log: dict[str, tuple[str, str]] = {}
        self._versions: list[str] = []
        self._versions_place = ""

    def set(self, name: str, value: object, place: str) -> None:
        """A setting's value. place: `FILE:LINE: KEY`."""
        self.values[name], self.sources[name] = value, f"file {place}"

    # -- keys that make something together -----------------------------------------------------------------------------

    def listener(self, words: Sequence[str], value: str, place: str) -> None:
        """`listeners.tcp.$name`, `listeners.ssl.$name`: a port, or ADDRESS:PORT."""
        host, _, port = value.rpartition(":")
        if not port.isascii() or not port.isdecimal():
            raise ValueError(f"must be a port or ADDRESS:PORT, not {value!r}")
        self._listeners[words[1]].append((host.strip("[]"), int(port), place))

    def no_listener(self, words: Sequence[str], value: str, place: str) -> None:
        if value != "none":
            raise ValueError(f"must be none, not {value!r}")
        self._off[words[1]] = place

    def loopback_user(self, words: Sequence[str], value: str, place: str) -> None:
        self._loopback[words[1]] = _boolean(value)
        self._loopback_place = place

    def no_loopback_users(self, _words: Sequence[str], value: str, place: str) -> None:
        if value != "none":
            raise ValueError(f"must be none, not {value!r}")
        self._loopback, self._loopback_place = {"": False}, place

    def user_tag(self, words: Sequence[str], value: str, place: str) -> None:
        self._tags, self._tags_place = self._tags or [], place
        if _boolean(value):
            self._tags.append(words[1])

    def log_key(self, words: Sequence[str], value: str, place: str) -> None:
        """`log.console`, `log.file.level` and the like: `finish` knows which of them count."""
        key = ".".join(words[1:])
        if key.endswith("level") and value not in LEVELS:
            raise ValueError(f"must be one of {', '.join(LEVELS)}, not {value!r}")
        if key.endswith("formatter") and value not in {"plaintext", "json"}:
            raise ValueError(f"must be plaintext or json, not {value!r}")
        self._log[key] = value, place

    def tls_version(self, _words: Sequence[str], value: str, place: str) -> None:
        self._versions.append(value)
        self._versions_place = place

    def finish(self) -> None:
        """After the last key."""
        self._finish_listeners("tcp", "amqp.port")
        self._finish_listeners("ssl", "amqp.tls.port")
        if self._loopback_place:
            users = [user for user, only in self._loopback.items() if only]
            self.set("amqp.loopback_users", users, self._loopback_place)
        if self._tags is not None:
            self.set("default.tags", self._tags, self._tags_place)
        if self._versions and "tlsv1.2" not in self._versions:
            self.problems.append(f"{self._versions_place}: amqpd talks TLS 1.2 and 1.3, and cannot leave out 1.2")
        elif self._versions and sorted(self._versions) != ["tlsv1.2", "tlsv1.3"]:
            self.notes.append(f"{self._versions_place}: amqpd talks TLS 1.2 and 1.3, always")
        self._finish_log()

    def _finish_listeners(self, protocol: str, setting: str) -> None:
        listeners = self._listeners[protocol]
        if protocol in self._off:
            self.set(setting, "off", self._off[protocol])
            return
        if not listeners:
            return
        place = listeners[-1][2]
        if len({port for _, port, _ in listeners}) > 1:
            self.problems.append(f"{place}: amqpd listens on one port for each protocol, and there are others above")
            return
        self.set(setting, listeners[0][1], place)
        addresses = dict.fromkeys(host for host, _, _ in listeners)
        hosts = "" if "" in addresses else ",".join(addresses)
        if not hosts and "amqp.host" not in self.values:
            return
        if self.values.setdefault("amqp.host", hosts) != hosts:
            self.problems.append(f"{place}: amqpd listens on the same addresses with and without TLS")
            return
        self.sources["amqp.host"] = f"file {place}"

    def _finish_log(self) -> None:
        """One place, as amqpd has it: the file if there is one, else standard error."""
        file, place = self._log.get("file", ("false", ""))
        kind = "console"
        if file != "false":
            kind = "file"
            folder = self._log.get("dir", ("", ""))[0]
            self.set("log.file", str(PurePosixPath(folder) / file), place)
            if self._log.get("console", ("false", ""))[0] == "true":
                self.notes.append(f"{self._log['console'][1]}: amqpd logs to one place, the file")
        elif self._log.get("console", ("true", ""))[0] == "false":
            self.notes.append(f"{self._log['console'][1]}: without a file the log goes to standard error")
        for key, setting in (("level", "log.level"), ("formatter", "log.format")):
            for name in (f"{kind}.{key}", f"default.{key}"):
                if name in self._log:
                    value, place = self._log[name]
                    self.set(setting, LEVELS.get(value, "json" if value == "json" else "text"), place)
                    break


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


# -- values ------------------------------------------------------------------------------------------------------------


def _boolean(value: str) -> bool:
    if value not in {"true", "false", "on", "off"}:
        raise ValueError(f"must be true or false, not {value!r}")
    return value in {"true", "on"}


def _number(value: str) -> int:
    if not re.fullmatch(r"-?[0-9]{1,18}", value):
        raise ValueError(f"must be a whole number, not {value!r}")
    return int(value)


def _share(value: str) -> float:
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,18})?", value):
        raise ValueError(f"must be a number such as 0.6, not {value!r}")
    return float(value)


def size_bytes(value: str) -> int:
    """rabbit: `k`, `KiB` are 1024 bytes, `kB` 1000; likewise the others. Raises: ValueError."""
    found = _SIZE.fullmatch(value)
    if found is None:
        raise ValueError(f"must be a number of bytes such as 2GB or 512MiB, not {value!r}")
    size = int(found[1])
    for _ in range(" kmgtp".index((found[2] or " ").lower())):
        size *= 1000 if (found[3] or "").lower() == "b" else 1024
    return size


def _frame_size(value: str) -> int:
    """rabbit: here `kb`, `mb`, `gb` are powers of 1024, and 0 is no limit."""
    found = re.fullmatch(r"([0-9]{1,12})(kb|mb|gb)?", value, re.IGNORECASE)
    if found is None:
        raise ValueError(f"must be a number of bytes, not {value!r}")
    return int(found[1]) << {"": 0, "kb": 10, "mb": 20, "gb": 30}[(found[2] or "").lower()] or FRAME_MAX_BYTES


def _handshake_s(value: str) -> float:
    return HANDSHAKE_MAX_S if value == "infinity" else _number(value) / 1000


def _verify(value: str) -> bool:
    if value not in {"verify_peer", "verify_none"}:
        raise ValueError(f"must be verify_peer or verify_none, not {value!r}")
    return value == "verify_peer"


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


def _together(pattern: str, does: str, take: Take) -> Key:
    return Key(pattern, does, take)


INTERNAL: Final = ("internal", "rabbit_auth_backend_internal")
NO_CLUSTER: Final = "amqpd is one node"
NO_ERLANG: Final = "it is about Erlang"
NO_PLUGIN: Final = "amqpd does not speak this protocol"
ONE_LOG: Final = "amqpd has one log, on standard error or in a file that logrotate and SIGUSR1 rotate"
MAKE_BY_HAND: Final = "declare it with amqpctl or in definitions"
NO_HTTPS: Final = "the admin API of this version speaks plain HTTP; put a proxy with TLS in front of it"
AFTER_START: Final = "start without it, then `amqpctl import_definitions FILE`"
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
    _same("handshake_timeout", "amqp.handshake_timeout_s", _handshake_s, ", from milliseconds; an hour at most"),
    _same("heartbeat", "amqp.heartbeat_s", _number),
    _same("frame_max", "amqp.frame_max", _frame_size, "; 0 is 128 MiB"),
    _same("channel_max", "amqp.channel_max", lambda value: _number(value) or CHANNEL_MAX, "; 0 is 65535"),
    _same("max_message_size", "amqp.message_size_max_bytes", _number),
    _only("proxy_protocol", ("false",), "amqpd does not read the PROXY header, and clients' addresses would be wrong"),
    *_nothing(SOCKETS, "tcp_listen_options", "tcp_listen_options.*", "num_acceptors.tcp", "num_acceptors.ssl"),
    *_nothing("frames before connection.tune-ok have at most 8 KiB", "initial_frame_max"),
    *_nothing("a handshake with TLS may take 5 s", "ssl_handshake_timeout"),
    *_nothing("addresses are shown as numbers", "reverse_dns_lookups"),
    *_nothing("the process's descriptors are the limit, see limits.reserved_descriptors", "connection_max"),
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
    _same("ssl_options.verify", "amqp.tls.verify_peer", _verify),
    _same("ssl_options.fail_if_no_peer_cert", "amqp.tls.fail_if_no_peer_certificate", _boolean),
    _together("ssl_options.versions.$n", "nothing, if 1.2 is among them; else **refused**", Translation.tls_version),
    *_refused(
        "amqpd reads keys and certificates from files, without a passphrase (openssl pkey -in KEY -out PLAIN)",
        "ssl_options.password", "ssl_options.cert", "ssl_options.cacerts.$name", "ssl_options.key.*",
    ),
    _only("ssl_options.crl_check", ("false",), "amqpd does not look at lists of revoked certificates"),
    _only("ssl_options.depth", tuple("123456789"), "chains may have up to nine certificates", shown="1 to 9"),
    *_nothing(
        "OpenSSL's choice stands",
        "ssl_options.ciphers.$name", "ssl_options.honor_cipher_order", "ssl_options.honor_ecc_order", "ssl_options.dh",
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
    _only("auth_mechanisms.$n", ("PLAIN", "AMQPLAIN"), "amqpd knows PLAIN and AMQPLAIN, and offers both"),
    *_refused("amqpd keeps its users itself", "auth_ldap.*", "auth_http.*", "auth_oauth2.*"),
    *_nothing("logins are answered from memory", "auth_cache.*"),
    _only("anonymous_login_user", ("none",), "nobody comes in without a password"),
    *_nothing("nobody comes in without a password", "anonymous_login_pass"),
    *_refused("a client's certificate is no login in this version", "ssl_cert_login_from"),
    *_nothing("see ssl_cert_login_from", "ssl_cert_login_san_type", "ssl_cert_login_san_index"),
    *_nothing("passwords are kept as argon2id", "password_hashing_module"),
    _only(
        "credential_validator.validation_backend",
        ("rabbit_credential_validator_accept_everything",),
        "amqpd takes every password",
    ),
    *_nothing("amqpd takes every password", "credential_validator.min_length", "credential_validator.regexp"),
    *_refused(MAKE_BY_HAND, "default_users.*", "default_policies.*", "default_limits.*"),
    # -- definitions
    *_refused(AFTER_START, "load_definitions", "management.load_definitions", "definitions.local.path"),
    *_refused(AFTER_START, "definitions.import_backend", "definitions.https.url"),
    *_nothing("no definitions are imported at a start", "definitions.*"),
    # -- memory and disk
    _same("vm_memory_high_watermark.relative", "limits.memory_high_watermark", _share),
    _same("vm_memory_high_watermark.absolute", "limits.memory_bytes", size_bytes, "; units as RabbitMQ has them"),
    _same("disk_free_limit.relative", "limits.disk_free_memory_multiple", _share),
    _same("disk_free_limit.absolute", "limits.disk_free_bytes", size_bytes, "; units as RabbitMQ has them"),
    *_nothing("amqpd does not page: a queue's messages are in its log", "vm_memory_high_watermark_paging_ratio"),
    *_nothing("memory and disk are looked at each second", "memory_monitor_interval", "disk_monitor_interval"),
    *_nothing("it is the resident memory", "vm_memory_calculation_strategy"),
    *_nothing("set limits.memory_bytes instead", "total_memory_available_override_value"),
    # -- queues
    _same("consumer_timeout", "consumer_timeout_ms", _number, "; what it does: `consumer_timeout_response`"),
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
    ),
    # -- the admin API
    _same("management.tcp.port", "http.port", _number),
    _same("management.tcp.ip", "http.host"),
    _same("management.listener.port", "http.port", _number),
    _same("management.listener.ip", "http.host"),
    _only("management.listener.ssl", ("false",), NO_HTTPS),
    _only("management.listener.ssl_opts", ("none",), NO_HTTPS),
    *_refused(NO_HTTPS, "management.ssl.*", "management.listener.ssl_opts.*"),
    *_refused("the admin API is at /api", "management.path_prefix"),
    *_refused("users log in by name and password", "management.disable_basic_auth"),
    _only("management.enable_uaa", ("false",), "users log in by name and password"),
    _only("management.oauth_enabled", ("false",), "users log in by name and password"),
    *_nothing(
        "users log in by name and password",
        "management.oauth_client_id", "management.oauth_client_secret", "management.oauth_provider_url",
        "management.oauth_scopes", "management.oauth_metadata_url", "management.oauth_initiated_logon_type",
        "management.oauth_response_type", "management.oauth_resource_servers.*", "management.uaa_client_id",
        "management.uaa_location", "management.login_session_timeout",
    ),
    *_nothing(
        "the admin API has limits of its own",
        "management.tcp.*", "management.listener.server.*", "management.http.max_body_size", "management.http_log_dir",
        "management.db_cache_multiplier", "management.cors.*", "management.csp.policy", "management.hsts.policy",
        "management.headers.*", "management.restrictions.*", "management.delegate_count",
    ),
    *_nothing(
        STATISTICS,
        "management.rates_mode", "management.sample_retention_policies.*", "management.disable_stats",
        "management.enable_queue_totals", "management_agent.*", "collect_statistics",
        "collect_statistics_interval",
    ),
    *_nothing("metrics are at /metrics of the admin API, without a password", "prometheus.*"),
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
    *_nothing("messages pass as they are", "message_interceptors.*"),
    *_nothing("the setting event_exchange_vhost has it", "event_exchange.*"),
    *_nothing(NO_PLUGIN, "mqtt.*", "stomp.*", "stream.*", "web_mqtt.*", "web_stomp.*", "amqp1_0.*"),
    *_nothing("amqpd has no such plugin", "aws.*", "trust_store.*", "shovel.*", "federation.*", "tracing.*"),
)
# fmt: on
