"""The settings: one frozen, typed tree of dataclasses.

It is the only list of settings. Conversion, bounds, `--help`, `--print-settings` and the documentation are made
from its fields. A test checks that a module uses each setting.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Final, Literal

from amqpd import __version__
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
    Setting,
    byte_count,
    choice,
    integer,
    seconds,
    setting,
)

DEPTH_MAX: Final = 100
"""OpenSSL's limit."""


@dataclass(frozen=True)
class TlsSettings:
    """AMQP over TLS 1.2 and 1.3, on its own port."""

    port: int | None = setting(None, OFF_PORT, "Port for AMQP over TLS, usually 5671; 0: any free port.")
    certificate: Path | None = setting(None, NO_PATH, "The server's certificate and its chain (PEM).", reloaded=True)
    key: Path | None = setting(
        None, NO_PATH, "The certificate's private key (PEM, without a passphrase).", reloaded=True
    )
    ca: Path | None = setting(None, NO_PATH, "Certificates (PEM) of the authorities that sign client certificates.")
    verify_peer: bool = setting(
        False, BOOLEAN, "Ask clients for a certificate, and refuse one that no authority in `ca` signed."
    )
    fail_if_no_peer_certificate: bool = setting(False, BOOLEAN, "Refuse clients without a certificate.")
    ciphers: tuple[str, ...] = setting(
        (),
        NAMES,
        "Cipher suites by OpenSSL's names, the preferred one first; empty: OpenSSL's choice. A list with suites of "
        "only one TLS version enables only that version.",
    )
    depth: int = setting(
        DEPTH_MAX,
        integer(0, DEPTH_MAX),
        "Maximum number of certificates between a client's and that of the authority in `ca`.",
    )


@dataclass(frozen=True)
class HttpTlsSettings(TlsSettings):
    """The admin API over HTTPS, on its own port."""

    port: int | None = setting(None, OFF_PORT, "Port for HTTPS, usually 15671; 0: any free port.")
    host: str = setting("", TEXT, "Address for HTTPS; empty: http.host; 0.0.0.0: every IPv4 interface.")


@dataclass(frozen=True)
class AmqpSettings:
    """The AMQP listener, and limits of its connections."""

    host: str = setting(
        "",  # rabbit: a broker is reachable; the user guest is not, see loopback_users
        TEXT,
        "Address to listen on, or several with commas; empty: every interface, IPv4 and IPv6; 0.0.0.0: every IPv4 "
        "interface.",
    )
    port: int | None = setting(
        5672, OFF_PORT, "Port for AMQP; 0: any free port, which the ready line shows; off: only AMQP over TLS."
    )
    frame_max: int = setting(
        131072, byte_count(4096, 1 << 27), "Largest frame; the broker sends it in connection.tune."
    )
    channel_max: int = setting(
        2047, integer(1, 65535), "Maximum number of channels in a connection; sent in connection.tune."
    )
    heartbeat_s: int = setting(60, integer(0, 65535, "seconds"), "Heartbeat that connection.tune offers; 0: none.")
    message_size_max_bytes: int = setting(
        1 << 27, byte_count(1, 1 << 29), "Largest message body; the broker closes the channel of a larger one with 406."
    )
    handshake_timeout_s: float = setting(
        10.0, seconds(0.1, 3600.0), "Time for a client to log in and open its vhost; then it is disconnected."
    )
    loopback_users: tuple[str, ...] = setting(
        ("guest",),
        NAMES,
        "Users that may log in only from this machine; empty: all users may log in from anywhere.",
        reloaded=True,
    )
    tls: TlsSettings = TlsSettings()


@dataclass(frozen=True)
class HttpSettings:
    """The admin API."""

    host: str = setting("127.0.0.1", SOME_TEXT, "Address of the admin API.")
    port: int | None = setting(
        15672,
        OFF_PORT,
        "Port of the admin API and the web page; 0: any free port, which the ready line shows; off: only HTTPS.",
    )
    login_session_timeout_s: float = setting(
        28800.0,
        seconds(60.0, 31536000.0),
        "Duration of a login on the web page.",  # rabbit: 8 h
    )
    tls: HttpTlsSettings = HttpTlsSettings()


@dataclass(frozen=True)
class MetricsSettings:
    """Prometheus metrics on their own listener, without a password."""

    host: str = setting("127.0.0.1", SOME_TEXT, "Address of the listener for metrics.")
    port: int | None = setting(None, OFF_PORT, "Port for metrics without a password, usually 15692; 0: any free port.")
    return_per_object_metrics: bool = setting(
        False,
        BOOLEAN,
        "On that port, /metrics lists every queue, channel and connection, as /metrics/per-object does, instead of "
        "sums.",
    )


