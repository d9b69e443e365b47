r"""RabbitMQ's configuration file, `rabbitmq.conf`: its format, its keys, and the settings that they become.

Format, as RabbitMQ's parser (cuttlefish) reads it:

    key = value            a key is words joined by dots; `\.` is a dot in a word; of two equal keys the last counts
    key = 'a # b'          single quotes around any text without a single quote (RabbitMQ 3.12 and newer)
    # comment              also after a value
    include conf/*.conf    relative to the file with the line; the included lines replace it
    key = $(NAME)          anywhere in a value: a variable of the environment (RabbitMQ 4.0 and newer)

After the main file come `conf.d/*.conf` beside it, or the files of RABBITMQ_CONFIG_FILES, in the order of their
names.

ROWS has one row for each key. A pattern is the key's words: `$name` matches one word, a final `*` any further
words. The first row that matches counts. `does` tells users the effect, and docs/moving.md shows it. The kinds of
rows:

- `_same`: a setting with another name
- methods of `Translation`: several keys make one setting
- `_ignored`: a key without effect, and without harm; a note
- `_refused`, and `_fixed_value` for some values: ignoring the key would change a meaning or lower safety; an error

A key that RabbitMQ does not have is an error too. Sources: the schemas of RabbitMQ 3.10.8, and the documentation of
3.13 and 4.x for newer keys.

**Plugins.** RabbitMQ enables those in `enabled_plugins` beside `rabbitmq.conf`, a file with an Erlang list. The
variable RABBITMQ_ENABLED_PLUGINS_FILE names another file; RABBITMQ_ENABLED_PLUGINS has the names themselves and
comes first. In amqpd a plugin is built in or missing, which is a note. Only `rabbitmq_prometheus` has an effect: a
listener for metrics.

Imported only if such a file is named, by `--config` or AMQPD_CONFIG with `.conf`, or by a variable of RabbitMQ's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path, PurePosixPath
from stat import S_ISREG
from typing import Final, NamedTuple

from amqpd.config.types import file_exists

PROMETHEUS: Final = "rabbitmq_prometheus"
PART_OF_IT: Final = frozenset(
    (
        "rabbitmq_auth_mechanism_ssl",
        "rabbitmq_consistent_hash_exchange",
        "rabbitmq_delayed_message_exchange",
        "rabbitmq_event_exchange",
        "rabbitmq_jms_topic_exchange",
        "rabbitmq_management",
        "rabbitmq_management_agent",
        "rabbitmq_message_deduplication",
        "rabbitmq_prometheus",
        "rabbitmq_random_exchange",
        "rabbitmq_recent_history_exchange",
    )
)
FILE: Final = "RABBITMQ_ENABLED_PLUGINS_FILE"
NAMES: Final = "RABBITMQ_ENABLED_PLUGINS"
_NAME: Final = re.compile(r"[a-z][a-z0-9_@]*")


def enabled(folder: Path | None, environ: Mapping[str, str], notes: list[str]) -> dict[str, str]:
    """Return plugin -> its source. `folder` has `rabbitmq.conf`. `notes` gets a line for each missing plugin."""
    if text := environ.get(NAMES, ""):
        place = f"environment {NAMES}"
    else:
        path = Path(named) if (named := environ.get(FILE, "")) else folder and folder / "enabled_plugins"
        if path is None or not file_exists(path, True, S_ISREG):
            return {}
        place = f"file {path}"
        try:
            text = re.sub("%.*", "", path.read_text("utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            notes.append(f"{path}: cannot be read, so no plugin is enabled: {error}")
            return {}
    found = dict.fromkeys(_NAME.findall(text), place)
    for name in sorted(found.keys() - PART_OF_IT):
        notes.append(f"{place.removeprefix('file ')}: {name} changes nothing: amqpd has no such plugin")
    return found


FRAME_MAX_BYTES: Final = 1 << 27
CHANNEL_MAX: Final = 65535
HTTP_PORT: Final = 15672
HTTPS_PORT: Final = 15671
METRICS_PORT: Final = 15692
OWN_LIMITS: Final = "the admin API has its own limits, and OpenSSL decides about TLS"
MECHANISMS: Final = ("PLAIN", "AMQPLAIN", "EXTERNAL")
HANDSHAKE_MAX_S: Final = 3600.0
LEVELS: Final = {
    "debug": "debug",
    "info": "info",
    "notice": "info",
    "warning": "warning",
    **dict.fromkeys(("error", "critical", "alert", "emergency", "none"), "error"),
}
_SIZE: Final = re.compile(r"([0-9]{1,18})(?:([kmgtp])(i|i?b)?)?", re.IGNORECASE)


def boolean(value: str) -> bool:
    if value not in {"true", "false", "on", "off"}:
        raise ValueError(f"must be true or false, not {value!r}")
    return value in {"true", "on"}


def number(value: str) -> int:
    if not re.fullmatch(r"-?[0-9]{1,18}", value):
        raise ValueError(f"must be a whole number, not {value!r}")
    return int(value)


def share(value: str) -> float:
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,18})?", value):
        raise ValueError(f"must be a number such as 0.6, not {value!r}")
    return float(value)


def size_bytes(value: str) -> int:
    """Parse a size. rabbit: `k`, `KiB` and (3.13) `Ki` are 1024 bytes, `kB` is 1000; also m, g, t, p.

    Raises: ValueError.
    """
    found = _SIZE.fullmatch(value)
    if found is None:
        raise ValueError(f"must be a number of bytes such as 2GB or 512MiB, not {value!r}")
    size = int(found[1])
    for _ in range(" kmgtp".index((found[2] or " ").lower())):
        size *= 1000 if (found[3] or "").lower() == "b" else 1024
    return size


def frame_size(value: str) -> int:
    """Parse a frame size. rabbit: here `kb`, `mb`, `gb` are powers of 1024, and 0 is no limit."""
    found = re.fullmatch(r"([0-9]{1,12})(kb|mb|gb)?", value, re.IGNORECASE)
    if found is None:
        raise ValueError(f"must be a number of bytes, not {value!r}")
    return int(found[1]) << {"": 0, "kb": 10, "mb": 20, "gb": 30}[(found[2] or "").lower()] or FRAME_MAX_BYTES


def handshake_s(value: str) -> float:
    return HANDSHAKE_MAX_S if value == "infinity" else number(value) / 1000


def minutes_s(value: str) -> float:
    return number(value) * 60.0


def verify(value: str) -> bool:
    if value not in {"verify_peer", "verify_none"}:
        raise ValueError(f"must be verify_peer or verify_none, not {value!r}")
    return value == "verify_peer"


def chain_depth(value: str) -> int:
    """Parse a chain depth. rabbit: up to 255; OpenSSL checks 100 certificates at most."""
    depth = number(value)
    if not 0 <= depth <= 255:
        raise ValueError(f"must be 0 to 255, not {value!r}")
    return min(depth, 100)


# `management.listener.*` without its first words -> (setting below `http` or "", conversion)
OLD_LISTENER: Final[dict[str, tuple[str, Callable[[str], object]]]] = {
    "port": ("port", number),
    "ip": ("host", str),
    "ssl": ("", boolean),
    "ssl_opts.cacertfile": ("tls.ca", str),
    "ssl_opts.certfile": ("tls.certificate", str),
    "ssl_opts.keyfile": ("tls.key", str),
    "ssl_opts.verify": ("tls.verify_peer", verify),
    "ssl_opts.fail_if_no_peer_cert": ("tls.fail_if_no_peer_certificate", boolean),
    "ssl_opts.depth": ("tls.depth", chain_depth),
}


class Translation:
    """Settings of the keys read so far. Several keys can make one setting; `finish` completes these.

    `values`, `sources`, `notes` and `problems` are those of `ConfResult`. A method raises ValueError with a text that
    follows the key.
    """

    def __init__(self) -> None:
        self.values: dict[str, object] = {}
        self.sources: dict[str, str] = {}
        self.notes: list[str] = []
        self.problems: list[str] = []
        self._listeners: dict[str, list[tuple[str, int, str]]] = {"tcp": [], "ssl": []}
        self._off: dict[str, str] = {}  # protocol -> place
        self._loopback: dict[str, bool] = {}
        self._tags: list[str] = []
        self._log: dict[str, tuple[str, str]] = {}
        self._versions: dict[str, list[str]] = {}  # the key's first word -> versions
        self._versions_place: dict[str, str] = {}
        self._ciphers: dict[str, tuple[list[str], str]] = {}  # section -> (names, place of the last)
        self._mechanisms: list[str] = []
        self._admin: dict[str, str] = {}  # listener of the admin API -> place of its first key
        self._old_listener: dict[str, tuple[str, str]] = {}
        self._metrics_place = ""

    def set(self, name: str, value: object, place: str) -> None:
        """Set a setting. `place` is `FILE:LINE: KEY`."""
        self.values[name], self.sources[name] = value, f"file {place}"

    # -- keys that make one setting together ---------------------------------------------------------------------------

    def listener(self, words: Sequence[str], value: str, place: str) -> None:
        """Read `listeners.tcp.$name`, `listeners.ssl.$name`: a port, or ADDRESS:PORT."""
        if value.startswith(("unix:", "local:")):
            raise ValueError(f"cannot be {value}: amqpd listens for AMQP only on TCP addresses")
        host, _, port = value.rpartition(":")
        if not port.isascii() or not port.isdecimal():
            raise ValueError(f"must be a port or ADDRESS:PORT, not {value!r}")
        self._listeners[words[1]].append((host.strip("[]"), int(port), place))

    def no_listener(self, words: Sequence[str], value: str, place: str) -> None:
        if value != "none":
            raise ValueError(f"must be none, not {value!r}")
        self._off[words[1]] = place

    def loopback_user(self, words: Sequence[str], value: str, place: str) -> None:
        self._loopback[words[1]] = boolean(value)
        self.set("amqp.loopback_users", [user for user, only in self._loopback.items() if only], place)

    def no_loopback_users(self, _words: Sequence[str], value: str, place: str) -> None:
        if value != "none":
            raise ValueError(f"must be none, not {value!r}")
        self._loopback.clear()
        self.set("amqp.loopback_users", [], place)

    def user_tag(self, words: Sequence[str], value: str, place: str) -> None:
        if boolean(value):
            self._tags.append(words[1])
        self.set("default.tags", self._tags, place)

    def log_key(self, words: Sequence[str], value: str, place: str) -> None:
        """Read a `log.*` key. `finish` decides which of them count."""
        key = ".".join(words[1:])
        if key.endswith("level") and value not in LEVELS:
            raise ValueError(f"must be one of {', '.join(LEVELS)}, not {value!r}")
        if key.endswith("formatter") and value not in {"plaintext", "json"}:
            raise ValueError(f"must be plaintext or json, not {value!r}")
        self._log[key] = value, place

    def tls_version(self, words: Sequence[str], value: str, place: str) -> None:
        self._versions.setdefault(words[0], []).append(value)
        self._versions_place[words[0]] = place

    def cipher(self, words: Sequence[str], value: str, place: str) -> None:
        """Add a cipher of AMQP's or the admin API's TLS listeners, in the order of the lines."""
        section = "amqp.tls" if words[0] == "ssl_options" else "http.tls" if words[1] == "ssl" else "listener"
        names = self._ciphers[section][0] if section in self._ciphers else []
        self._ciphers[section] = [*names, value], place
        if section == "http.tls":
            self.admin_listener(words, value, place)

    def mechanism(self, _words: Sequence[str], value: str, place: str) -> None:
        """Add a mechanism of `auth_mechanisms.$n`, in the order of the lines."""
        if value not in MECHANISMS:
            raise ValueError(f"cannot be {value}: amqpd knows {', '.join(MECHANISMS)}")
        self._mechanisms.append(value)
        self.set("auth.mechanisms", self._mechanisms, place)

    def password_hashing(self, _words: Sequence[str], value: str, place: str) -> None:
        if value == "rabbit_password_hashing_md5":
            self.notes.append(f"{place} changes nothing: MD5 is verified, but no new hash is made with it")
        elif value in {"rabbit_password_hashing_sha256", "rabbit_password_hashing_sha512"}:
            self.set("auth.password_hashing", value, place)
        else:
            raise ValueError(f"must be rabbit_password_hashing_sha256 or ..._sha512, not {value!r}")

    def admin_listener(self, words: Sequence[str], _value: str, place: str) -> None:
        """Note that the admin API has this listener: a key of `management.tcp` or `management.ssl` exists."""
        self._admin.setdefault(words[1], place)

    def admin_unused(self, words: Sequence[str], value: str, place: str) -> None:
        """Handle a key of the admin API's listener without a setting here: only note that there is the listener."""
        self.admin_listener(words, value, place)
        self.notes.append(f"{place} changes nothing: {OWN_LIMITS}")

    def old_admin_listener(self, words: Sequence[str], value: str, place: str) -> None:
        """Read a key of `management.listener.*`: one listener, with TLS or without."""
        key = ".".join(words[2:])
        OLD_LISTENER[key][1](value)  # to raise ValueError now
        self._old_listener[key] = value, place

    def metrics(self, _words: Sequence[str], _value: str, place: str) -> None:
        """Note that metrics have their own listener: a key of `prometheus`, or its plugin."""
        self._metrics_place = self._metrics_place or place

    def metrics_unused(self, words: Sequence[str], value: str, place: str) -> None:
        """Handle a key of the metrics listener without a setting here: only note that there is the listener."""
        self.metrics(words, value, place)
        self.notes.append(f"{place} changes nothing: {OWN_LIMITS}")

    def finish(self) -> None:
        """Complete the settings after the last key."""
        self._finish_listeners("tcp", "amqp.port")
        self._finish_listeners("ssl", "amqp.tls.port")
        for section, versions in self._versions.items():
            place = self._versions_place[section]
            if "tlsv1.2" not in versions:
                self.problems.append(f"{place}: amqpd supports TLS 1.2 and 1.3, and cannot disable 1.2")
            elif sorted(versions) != ["tlsv1.2", "tlsv1.3"]:
                self.notes.append(f"{place}: amqpd always supports TLS 1.2 and 1.3")
        self._finish_admin()
        if self._metrics_place and "metrics.port" not in self.values:
            self.set("metrics.port", METRICS_PORT, self._metrics_place)
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
            self.problems.append(f"{place}: amqpd has one port for each protocol, and a line above has another")
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

    def _finish_admin(self) -> None:
        """rabbit: with `management.ssl` alone there is no plain HTTP; `management.listener` is HTTP or HTTPS."""
        secure = self._old_listener.get("ssl", ("false", ""))[0] == "true"
        old_ciphers = self._ciphers.pop("listener", None)
        if secure and old_ciphers is not None:
            self._ciphers["http.tls"] = old_ciphers
        for section, (names, last) in self._ciphers.items():
            self.set(f"{section}.ciphers", names, last)
        for key, (value, place) in self._old_listener.items():
            setting, convert = OLD_LISTENER[key]
            self._admin.setdefault("ssl" if secure else "tcp", place)
            if setting.startswith("tls."):
                setting = setting if secure else ""
            elif setting and secure:
                setting = f"tls.{setting}"
            if setting:
                self.set(f"http.{setting}", convert(value), place)
        if secure:
            self.values.setdefault("http.tls.port", HTTP_PORT)
        if "ssl" not in self._admin:
            return
        place = self._admin["ssl"]
        if "http.tls.port" not in self.values:
            self.set("http.tls.port", HTTPS_PORT, place)
        self.sources.setdefault("http.tls.port", f"file {place}")
        if "tcp" not in self._admin:
            self.set("http.port", "off", place)

    def _finish_log(self) -> None:
        """Choose the one log that amqpd has: the file if there is one, else standard error."""
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
    """A row: a key and its effect.

    Attributes:
        does: the effect, as documentation for users
        take: applies a value; raises ValueError with a text that follows the key
    """

    pattern: str
    does: str
    take: Take

    def matches(self, words: Sequence[str]) -> bool:
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
    """Return the first row that matches a key."""
    return next((row for row in ROWS if row.matches(words)), None)


