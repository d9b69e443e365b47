"""The settings: one frozen, typed tree of dataclasses.

It is the only list of settings. Conversion, bounds, `--help`, `--print-settings` and the documentation are made
from its fields. A test checks that a module uses each setting.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Final, Literal

from amqpd import __version__
from amqpd.config.row import Setting, setting
from amqpd.config.types import (
    ADDRESS,
    ADDRESSES,
    BOOLEAN,
    COMPAT,
    MECHANISMS,
    MULTIPLE,
    NAMES,
    NO_ADDRESS,
    NO_PATH,
    NO_PATTERN,
    NO_SHORT_TEXT,
    OFF_PORT,
    PATH,
    SASL_MECHANISM,
    SHARE,
    SHORT_TEXT,
    SOME_TEXT,
    TEXT,
    TOPIC_NAME,
    byte_count,
    choice,
    integer,
    seconds,
)

DEPTH_MAX: Final = 100
"""OpenSSL's limit."""


@dataclass(frozen=True)
class TlsSettings:
    """AMQP over TLS 1.2 and 1.3, on its own port."""

    port: int | None = setting(None, OFF_PORT, "Port for AMQP over TLS, usually 5671; 0 takes any free one.")
    certificate: Path | None = setting(None, NO_PATH, "The server's certificate and its chain (PEM).", reloaded=True)
    key: Path | None = setting(
        None, NO_PATH, "The certificate's private key (PEM, without a passphrase).", reloaded=True
    )
    ca: Path | None = setting(None, NO_PATH, "Certificates (PEM) of the authorities that sign clients' certificates.")
    verify_peer: bool = setting(False, BOOLEAN, "Ask clients for a certificate and refuse one that `ca` did not sign.")
    fail_if_no_peer_certificate: bool = setting(False, BOOLEAN, "Refuse a client that shows no certificate at all.")
    ciphers: tuple[str, ...] = setting(
        (),
        NAMES,
        "Cipher suites by OpenSSL's names, the preferred one first; empty: OpenSSL's choice. A list without suites of "
        "TLS 1.3 leaves TLS 1.2 alone, and the other way round.",
    )
    depth: int = setting(
        DEPTH_MAX,
        integer(0, DEPTH_MAX),
        "How many certificates may stand between a client's and that of the authority in `ca`.",
    )


@dataclass(frozen=True)
class HttpTlsSettings(TlsSettings):
    """The admin API over HTTPS, on its own port."""

    port: int | None = setting(None, OFF_PORT, "Port for HTTPS, usually 15671; 0 takes any free one.")
    host: str = setting("", TEXT, "Address HTTPS listens on: empty is http.host, 0.0.0.0 every interface of IPv4.")


@dataclass(frozen=True)
class AmqpSettings:
    """The AMQP listener, and limits of its connections."""

    host: str = setting(
        "",  # rabbit: a broker is reachable; the user guest is not, see loopback_users
        TEXT,
        "Address to listen on, or several with commas: empty is every interface, IPv4 and where there is one IPv6; "
        "0.0.0.0 is IPv4 alone.",
    )
    port: int | None = setting(
        5672, OFF_PORT, "Port for AMQP; 0 takes any free port, which the ready line names; off: AMQP over TLS only."
    )
    frame_max: int = setting(131072, byte_count(4096, 1 << 27), "Largest frame, offered in connection.tune.")
    channel_max: int = setting(2047, integer(1, 65535), "Channels that one connection may have, offered in tune.")
    heartbeat_s: int = setting(60, integer(0, 65535, "seconds"), "Heartbeat offered in tune; 0 offers none.")
    message_size_max_bytes: int = setting(
        1 << 27, byte_count(1, 1 << 29), "Largest message body; a larger one closes its channel with 406."
    )
    handshake_timeout_s: float = setting(
        10.0,
        seconds(0.1, 3600.0),
        "A client that has not logged in and opened its vhost after this time is disconnected.",
    )
    loopback_users: tuple[str, ...] = setting(
        ("guest",),
        NAMES,
        "Users that may log in from this machine only; empty: every user may log in from anywhere.",
        reloaded=True,
    )
    tls: TlsSettings = TlsSettings()


@dataclass(frozen=True)
class HttpSettings:
    """The admin API."""

    host: str = setting("127.0.0.1", SOME_TEXT, "Address the admin API listens on.")
    port: int | None = setting(
        15672,
        OFF_PORT,
        "Port of the admin API and the web page; 0 takes any free port, which the ready line names. off: HTTPS only.",
    )
    login_session_timeout_s: float = setting(
        28800.0,
        seconds(60.0, 31536000.0),
        "How long a login on the web page lasts.",  # rabbit: 8 h
    )
    tls: HttpTlsSettings = HttpTlsSettings()