@dataclass(frozen=True)
class AuthSettings:
    """Login mechanisms, and hashes of passwords."""

    mechanisms: tuple[str, ...] = setting(
        ("PLAIN", "AMQPLAIN"),
        MECHANISMS,
        "SASL mechanisms for logins over AMQP. EXTERNAL: a client's TLS certificate is its login, on listeners with "
        "verify_peer, also over HTTPS.",
    )
    ssl_cert_login_from: Literal["distinguished_name", "common_name", "subject_alternative_name"] = setting(
        "distinguished_name",
        choice("distinguished_name", "common_name", "subject_alternative_name"),
        "Field of a client certificate with the user's name.",
    )
    ssl_cert_login_san_type: Literal["dns", "ip", "email", "uri"] = setting(
        "dns", choice("dns", "ip", "email", "uri"), "Type of the subject alternative name, if the user's name is there."
    )
    ssl_cert_login_san_index: int = setting(
        0, integer(0, 1000), "Number of the name of that type, if there are several; 0: the first."
    )
    password_hashing: Literal["argon2id", "rabbit_password_hashing_sha256", "rabbit_password_hashing_sha512"] = setting(
        "argon2id",
        choice("argon2id", "rabbit_password_hashing_sha256", "rabbit_password_hashing_sha512"),
        "Hash of new passwords. argon2id also replaces RabbitMQ's hashes at a user's first login. With the others, "
        "exported users can log in to RabbitMQ.",
    )


@dataclass(frozen=True)
class LogSettings:
    """The log of the server."""

    level: Literal["debug", "info", "warning", "error"] = setting(
        "info", choice("debug", "info", "warning", "error"), "Lowest level of messages in the log.", reloaded=True
    )
    format: Literal["text", "json"] = setting(
        "text", choice("text", "json"), "Format of a message: a line of text, or a JSON object on a line."
    )
    file: Path | None = setting(None, NO_PATH, "Log file; empty: standard error. SIGUSR1 reopens the file.")


@dataclass(frozen=True)
class LocalDefinitionsSettings:
    """Definitions in the local file system."""

    path: Path | None = setting(None, NO_PATH, "Same as load_definitions; set only one of the two.", reloaded=True)


@dataclass(frozen=True)
class DefinitionsSettings:
    """Import of definitions at the start."""

    skip_if_unchanged: bool = setting(
        False, BOOLEAN, "Skip the import at a start if the files are equal to those of the last import."
    )
    skip_unsupported: bool = setting(
        False,
        BOOLEAN,
        "Skip objects that amqpd does not support, with a line in the log, instead of refusing to start.",
        reloaded=True,
    )
    local: LocalDefinitionsSettings = LocalDefinitionsSettings()


@dataclass(frozen=True)
class MetadataSettings:
    """The database of vhosts, users, permissions, exchanges, queues and bindings."""

    url: str = setting(
        "",
        TEXT,
        "SQLAlchemy URL of the metadata database, SQLite or PostgreSQL; empty: SQLite in data_dir.",
        secret=True,
    )


@dataclass(frozen=True)
class StorageSettings:
    """The logs of the durable queues."""

    segment_size_bytes: int = setting(
        64 << 20, byte_count(4096, (1 << 31) - 1), "Maximum size of a log segment; then the log begins a new one."
    )
    journal: bool = setting(
        False,
        BOOLEAN,
        "A commit that touches several queues is synced once, in a journal of 32 MiB in data_dir, and the queues "
        "later. Messages are written twice.",
    )
    segment_age_s: float = setting(
        604_800.0,
        seconds(1.0, 3.2e9),
        "Maximum age of the first message in the last segment; then the log begins a new one. Checked at each upkeep.",
    )
    upkeep_interval_s: float = setting(
        60.0,
        seconds(0.05, 86_400.0),
        "Interval of the upkeep of logs: close old segments, delete files without messages.",
    )
    clock_steady_s: float = setting(
        3600.0,
        seconds(0.0, 31_536_000.0),
        "Retention, time to live and delays do not follow a jump of the wall clock of more than a minute at once. They "
        "follow when the clock was steady for this time, or after amqpctl accept_clock; 0: at once.",
    )
    recovery: Literal["salvage", "strict"] = setting(
        "salvage",
        choice("salvage", "strict"),
        "Reaction to damage in the middle of a log: salvage skips it; strict reads all logs at the start, and refuses "
        "to start after damage.",
    )