# -- kinds of rows -----------------------------------------------------------------------------------------------------


def _same(pattern: str, setting: str, convert: Callable[[str], object] = str, more: str = "") -> Key:
    """Return the row of a key that is a setting with another name."""

    def take(translation: Translation, _words: Sequence[str], value: str, place: str) -> None:
        translation.set(setting, convert(value), place)

    return Key(pattern, f"`{setting}`{more}", take)


def _ignored(why: str, *patterns: str) -> list[Key]:
    """Return rows of keys without effect; each makes a note."""

    def take(translation: Translation, _words: Sequence[str], _value: str, place: str) -> None:
        translation.notes.append(f"{place} changes nothing: {why}")

    return [Key(pattern, f"nothing: {why}", take) for pattern in patterns]


def _refused(why: str, *patterns: str) -> list[Key]:
    """Return rows of keys that must not be ignored; each is an error."""

    def take(_translation: Translation, _words: Sequence[str], _value: str, _place: str) -> None:
        raise ValueError(f"is not supported: {why}")

    return [Key(pattern, f"**refused**: {why}", take) for pattern in patterns]


def _fixed_value(pattern: str, allowed: Sequence[str], why: str) -> Key:
    """Return the row of a key with some allowed values, which need no setting."""

    def take(_translation: Translation, _words: Sequence[str], value: str, _place: str) -> None:
        if value not in allowed:
            raise ValueError(f"cannot be {value}: {why}")

    words = ", ".join(f"`{each}`" for each in allowed)
    return Key(pattern, f"{words}: nothing; anything else is **refused**: {why}", take)