@dataclass(frozen=True)
class MetricsSettings:
    """Prometheus metrics on their own listener, without a password."""

    host: str = setting("127.0.0.1", SOME_TEXT, "Address that metrics are served on.")
    port: int | None = setting(
        None, OFF_PORT, "Port for metrics without a password, usually 15692; 0 takes any free one."
    )
    return_per_object_metrics: bool = setting(
        False,
        BOOLEAN,
        "Whether /metrics on that port lists every queue, channel and connection, as /metrics/per-object does, "
        "instead of sums.",
    )


@dataclass(frozen=True)
class AuthSettings:
    """Login mechanisms, and hashes of passwords."""

    mechanisms: tuple[str, ...] = setting(
        ("PLAIN", "AMQPLAIN"),
        MECHANISMS,
        "Ways to log in over AMQP (SASL). EXTERNAL: a TLS client's certificate is its login, at listeners with "
        "verify_peer; then HTTPS accepts one too.",
    )
    ssl_cert_login_from: Literal["distinguished_name", "common_name", "subject_alternative_name"] = setting(
        "distinguished_name",
        choice("distinguished_name", "common_name", "subject_alternative_name"),
        "Which field of a client's certificate holds the user's name.",
    )
    ssl_cert_login_san_type: Literal["dns", "ip", "email", "uri"] = setting(
        "dns", choice("dns", "ip", "email", "uri"), "Which kind of subject alternative name, if that holds the name."
    )
    ssl_cert_login_san_index: int = setting(
        0, integer(0, 1000), "Which one of that kind, if there are several: 0 is the first."
    )
    password_hashing: Literal["argon2id", "rabbit_password_hashing_sha256", "rabbit_password_hashing_sha512"] = setting(
        "argon2id",
        choice("argon2id", "rabbit_password_hashing_sha256", "rabbit_password_hashing_sha512"),
        "How new passwords are hashed. argon2id also replaces RabbitMQ's hashes at the first login; the others keep "
        "them, and exported users can log in to RabbitMQ.",
    )


@dataclass(frozen=True)
class LogSettings:
    """The log of the server."""

    level: Literal["debug", "info", "warning", "error"] = setting(
        "info",
        choice("debug", "info", "warning", "error"),
        "Messages of this level and above are logged.",
        reloaded=True,
    )
    format: Literal["text", "json"] = setting(
        "text", choice("text", "json"), "How a message is written: a line of text, or a JSON object on a line."
    )
    file: Path | None = setting(
        None, NO_PATH, "File the log is appended to; empty is standard error. SIGUSR1 reopens it."
    )


@dataclass(frozen=True)
class LocalDefinitionsSettings:
    """Definitions in the local file system."""

    path: Path | None = setting(None, NO_PATH, "As load_definitions; give one of the two.", reloaded=True)


@dataclass(frozen=True)
class DefinitionsSettings:
    """Import of definitions at the start."""

    skip_if_unchanged: bool = setting(
        False, BOOLEAN, "Skip the import at a start if the files are byte for byte those of the last one."
    )
    skip_unsupported: bool = setting(
        False,
        BOOLEAN,
        "Leave out what amqpd does not have, with a line in the log, instead of refusing to start.",
        reloaded=True,
    )
    local: LocalDefinitionsSettings = LocalDefinitionsSettings()


@dataclass(frozen=True)
class MetadataSettings:
    """The database of vhosts, users, permissions, exchanges, queues and bindings."""

    url: str = setting("", TEXT, "SQLAlchemy URL of the metadata database; empty is SQLite in data_dir.", secret=True)


@dataclass(frozen=True)
class StorageSettings:
    """The logs of the durable queues."""

    segment_size_bytes: int = setting(
        64 << 20, byte_count(4096, (1 << 31) - 1), "A log begins a new segment before one would grow beyond this."
    )
    segment_age_s: float = setting(
        604_800.0,
        seconds(1.0, 3.2e9),
        "A log begins a new segment when the first message in the last one is older than this, looked at each upkeep.",
    )
    upkeep_interval_s: float = setting(
        60.0,
        seconds(0.05, 86_400.0),
        "How often queues' logs are tidied up: old segments closed, files with nothing left in them removed.",
    )
    clock_steady_s: float = setting(
        3600.0,
        seconds(0.0, 31_536_000.0),
        "When the wall clock was set by more than a minute, retention, time to live and delays follow it after this "
        "time of steadiness, or after amqpctl accept_clock; 0: at once.",
    )
    recovery: Literal["salvage", "strict"] = setting(
        "salvage",
        choice("salvage", "strict"),
        "What to do about damage in the middle of a log: salvage skips it; strict reads all logs at the start, "
        "and refuses to start.",
    )