@dataclass(frozen=True)
class AuditSettings:
    """The audit log: the stream `amq.audit`."""

    enabled: bool = setting(True, BOOLEAN, "Record events; existing records can be read in both cases.")
    vhost: str = setting(
        "", TEXT, "Vhost of the stream amq.audit, which administrators can read; empty: default.vhost."
    )
    age_max_s: float = setting(2_592_000.0, seconds(1.0, 3.2e9), "Maximum age of records; the default is 30 days.")
    size_max_bytes: int = setting(
        1 << 28, byte_count(1 << 20, 1 << 40), "Maximum size of all records; then the oldest sixteenth is deleted."
    )


@dataclass(frozen=True)
class LimitSettings:
    """Limits of memory, disk and descriptors. At an alarm, publishers get connection.blocked and wait."""

    memory_high_watermark: float = setting(
        0.4,
        SHARE,
        "Memory alarm, as a share of the machine's or cgroup's memory: publishers wait while the broker uses more.",
        reloaded=True,
    )
    memory_bytes: int = setting(
        0, byte_count(0, 1 << 60), "Memory alarm in bytes, instead of the share; 0: use the share.", reloaded=True
    )
    disk_free_bytes: int = setting(
        50_000_000,
        byte_count(0, 1 << 60),
        "Disk alarm: publishers wait while the file system of data_dir has less free space.",
        reloaded=True,
    )
    disk_free_memory_multiple: float = setting(
        0.0,
        MULTIPLE,
        "Disk alarm as a multiple of the machine's memory, instead of bytes; 0: use the bytes.",
        reloaded=True,
    )
    unopened_share: float = setting(
        0.5,
        SHARE,
        "Share of the process's file descriptors. If AMQP sockets use more, the broker closes sockets that have not "
        "logged in: the oldest one of the address with most such sockets first.",
    )
    reserved_descriptors: int = setting(
        256,
        integer(0, 1 << 20),
        "File descriptors that AMQP sockets cannot use, for files and the admin API; at most a quarter of all.",
    )
    unfinished_bodies_bytes: int = setting(
        1 << 28,
        byte_count(0, 1 << 40),
        "Memory for incomplete message bodies of all connections. Above it, the broker reads only the oldest one. The "
        "limit is at most a quarter of the memory alarm's, and at least amqp.message_size_max_bytes.",
    )


@dataclass(frozen=True)
class KafkaTlsSettings:
    """TLS to Kafka's brokers."""

    enabled: bool = setting(False, BOOLEAN, "Connect to Kafka with TLS, and check the names of its brokers.")
    ca: Path | None = setting(
        None,
        NO_PATH,
        "Certificates (PEM) of the authorities that signed the brokers' certificates; empty: the machine's.",
    )
    certificate: Path | None = setting(None, NO_PATH, "Client certificate (PEM) for Kafka, if its brokers ask for one.")
    key: Path | None = setting(None, NO_PATH, "The certificate's private key (PEM, without a passphrase).")


@dataclass(frozen=True)
class KafkaSaslSettings:
    """The login at Kafka's brokers."""

    mechanism: str = setting("", SASL_MECHANISM, "PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512; empty: no login at Kafka.")
    user: str = setting("", TEXT, "User name for Kafka.")
    password: str = setting("", TEXT, "Password for Kafka.", secret=True)
    password_file: Path | None = setting(None, NO_PATH, "File with the password, instead.")