def _opens(
    listener: Callable[[Translation, Sequence[str], str, str], None],
    pattern: str,
    setting: str,
    convert: Callable[[str], object] = str,
    more: str = "",
) -> Key:
    """Return the row of a setting that also opens a listener."""

    def take(translation: Translation, words: Sequence[str], value: str, place: str) -> None:
        translation.set(setting, convert(value), place)
        listener(translation, words, value, place)

    return Key(pattern, f"`{setting}`{more}", take)


_admin: Final = partial(_opens, Translation.admin_listener)
_metrics: Final = partial(_opens, Translation.metrics)


def _legacy_key(setting: str) -> str:
    """Return the documentation of a key of `management.listener.*`."""
    if not setting:
        return "`true`: the one listener is HTTPS, `http.port` is off"
    tls = setting.removeprefix("tls.")
    return f"`http.tls.{tls}`, where its ssl is true" + ("" if tls != setting else f"; else `http.{setting}`")


def _channels(value: str) -> int:
    return number(value) or CHANNEL_MAX


def _login_from(value: str) -> str:
    return "subject_alternative_name" if value == "subject_alt_name" else value


INTERNAL: Final = ("internal", "rabbit_auth_backend_internal")
NO_CLUSTER: Final = "it is about RabbitMQ's clusters; amqpd has the settings cluster.*"
NO_ERLANG: Final = "it is about Erlang"
NO_PLUGIN: Final = "amqpd does not speak this protocol"
ONE_LOG: Final = "amqpd has one log, on standard error or in a file that logrotate and SIGUSR1 rotate"
MAKE_BY_HAND: Final = "create it with amqpctl or in definitions"
PLAIN_KEYS: Final = (
    "amqpd reads keys and certificates from files, without a passphrase (openssl pkey -in KEY -out PLAIN)"
)
VERSIONS: Final = "nothing, if the list has 1.2; else **refused**"
ALONE: Final = "Without a key of management.tcp `http.port` is off"
SOCKETS: Final = "sockets use the kernel's values, TCP_NODELAY, keepalive and the longest possible backlog"
STATISTICS: Final = "amqpd has no database of statistics"
LOG_LEVEL: Final = "`log.level`; notice is info, critical and above are error"