@dataclass(frozen=True)
class AuditSettings:
    """The audit log: the stream `amq.audit`."""

    enabled: bool = setting(True, BOOLEAN, "Whether events are recorded; existing records stay readable either way.")
    vhost: str = setting("", TEXT, "Vhost in which administrators find amq.audit; empty is default.vhost.")
    age_max_s: float = setting(2_592_000.0, seconds(1.0, 3.2e9), "How long records are kept; 30 days by default.")
    size_max_bytes: int = setting(
        1 << 28,
        byte_count(1 << 20, 1 << 40),
        "How much space records may take; the oldest are removed first, a sixteenth of this at a time.",
    )


@dataclass(frozen=True)
class LimitSettings:
    """Limits of memory, disk and descriptors. At an alarm, publishers get connection.blocked and wait."""

    memory_high_watermark: float = setting(
        0.4,
        SHARE,
        "Memory alarm, as a share of the machine's (or cgroup's) memory: with more in use, publishers have to wait.",
        reloaded=True,
    )
    memory_bytes: int = setting(
        0, byte_count(0, 1 << 60), "Memory alarm in bytes, instead of the share; 0: the share counts.", reloaded=True
    )
    disk_free_bytes: int = setting(
        50_000_000,
        byte_count(0, 1 << 60),
        "Disk alarm: with less free space in data_dir's file system, publishers have to wait.",
        reloaded=True,
    )
    disk_free_memory_multiple: float = setting(
        0.0,
        MULTIPLE,
        "Disk alarm as a multiple of the machine's memory, instead of bytes; 0: the bytes count.",
        reloaded=True,
    )
    unopened_share: float = setting(
        0.5,
        SHARE,
        "Share of the process's descriptors; with more AMQP sockets, those that have not logged in are closed, the "
        "oldest of the address that has most of them first.",
    )
    reserved_descriptors: int = setting(
        256,
        integer(0, 1 << 20),
        "Descriptors that no AMQP socket gets: for files and the admin API. At most a quarter of them all.",
    )
    unfinished_bodies_bytes: int = setting(
        1 << 28,
        byte_count(0, 1 << 40),
        "Memory for message bodies that are still arriving, of all connections; with more, only the oldest is read on. "
        "At most a quarter of the memory alarm's limit, never less than amqp.message_size_max_bytes.",
    )


@dataclass(frozen=True)
class KafkaTlsSettings:
    """TLS to Kafka's brokers."""

    enabled: bool = setting(False, BOOLEAN, "Whether Kafka is reached inside TLS; its brokers' names are checked.")
    ca: Path | None = setting(
        None, NO_PATH, "Certificates (PEM) of the authorities that signed the brokers'; empty: those of the machine."
    )
    certificate: Path | None = setting(
        None, NO_PATH, "Certificate (PEM) that is shown to Kafka, where its brokers ask for one."
    )
    key: Path | None = setting(None, NO_PATH, "The certificate's private key (PEM, without a passphrase).")


@dataclass(frozen=True)
class KafkaSaslSettings:
    """The login at Kafka's brokers."""

    mechanism: str = setting(
        "", SASL_MECHANISM, "PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512; empty: Kafka asks for no login."
    )
    user: str = setting("", TEXT, "User name for Kafka.")
    password: str = setting("", TEXT, "Password for Kafka.", secret=True)
    password_file: Path | None = setting(None, NO_PATH, "File that holds that password, instead.")


@dataclass(frozen=True)
class ClusterSettings:
    """Several nodes over one Apache Kafka."""

    kafka: tuple[str, ...] = setting(
        (), ADDRESSES, "Some of Kafka's brokers, which name the others; empty: one node, without Kafka."
    )
    name: str = setting("", TOPIC_NAME, "Name of the cluster, the same at all nodes: Kafka's topics begin with it.")
    secret: str = setting(
        "",
        TEXT,
        "Password with which nodes recognise each other, the same at all of them: 16 characters or more.",
        secret=True,
    )
    secret_file: Path | None = setting(None, NO_PATH, "File that holds that secret, instead.")
    node: str = setting("", NO_SHORT_TEXT, "Name of this node, each its own; empty: amqpd@ and the host's name.")
    listen: str = setting(
        ":25672", ADDRESS, "Where other nodes connect to; without a host every interface, port 0 takes any free one."
    )
    address: str = setting(
        "", NO_ADDRESS, "Address that other nodes connect to; empty: the host's name and the port of listen."
    )
    slots: int = setting(
        64,
        integer(1, 4096),
        "Number of slots; vhosts with the same slot are served by one node and move together. Set when the "
        "cluster is made, and never changed.",
    )
    replication_factor: int = setting(3, integer(1, 32), "Copies that Kafka keeps of every message.")
    required_insync: int = setting(
        2, integer(1, 32), "Copies that must have a message before it is confirmed; a topic with less is refused."
    )
    max_message_bytes: int = setting(
        8 << 20, byte_count(1 << 16, 64 << 20), "Largest message body in a queue that is replicated."
    )
    kafka_topics: str = setting(
        "", NO_PATTERN, "Which topics of Kafka queues may have for themselves (x-kafka-topic), a pattern; empty: none."
    )
    session_timeout_s: float = setting(
        6.0, seconds(1.0, 1800.0), "After this time without a sign of life a node's vhosts go to others."
    )
    heartbeat_s: float = setting(0.5, seconds(0.1, 600.0), "How often a node gives Kafka a sign of life.")
    delivery_timeout_s: float = setting(
        60.0, seconds(1.0, 3600.0), "A message that Kafka has not stored after this time is nacked to its publisher."
    )
    tls: KafkaTlsSettings = KafkaTlsSettings()
    sasl: KafkaSaslSettings = KafkaSaslSettings()