@dataclass(frozen=True)
class ClusterSettings:
    """Several nodes over one Apache Kafka."""

    kafka: tuple[str, ...] = setting(
        (), ADDRESSES, "Some of Kafka's brokers; they know the others. Empty: a single broker without Kafka."
    )
    name: str = setting(
        "", TOPIC_NAME, "Name of the cluster, the same on all nodes; names of its topics in Kafka begin with it."
    )
    secret: str = setting(
        "", TEXT, "Password between nodes, the same on all nodes: 16 characters or more.", secret=True
    )
    secret_file: Path | None = setting(None, NO_PATH, "File with the secret, instead.")
    node: str = setting("", NO_SHORT_TEXT, "Name of this node, different on each; empty: amqpd@ and the host's name.")
    listen: str = setting(
        ":25672",
        ADDRESS,
        "Address of the listener for other nodes; without a host: every interface; port 0: any free port.",
    )
    address: str = setting(
        "", NO_ADDRESS, "Address of this node for the other nodes; empty: the host's name and the port of listen."
    )
    slots: int = setting(
        64,
        integer(1, 4096),
        "Number of slots. One node serves all vhosts of a slot, and they move together. The number is set when the "
        "cluster is created, and never changes.",
    )
    replication_factor: int = setting(3, integer(1, 32), "Number of copies of every message in Kafka.")
    required_insync: int = setting(
        2,
        integer(1, 32),
        "Number of copies that must have a message before it is confirmed; topics with a lower number are refused.",
    )
    max_message_bytes: int = setting(
        8 << 20, byte_count(1 << 16, 64 << 20), "Largest message body in a replicated queue."
    )
    kafka_topics: str = setting(
        "", NO_PATTERN, "Pattern of Kafka topics that queues may use as their log (x-kafka-topic); empty: none."
    )
    session_timeout_s: float = setting(
        6.0, seconds(1.0, 1800.0), "After this time without a heartbeat, other nodes take over a node's vhosts."
    )
    heartbeat_s: float = setting(0.5, seconds(0.1, 600.0), "Interval of a node's heartbeats to Kafka.")
    delivery_timeout_s: float = setting(
        60.0, seconds(1.0, 3600.0), "Time for Kafka to store a message; then its publisher gets a nack."
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
    configure: str = setting(
        ".*", TEXT, "Pattern of names that the first user may declare and delete in the first vhost."
    )
    write: str = setting(".*", TEXT, "Pattern of names that the first user may publish to.")
    read: str = setting(".*", TEXT, "Pattern of names that the first user may read.")


@dataclass(frozen=True)
class KafkaListenerTlsSettings(TlsSettings):
    """Kafka's protocol over TLS, on its own port."""

    port: int | None = setting(None, OFF_PORT, "Port for Kafka's protocol over TLS; 0: any free port.")
    advertised: str = setting(
        "",
        NO_ADDRESS,
        "Host and port at which clients with TLS reach the broker, as `kafka.advertised`; empty: the address to which "
        "the client has connected.",
    )


@dataclass(frozen=True)
class KafkaSettings:
    """The listener for Kafka's clients, whose topics are the broker's streams and durable queues."""

    host: str = setting(
        "", TEXT, "Address to listen on, or several with commas; empty: every interface, IPv4 and IPv6."
    )
    port: int | None = setting(None, OFF_PORT, "Port for Kafka's protocol, usually 9092; 0: any free port.")
    advertised: str = setting(
        "",
        NO_ADDRESS,
        "Host and port (kafka.example.com:9092) at which clients without TLS reach the broker, for the responses to "
        "Metadata; empty: the address to which the client has connected.",
    )
    vhost: str = setting("/", SOME_TEXT, "Vhost of clients whose user name does not name one (vhost:user).")
    anonymous_user: str = setting(
        "guest",
        TEXT,
        "User of clients that do not log in with SASL; guest only on this machine. Empty: they must log in.",
    )
    request_size_max_bytes: int = setting(
        100 << 20, byte_count(1 << 16, 1 << 29), "Largest request; the connection of a larger one is closed."
    )
    share_lock_ms: int = setting(
        30_000,
        integer(100, 3_600_000, "ms"),
        "Time for which a member of a share group has a record; then the record goes to another member or consumer.",
    )
    share_auto_offset_reset: Literal["latest", "earliest"] = setting(
        "latest", choice("latest", "earliest"), "Where a share group begins with a stream that it has not used before."
    )
    tls: KafkaListenerTlsSettings = KafkaListenerTlsSettings()

    @property
    def is_on(self) -> bool:
        """Return whether the broker listens for Kafka's clients."""
        return self.port is not None or self.tls.port is not None


@dataclass(frozen=True)
class Settings:
    """Every setting of the server."""

    data_dir: Path = setting(
        Path("./amqpd-data"), PATH, "Directory of all data, created if it is missing; one broker per directory."
    )
    compat: str = setting(
        "",
        COMPAT,
        "Product that the broker reports to clients; empty: amqpd with its version; rabbitmq-3.12: RabbitMQ 3.12.0, "
        "for clients that check the name.",
    )
    cluster_name: str = setting(
        "",
        TEXT,
        "Name that clients and metrics show, unless amqpctl set_cluster_name has set another; empty: cluster.name in "
        "a cluster, else the name of the node.",
    )
    consumer_timeout_ms: int = setting(
        0,
        integer(0, 315_360_000_000, "ms"),
        "Time that a delivered message may stay unacked, if consumer, queue and policy do not set another; 0: no "
        "limit.",
    )
    consumer_timeout_response: Literal["notify_consumer", "close_channel"] = setting(
        "notify_consumer",
        choice("notify_consumer", "close_channel"),
        "Reaction to a message that stays unacked for too long: cancel its consumer, or close its channel.",
    )
    event_exchange_vhost: str = setting(
        "",
        TEXT,
        "Vhost with the exchange amq.rabbitmq.event, which publishes events of all vhosts, such as connections and "
        "declarations; empty: no vhost has it.",
    )
    load_definitions: Path | None = setting(
        None,
        NO_PATH,
        "File of definitions, or directory of such files (*.json, by name), imported at each start before the "
        "listeners open. With it, the first start creates no default user and vhost.",
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
    kafka: KafkaSettings = KafkaSettings()
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