# fmt: off
ROWS: Final[tuple[Key, ...]] = (
    # -- listeners
    Key("listeners.tcp", "`none`: `amqp.port` is off", Translation.no_listener),
    Key("listeners.ssl", "`none`: `amqp.tls.port` is off", Translation.no_listener),
    Key("listeners.tcp.$name", "`amqp.port`, with addresses `amqp.host`; one port", Translation.listener),
    Key("listeners.ssl.$name", "`amqp.tls.port`, with addresses `amqp.host`; one port", Translation.listener),
    _same("handshake_timeout", "amqp.handshake_timeout_s", handshake_s, ", from milliseconds; an hour at most"),
    _same("heartbeat", "amqp.heartbeat_s", number),
    _same("frame_max", "amqp.frame_max", frame_size, "; 0 is 128 MiB"),
    _same("channel_max", "amqp.channel_max", _channels, "; 0 is 65535"),
    _same("max_channels_per_connection", "amqp.channel_max", _channels, "; 0 is 65535"),
    _same("max_message_size", "amqp.message_size_max_bytes", number),
    _fixed_value(
        "proxy_protocol", ("false",), "amqpd does not read the PROXY header, and clients' addresses would be wrong"
    ),
    *_ignored(SOCKETS, "tcp_listen_options", "tcp_listen_options.*", "num_acceptors.tcp", "num_acceptors.ssl"),
    *_ignored("frames before connection.tune-ok have at most 8 KiB", "initial_frame_max"),
    *_ignored("a TLS handshake may take 5 s", "ssl_handshake_timeout"),
    *_ignored("amqpd shows addresses as numbers", "reverse_dns_lookups"),
    *_ignored(
        "the process's descriptors are the limit, see limits.reserved_descriptors", "connection_max", "max_connections"
    ),
    *_ignored(
        "see docs/limits.md for limits of a vhost or a user",
        "channel_max_per_node", "consumer_max_per_channel", "session_max_per_connection", "link_max_per_session",
        "vhost_max", "cluster_exchange_limit", "cluster_queue_limit",
    ),
    # -- TLS
    _fixed_value("ssl_options", ("none",), "use its keys, such as ssl_options.certfile"),
    _same("ssl_options.cacertfile", "amqp.tls.ca"),
    _same("ssl_options.certfile", "amqp.tls.certificate", more="; this file also has the chain"),
    _same("ssl_options.keyfile", "amqp.tls.key"),
    _same("ssl_options.verify", "amqp.tls.verify_peer", verify),
    _same("ssl_options.fail_if_no_peer_cert", "amqp.tls.fail_if_no_peer_certificate", boolean),
    Key("ssl_options.versions.$n", VERSIONS, Translation.tls_version),
    *_refused(
        PLAIN_KEYS,
        "ssl_options.password", "ssl_options.cert", "ssl_options.cacerts.$name", "ssl_options.key.*",
    ),
    _fixed_value("ssl_options.crl_check", ("false",), "amqpd does not check lists of revoked certificates"),
    _same("ssl_options.depth", "amqp.tls.depth", chain_depth),
    Key("ssl_options.ciphers.$name", "`amqp.tls.ciphers`, in the order of the lines", Translation.cipher),
    *_ignored(
        "OpenSSL decides",
        "ssl_options.honor_cipher_order", "ssl_options.honor_ecc_order", "ssl_options.dh",
        "ssl_options.dhfile", "ssl_options.client_renegotiation", "ssl_options.secure_renegotiate",
        "ssl_options.reuse_sessions", "ssl_options.bypass_pem_cache", "ssl_options.psk_identity",
        "ssl_options.log_level", "ssl_options.log_alert", "ssl_allow_poodle_attack",
    ),
    # -- users
    _same("default_user", "default.user"),
    _same("default_pass", "default.password"),
    _same("default_vhost", "default.vhost"),
    Key("default_user_tags.$tag", "`default.tags`", Translation.user_tag),
    _same("default_permissions.configure", "default.configure"),
    _same("default_permissions.write", "default.write"),
    _same("default_permissions.read", "default.read"),
    Key("loopback_users", "`none`: `amqp.loopback_users` is empty", Translation.no_loopback_users),
    Key("loopback_users.$user", "`amqp.loopback_users`: those that are true", Translation.loopback_user),
    _fixed_value("auth_backends.$n", INTERNAL, "amqpd keeps its users itself"),
    _fixed_value("auth_backends.$n.authn", INTERNAL, "amqpd keeps its users itself"),
    _fixed_value("auth_backends.$n.authz", INTERNAL, "amqpd keeps its users itself"),
    Key("auth_mechanisms.$n", "`auth.mechanisms`: PLAIN, AMQPLAIN, EXTERNAL", Translation.mechanism),
    *_refused("amqpd keeps its users itself", "auth_ldap.*", "auth_http.*", "auth_oauth2.*"),
    *_ignored("amqpd keeps all users in memory", "auth_cache.*"),
    _fixed_value("anonymous_login_user", ("none",), "a login needs a password"),
    *_ignored("a login needs a password", "anonymous_login_pass"),
    _same("ssl_cert_login_from", "auth.ssl_cert_login_from", _login_from),
    _same("ssl_cert_login_san_type", "auth.ssl_cert_login_san_type", more="; `other_name` is **refused**"),
    _same("ssl_cert_login_san_index", "auth.ssl_cert_login_san_index", number),
    Key(
        "password_hashing_module", "`auth.password_hashing`; MD5: nothing, argon2id stays", Translation.password_hashing
    ),
    _fixed_value(
        "credential_validator.validation_backend",
        ("rabbit_credential_validator_accept_everything",),
        "amqpd accepts every password",
    ),
    *_ignored("amqpd accepts every password", "credential_validator.min_length", "credential_validator.regexp"),
    *_refused(MAKE_BY_HAND, "default_users.*", "default_policies.*", "default_limits.*"),
    # -- definitions
    _same("load_definitions", "load_definitions"),
    _same("management.load_definitions", "load_definitions"),
    _same("definitions.local.path", "definitions.local.path"),
    _same("definitions.skip_if_unchanged", "definitions.skip_if_unchanged", boolean),
    _fixed_value(
        "definitions.import_backend", ("local_filesystem", "rabbit_definitions_import_local_filesystem"),
        "amqpd imports definitions from files",
    ),
    *_refused("amqpd imports definitions from files", "definitions.https.url"),
    *_ignored("amqpd imports definitions from files", "definitions.tls.*"),
    *_ignored("files are compared byte for byte", "definitions.hashing.algorithm"),
    # -- memory and disk
    _same("vm_memory_high_watermark.relative", "limits.memory_high_watermark", share),
    _same("vm_memory_high_watermark.absolute", "limits.memory_bytes", size_bytes, "; with RabbitMQ's units"),
    _same("disk_free_limit.relative", "limits.disk_free_memory_multiple", share),
    _same("disk_free_limit.absolute", "limits.disk_free_bytes", size_bytes, "; with RabbitMQ's units"),
    *_ignored("amqpd does not page: a queue's messages are in its log", "vm_memory_high_watermark_paging_ratio"),
    *_ignored("amqpd checks memory and disk every second", "memory_monitor_interval", "disk_monitor_interval"),
    *_ignored("amqpd measures the resident memory", "vm_memory_calculation_strategy"),
    *_ignored("set limits.memory_bytes instead", "total_memory_available_override_value"),
    # -- queues
    _same("consumer_timeout", "consumer_timeout_ms", number, "; what it does: `consumer_timeout_response`"),
    *_ignored("set it for a vhost: amqpctl add_vhost --default-queue-type", "default_queue_type"),
    *_ignored(
        "each queue is a log; see the settings storage.*",
        "classic_queue.*", "quorum_queue.*", "stream.replication.*", "queue_index_embed_msgs_below",
        "queue_index_max_journal_entries", "message_store_shutdown_timeout", "msg_store.*", "raft.*",
        "mirroring_sync_batch_size", "mirroring_sync_max_throughput", "lazy_queue_explicit_gc_run_operation_threshold",
        "queue_explicit_gc_run_operation_threshold", "stream_queue.*",
    ),
    *_ignored("amqpd accepts transient queues", "deprecated_features.permit.*"),
    # -- the log
    Key("log.dir", "directory of a relative `log.file`", Translation.log_key),
    Key("log.file", "`log.file`", Translation.log_key),
    Key("log.file.level", f"{LOG_LEVEL}; used with log.file", Translation.log_key),
    Key("log.file.formatter", "`log.format`; used with log.file", Translation.log_key),
    Key("log.console", "standard error, without log.file", Translation.log_key),
    Key("log.console.level", f"{LOG_LEVEL}; used without log.file", Translation.log_key),
    Key("log.console.formatter", "`log.format`; used without log.file", Translation.log_key),
    Key("log.default.level", f"{LOG_LEVEL}; used without the other two", Translation.log_key),
    *_ignored(
        ONE_LOG,
        "log.file.*", "log.console.*", "log.default.*", "log.exchange", "log.exchange.*", "log.journald",
        "log.journald.*", "log.syslog", "log.syslog.*", "log.connection.*", "log.channel.*", "log.mirroring.*",
        "log.queue.*", "log.federation.*", "log.upgrade.*", "log.ra.*", "log.prelaunch.*", "log.shovel.*", "log.ldap.*",
        "log.user.*",
    ),
    # -- the admin API
    _admin("management.tcp.port", "http.port", number),
    _admin("management.tcp.ip", "http.host"),
    Key("management.tcp.*", f"nothing: {OWN_LIMITS}", Translation.admin_unused),
    _admin("management.ssl.port", "http.tls.port", number, f"; 15671 where it is missing. {ALONE}"),
    _admin("management.ssl.ip", "http.tls.host"),
    _admin("management.ssl.cacertfile", "http.tls.ca"),
    _admin("management.ssl.certfile", "http.tls.certificate", more="; this file also has the chain"),
    _admin("management.ssl.keyfile", "http.tls.key"),
    _admin("management.ssl.verify", "http.tls.verify_peer", verify),
    _admin("management.ssl.fail_if_no_peer_cert", "http.tls.fail_if_no_peer_certificate", boolean),
    Key("management.ssl.versions.$n", VERSIONS, Translation.tls_version),
    *_refused(PLAIN_KEYS, "management.ssl.password"),
    _admin("management.ssl.depth", "http.tls.depth", chain_depth),
    Key("management.ssl.ciphers.$name", "`http.tls.ciphers`, in the order of the lines", Translation.cipher),
    Key("management.ssl.*", f"nothing: {OWN_LIMITS}", Translation.admin_unused),
    *(
        Key(f"management.listener.{key}", _legacy_key(setting), Translation.old_admin_listener)
        for key, (setting, _) in OLD_LISTENER.items()
    ),
    _fixed_value("management.listener.ssl_opts", ("none",), "use its keys, such as management.ssl.certfile"),
    Key("management.listener.ssl_opts.versions.$n", VERSIONS, Translation.tls_version),
    *_refused(
        PLAIN_KEYS, "management.listener.ssl_opts.password", "management.listener.ssl_opts.cert",
        "management.listener.ssl_opts.cacerts.$name", "management.listener.ssl_opts.key.*",
    ),
    _fixed_value(
        "management.listener.ssl_opts.crl_check", ("false",), "amqpd does not check lists of revoked certificates"
    ),
    Key(
        "management.listener.ssl_opts.ciphers.$name", "`http.tls.ciphers`, where its ssl is true", Translation.cipher
    ),
    *_ignored("OpenSSL decides", "management.listener.ssl_opts.*"),
    _same("management.login_session_timeout", "http.login_session_timeout_s", minutes_s, ", from minutes"),
    *_refused("the admin API is at /api", "management.path_prefix"),
    *_refused(
        "users log in by name and password, or by a certificate", "management.disable_basic_auth",
        "management.oauth_disable_basic_auth",
    ),
    _fixed_value("management.enable_uaa", ("false",), "users log in by name and password"),
    _fixed_value("management.oauth_enabled", ("false",), "users log in by name and password"),
    *_ignored(
        "users log in by name and password",
        "management.oauth_client_id", "management.oauth_client_secret", "management.oauth_provider_url",
        "management.oauth_scopes", "management.oauth_metadata_url", "management.oauth_initiated_logon_type",
        "management.oauth_response_type", "management.oauth_resource_servers.*", "management.uaa_client_id",
        "management.uaa_location",
    ),
    *_ignored(
        OWN_LIMITS,
        "management.listener.server.*", "management.http.max_body_size", "management.http_log_dir",
        "management.db_cache_multiplier", "management.cors.*", "management.csp.policy", "management.hsts.policy",
        "management.headers.*", "management.restrictions.*", "management.delegate_count",
        "management.http.hide_allow_header", "management.credential_encryption_secret", "management.definitions.*",
        "http_dispatch.access_log_dir",
    ),
    *_ignored(
        STATISTICS,
        "management.rates_mode", "management.sample_retention_policies.*", "management.disable_stats",
        "management.enable_queue_totals", "management_agent.*", "collect_statistics",
        "collect_statistics_interval",
    ),
    _metrics("prometheus.tcp.port", "metrics.port", number, "; 15692 if only other keys or the plugin are there"),
    _metrics("prometheus.tcp.ip", "metrics.host"),
    _fixed_value("prometheus.path", ("/metrics",), "amqpd has metrics at /metrics"),
    _metrics("prometheus.return_per_object_metrics", "metrics.return_per_object_metrics", boolean),
    *_refused("metrics over TLS are at /metrics of management.ssl's port", "prometheus.ssl.*"),
    Key("prometheus.*", f"nothing: {OWN_LIMITS}", Translation.metrics_unused),
    # -- one node, and no Erlang
    _same("cluster_name", "cluster_name"),
    *_ignored(
        NO_CLUSTER,
        "cluster_partition_handling", "cluster_partition_handling.*", "cluster_formation.*",
        "cluster_keepalive_interval", "khepri_default_timeout", "khepri_leader_wait_retry_timeout",
        "khepri_leader_wait_retry_limit",
        "cluster_tags.*", "node_tags.*", "queue_master_locator", "queue_leader_locator", "delegate_count",
        "mnesia_table_loading_retry_timeout", "mnesia_table_loading_retry_limit", "metadata_store.*",
        "vhost_restart_strategy", "target_cluster_size_hint",
    ),
    *_ignored(
        NO_ERLANG,
        "erlang.*", "net_ticktime", "distribution.*", "sysmon_handler.*", "hipe_compile", "background_gc_enabled",
        "background_gc_target_interval", "socket_writer.gc_threshold", "default_worker_pool_size", "runtime.*",
    ),
    *_ignored("amqpd shows its own name; for clients, set compat", "product.*", "motd_file"),
    *_ignored("amqpd does not read encrypted values", "config_entry_decoder.*"),
    *_ignored("amqpd does not change messages", "message_interceptors.*", "channel_interceptor.*"),
    *_ignored("use the setting event_exchange_vhost", "event_exchange.*"),
    *_ignored(NO_PLUGIN, "mqtt.*", "stomp.*", "stream.*", "web_mqtt.*", "web_stomp.*", "amqp1_0.*"),
    *_ignored("amqpd has no such plugin", "aws.*", "trust_store.*", "shovel.*", "federation.*", "tracing.*"),
)
# fmt: on