@dataclass(frozen=True)
class DefaultSettings:
    """The first user and vhost. They are created at the first start, when the metadata is empty; later unused."""

    user: str = setting("guest", SHORT_TEXT, "Name of the first user.", environ_also="RABBITMQ_DEFAULT_USER")
    password: str = setting(
        "guest", SOME_TEXT, "Password of the first user.", secret=True, environ_also="RABBITMQ_DEFAULT_PASS"
    )
    vhost: str = setting("/", SHORT_TEXT, "Name of the first vhost.", environ_also="RABBITMQ_DEFAULT_VHOST")
    tags: tuple[str, ...] = setting(("administrator",), NAMES, "Tags of the first user.")
    configure: str = setting(".*", TEXT, "What the first user may declare and delete in the first vhost, a pattern.")
    write: str = setting(".*", TEXT, "Where the first user may publish.")
    read: str = setting(".*", TEXT, "What the first user may read.")


@dataclass(frozen=True)
class Settings:
    """Every setting of the server."""

    data_dir: Path = setting(
        Path("./amqpd-data"), PATH, "Directory of everything that is kept, made if need be; one broker per directory."
    )
    compat: str = setting(
        "",
        COMPAT,
        "What the broker calls itself to clients: empty is amqpd with its version; rabbitmq-3.12 is RabbitMQ "
        "3.12.0, for clients that look for that name.",
    )
    consumer_timeout_ms: int = setting(
        0,
        integer(0, 315_360_000_000, "ms"),
        "How long a delivered message may stay unacked, if neither the consumer nor the queue nor a policy sets "
        "another time; 0: no limit.",
    )
    consumer_timeout_response: Literal["notify_consumer", "close_channel"] = setting(
        "notify_consumer",
        choice("notify_consumer", "close_channel"),
        "What happens when a message stays unacked for too long: its consumer is cancelled, or its channel closed.",
    )
    event_exchange_vhost: str = setting(
        "",
        TEXT,
        "Vhost with the exchange amq.rabbitmq.event, which announces connections, declarations and more of all "
        "vhosts; empty: no vhost has it.",
    )
    load_definitions: Path | None = setting(
        None,
        NO_PATH,
        "File of definitions, or directory of such files (*.json, by name), imported at each start before anything "
        "listens; with it a first start makes no default user and vhost.",
        reloaded=True,
    )
    amqp: AmqpSettings = AmqpSettings()
    http: HttpSettings = HttpSettings()
    metrics: MetricsSettings = MetricsSettings()
    auth: AuthSettings = AuthSettings()
    definitions: DefinitionsSettings = DefinitionsSettings()
    log: LogSettings = LogSettings()
    metadata: MetadataSettings = MetadataSettings()
    storage: StorageSettings = StorageSettings()
    audit: AuditSettings = AuditSettings()
    limits: LimitSettings = LimitSettings()
    cluster: ClusterSettings = ClusterSettings()
    default: DefaultSettings = DefaultSettings()

    @property
    def product(self) -> tuple[str, str]:
        """Return product and version for the server-properties, as `compat` says."""
        if not self.compat:
            return "amqpd", __version__
        return "RabbitMQ", self.compat.removeprefix("rabbitmq-") + ".0"


def rows(tree: type = Settings, prefix: str = "") -> list[Setting]:
    """Return every setting, in the order of the tree."""
    found: list[Setting] = []
    for one in fields(tree):
        name = prefix + one.name
        if is_dataclass(one.default):
            found += rows(type(one.default), name + ".")
        else:
            found.append(Setting(name, one.default, **one.metadata))
    return found


def value_of(settings: Settings, name: str) -> Any:
    """Return the value of the setting with this dotted name."""
    value: Any = settings
    for part in name.split("."):
        value = getattr(value, part)
    return value