DEPTH_MAX: Final = 16
_KEY: Final = r"(?P<key>(?:\\\.|[A-Za-z0-9_-])+(?:\.(?:\\\.|[A-Za-z0-9_-])+)*)"
_VALUE: Final = r"(?:'(?P<quoted>[^']*)'|(?P<plain>[^#]*?))"
_SETTING: Final = re.compile(rf"[ \t]*{_KEY}[ \t]*=[ \t]*{_VALUE}[ \t]*(?:#.*)?")
_INCLUDE: Final = re.compile(r"[ \t]*include[ \t]+(?P<path>[A-Za-z0-9_.*/-]+)[ \t]*(?:#.*)?")
_BLANK: Final = re.compile(r"[ \t]*(?:#.*)?")
_VARIABLE: Final = re.compile(r"\$\((?P<name>[A-Za-z_][A-Za-z0-9_]*)\)")


class ConfEntry(NamedTuple):
    """A key with its value, as it was read. `place` is `FILE:LINE`."""

    words: tuple[str, ...]
    value: str
    place: str


class ConfResult(NamedTuple):
    """Settings of the files.

    Attributes:
        values: setting's name -> value, not converted yet
        sources: setting's name -> `file FILE:LINE: KEY`
        notes: a line for each key without effect
        problems: a line for each key that is an error
    """

    values: dict[str, object]
    sources: dict[str, str]
    notes: list[str]
    problems: list[str]


def read(
    main: Path | None, more: Sequence[Path], environ: Mapping[str, str], plugins: Mapping[str, str] | None = None
) -> ConfResult:
    """Return the settings of the files, in this order. Errors are in `problems`.

    Args:
        plugins: enabled plugin -> its source

    Cost: about 30 us per line.
    """
    problems: list[str] = []
    given: dict[tuple[str, ...], ConfEntry] = {}
    for path in [*([main] if main else []), *more]:
        _read_file(path, given, problems, environ, 0)
    translation = Translation()
    for one in given.values():
        _translate(one, translation)
    if plugins and PROMETHEUS in plugins:
        translation.metrics((), "", plugins[PROMETHEUS].removeprefix("file "))
    translation.finish()
    return ConfResult(translation.values, translation.sources, translation.notes, problems + translation.problems)


def _read_file(
    path: Path, given: dict[tuple[str, ...], ConfEntry], problems: list[str], environ: Mapping[str, str], depth: int
) -> None:
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        problems.append(f"{path}: {error.strerror}")
        return
    except UnicodeDecodeError as error:
        problems.append(f"{path}: not UTF-8: {error}")
        return
    for number, line in enumerate(text.split("\n"), 1):
        line = line.removesuffix("\r")
        place = f"{path}:{number}"
        if _BLANK.fullmatch(line):
            continue
        if (found := _SETTING.fullmatch(line)) and (found["quoted"] is not None or found["plain"]):
            words = tuple(word.replace("\0", ".") for word in found["key"].replace("\\.", "\0").split("."))
            value = found["quoted"] if found["quoted"] is not None else found["plain"]
            given.pop(words, None)  # the last one counts, at its place
            given[words] = ConfEntry(words, _filled_in(value, place, problems, environ), place)
        elif found := _INCLUDE.fullmatch(line):
            _include(path.parent, found["path"], place, given, problems, environ, depth)
        elif found := re.match(rf"[ \t]*{_KEY}[ \t]*=", line):
            problems.append(f"{place}: {found['key']} has no value, or a quote without an end")
        elif line.lstrip().startswith(("[", "{", "]", "}", "%")):
            problems.append(f"{place}: this is RabbitMQ's Erlang format of before 3.7; write `key = value`")
            return
        else:
            # Show only the first word: the rest may be a password.
            word = re.split(r"[\s:=]", line.strip())[0]
            problems.append(f"{place}: not `key = value`: {word[:60]!r} ...")


def _include(
    folder: Path,
    named: str,
    place: str,
    given: dict[tuple[str, ...], ConfEntry],
    problems: list[str],
    environ: Mapping[str, str],
    depth: int,
) -> None:
    if depth >= DEPTH_MAX:
        problems.append(f"{place}: {DEPTH_MAX} files include each other")
        return
    path = folder / named
    for each in matching_files(path, f"{place}: ", problems) if "*" in path.name else [path]:
        _read_file(each, given, problems, environ, depth + 1)


def matching_files(path: Path, prefix: str, problems: list[str]) -> list[Path]:
    """Return the files of a directory whose names match the last part of `path`, sorted. Without a pattern, `path`.

    Args:
        prefix: the beginning of lines in `problems`
    """
    if "**" in path.name:
        problems.append(f"{prefix}{path.name}: ** is not possible, use *")
        return []
    if not any(each in path.name for each in "*?["):  # a directory with mode 0711 cannot be listed
        return [path] if file_exists(path, True) else []
    try:
        return sorted(each for each in path.parent.iterdir() if fnmatchcase(each.name, path.name))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:  # no access
        problems.append(f"{prefix}{path.parent}: {error.strerror}")
        return []


def _filled_in(value: str, place: str, problems: list[str], environ: Mapping[str, str]) -> str:
    """Return the value with its variables replaced."""

    def variable(found: re.Match[str]) -> str:
        if found["name"] not in environ:
            problems.append(f"{place}: there is no variable {found['name']} in the environment")
        return environ.get(found["name"], "")

    return _VARIABLE.sub(variable, value)


def _translate(one: ConfEntry, translation: Translation) -> None:
    key = ".".join(word.replace(".", "\\.") for word in one.words)
    row = matching(one.words)
    if row is None:
        from difflib import get_close_matches

        near = get_close_matches(key, [each.pattern for each in ROWS], 1, 0.75)
        guess = f"; did you mean {near[0]}?" if near else ""
        translation.problems.append(f"{one.place}: RabbitMQ has no key {key}{guess}")
        return
    if one.value.startswith("encrypted:"):
        text = f"{key} is encrypted, and amqpd cannot read it: amqpctl decode decrypts it; use $(VARIABLE)"
        translation.problems.append(f"{one.place}: {text}")
        return
    try:
        row.take(translation, one.words, one.value, f"{one.place}: {key}")
    except ValueError as error:
        translation.problems.append(f"{one.place}: {key} {error}")
