"""The settings: one frozen, typed tree, and where each value came from.

A setting has one name in four places, and the later wins: its default here, the TOML file, the environment, the
command line. `amqp.tls.verify_peer` is `verify_peer` under `[amqp.tls]`, `AMQPD_AMQP__TLS__VERIFY_PEER` and
`--amqp.tls.verify-peer`. The file is the one named by `--config`, else by `AMQPD_CONFIG`, else `./amqpd.toml` if there
is one. RabbitMQ's `RABBITMQ_DEFAULT_USER`, `_PASS` and `_VHOST` count as environment, below our own names.

The tree is the only list of settings: conversion, bounds, `--help`, `--print-settings` and the check of the
documentation are made from the fields below. A setting stands here only if some module obeys it. `Settings` is passed
in wherever it is needed; there is no global one.

A value that cannot be used, an unknown name in the file, the environment or the command line: each is a line of one
`SettingsError`, so that all of them can be put right at once. Invariant: a `Settings` that `load` returns is within its
bounds and agrees with itself (`_disagreements`).

This module imports neither the server nor asyncio, and what only some calls need (TOML, help) is imported late: it is
part of the start-up time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeVar, cast

from amqpd import __version__

EXIT_USAGE: Final = 64
"""Exit code for a command line, environment or file that cannot be used (EX_USAGE of sysexits.h)."""

CONFIG_VARIABLE: Final = "AMQPD_CONFIG"
NO_SETTING: Final = {CONFIG_VARIABLE, "AMQPD_INTERPRETED"}
"""Variables that begin like ours without naming a setting: the file, and what setup.py obeys."""

SERVICE_LINK: Final = re.compile(r"AMQPD_(SERVICE_(HOST|PORT).*|PORT(_\d+_(TCP|UDP).*)?)")
"""What Kubernetes puts into every container when a service is called `amqpd`; it means no setting."""

T = TypeVar("T")
N = TypeVar("N", int, float)


class SettingsError(Exception):
    """Settings that cannot be used. problems: one line each, ready to be shown."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = list(problems)


class Kind(NamedTuple):
    """A type of setting. word: for the help; convert: raises ValueError with text that follows the setting's name."""

    word: str
    convert: Callable[[object], Any]


def _number(raw: object) -> int:
    if isinstance(raw, bool) or not isinstance(raw, int | str):
        raise ValueError(f"must be a whole number, not {raw!r}")
    try:
        return int(raw)
    except ValueError:
        raise ValueError(f"must be a whole number, not {raw!r}") from None


def _within(value: N, low: float, high: float) -> N:
    if not low <= value <= high:
        raise ValueError(f"must be from {low} to {high}, not {value}")
    return value


def _integer(low: int, high: int, word: str = "number") -> Kind:
    return Kind(word, lambda raw: _within(_number(raw), low, high))


def _seconds(low: float, high: float) -> Kind:
    def convert(raw: object) -> float:
        if isinstance(raw, bool) or not isinstance(raw, int | float | str):
            raise ValueError(f"must be a number of seconds, not {raw!r}")
        try:
            value = float(raw)
        except ValueError:
            raise ValueError(f"must be a number of seconds, not {raw!r}") from None
        return _within(value, low, high)

    return Kind("seconds", convert)


def _to_share(raw: object) -> float:
    if isinstance(raw, bool) or not isinstance(raw, int | float | str):
        raise ValueError(f"must be a number between 0 and 1, not {raw!r}")
    try:
        value = float(raw)
    except ValueError:
        raise ValueError(f"must be a number between 0 and 1, not {raw!r}") from None
    return _within(value, 0.0, 1.0)


_share: Final = Kind("share", _to_share)
_UNITS: Final = {"": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}


def _bytes(low: int, high: int) -> Kind:
    def convert(raw: object) -> int:
        if isinstance(raw, str):
            match = re.fullmatch(r"(\d+) ?([a-z]*)", raw.strip(), re.IGNORECASE)
            if match is None or match[2].upper() not in _UNITS:
                raise ValueError(f"must be a number of bytes such as 65536 or 64 MiB, not {raw!r}")
            raw = int(match[1]) * _UNITS[match[2].upper()]
        return _within(_number(raw), low, high)

    return Kind("bytes", convert)


def _text(raw: object) -> str:
    if not isinstance(raw, str):
        raise ValueError(f"must be text, not {raw!r}")
    if "\0" in raw:
        raise ValueError("must not hold a NUL character")
    return raw


def _some_text(raw: object) -> str:
    text = _text(raw)
    if not text:
        raise ValueError("must not be empty")
    return text


def _short_text(raw: object) -> str:
    text = _some_text(raw)
    if len(text.encode("utf-8", "surrogateescape")) > 255:
        raise ValueError("must be at most 255 bytes long")  # spec: a short string
    return text


def _boolean(raw: object) -> bool:
    if isinstance(raw, bool):
        return raw
    if isinstance(raw, str) and raw.lower() in {"true", "yes", "on", "1"}:
        return True
    if isinstance(raw, str) and raw.lower() in {"false", "no", "off", "0"}:
        return False
    raise ValueError(f"must be true or false, not {raw!r}")


def _names(raw: object) -> tuple[str, ...]:
    parts = raw.split(",") if isinstance(raw, str) else raw
    if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
        raise ValueError(f"must be a list of names, not {raw!r}")
    return tuple(name for part in parts if (name := part.strip()))


def _choice(*words: str) -> Kind:
    def convert(raw: object) -> str:
        text = _text(raw).lower()
        if text not in words:
            raise ValueError(f"must be one of {', '.join(words)}, not {raw!r}")
        return text

    return Kind("|".join(words), convert)


def _compat(raw: object) -> str:
    text = _text(raw)
    if text and re.fullmatch(r"rabbitmq-\d{1,3}\.\d{1,3}", text) is None:
        raise ValueError(f"must be empty or rabbitmq-MAJOR.MINOR such as rabbitmq-3.12, not {raw!r}")
    return text


def _off_port(raw: object) -> int | None:
    return None if isinstance(raw, str) and raw.lower() in {"", "off", "none"} else _within(_number(raw), 0, 65535)


PORT: Final = _integer(0, 65535, "port")
OFF_PORT: Final = Kind("port|off", _off_port)
TEXT: Final = Kind("text", _text)
SOME_TEXT: Final = Kind("text", _some_text)
SHORT_TEXT: Final = Kind("text", _short_text)
BOOLEAN: Final = Kind("true|false", _boolean)
NAMES: Final = Kind("name,name...", _names)
PATH: Final = Kind("path", lambda raw: Path(_some_text(raw)))
NO_PATH: Final = Kind("path", lambda raw: Path(raw) if (raw := _text(raw)) else None)


class Row(NamedTuple):
    """One setting, as the tree describes it. environ_also: a foreign variable that is honoured too, or empty."""

    name: str
    default: object
    kind: Kind
    doc: str
    secret: bool
    environ_also: str

    @property
    def variable(self) -> str:
        return "AMQPD_" + self.name.replace(".", "__").upper()

    @property
    def option(self) -> str:
        return "--" + self.name.replace("_", "-")


def _setting(default: T, kind: Kind, doc: str, *, secret: bool = False, environ_also: str = "") -> T:
    metadata = {"kind": kind, "doc": doc, "secret": secret, "environ_also": environ_also}
    return field(default=default, repr=not secret, metadata=metadata)


@dataclass(frozen=True)
class TlsSettings:
    """AMQP over TLS 1.2 and 1.3, on a port of its own."""

    port: int | None = _setting(None, OFF_PORT, "Port for AMQP over TLS, usually 5671; 0 takes any free one.")
    certificate: Path | None = _setting(None, NO_PATH, "The server's certificate and its chain (PEM).")
    key: Path | None = _setting(None, NO_PATH, "The certificate's private key (PEM, without a passphrase).")
    ca: Path | None = _setting(None, NO_PATH, "Certificates (PEM) of the authorities that sign clients' certificates.")
    verify_peer: bool = _setting(False, BOOLEAN, "Ask clients for a certificate and refuse one that `ca` did not sign.")
    fail_if_no_peer_certificate: bool = _setting(False, BOOLEAN, "Refuse a client that shows no certificate at all.")


@dataclass(frozen=True)
class AmqpSettings:
    """The AMQP listener, and what connections may ask for."""

    host: str = _setting(
        "",  # rabbit: a broker is reachable; the user guest is not, see loopback_users
        TEXT,
        "Address to listen on: empty is every interface, IPv4 and where there is one IPv6; 0.0.0.0 is IPv4 alone.",
    )
    port: int = _setting(5672, PORT, "Port for AMQP; 0 takes any free one and the ready line names it.")
    frame_max: int = _setting(131072, _bytes(4096, 1 << 27), "Largest frame, offered in connection.tune.")
    channel_max: int = _setting(2047, _integer(1, 65535), "Channels that one connection may have, offered in tune.")
    heartbeat_s: int = _setting(60, _integer(0, 65535, "seconds"), "Heartbeat offered in tune; 0 offers none.")
    message_size_max_bytes: int = _setting(
        1 << 27, _bytes(1, 1 << 29), "Largest message body; a larger one closes its channel with 406."
    )
    handshake_timeout_s: float = _setting(
        10.0, _seconds(0.1, 3600.0), "A connection that is not open after this time is closed."
    )
    loopback_users: tuple[str, ...] = _setting(
        ("guest",), NAMES, "Users that may log in from this machine only; empty frees all of them."
    )
    tls: TlsSettings = TlsSettings()


@dataclass(frozen=True)
class HttpSettings:
    """The admin API."""

    host: str = _setting("127.0.0.1", SOME_TEXT, "Address the admin API listens on.")
    port: int = _setting(15672, PORT, "Port of the admin API; 0 takes any free one and the ready line names it.")


@dataclass(frozen=True)
class LogSettings:
    """The log of the server."""

    level: Literal["debug", "info", "warning", "error"] = _setting(
        "info", _choice("debug", "info", "warning", "error"), "Least grave messages that are logged."
    )
    format: Literal["text", "json"] = _setting(
        "text", _choice("text", "json"), "How a message is written: a line of text, or a JSON object on a line."
    )
    file: Path | None = _setting(
        None, NO_PATH, "File the log is appended to; empty is standard error. SIGUSR1 opens it anew."
    )


@dataclass(frozen=True)
class MetadataSettings:
    """Where vhosts, users, permissions, exchanges, queues and bindings are kept."""

    url: str = _setting("", TEXT, "SQLAlchemy URL of the metadata database; empty is SQLite in data_dir.", secret=True)


@dataclass(frozen=True)
class StorageSettings:
    """The logs of the durable queues."""

    segment_size_bytes: int = _setting(
        64 << 20, _bytes(4096, (1 << 31) - 1), "A log begins a new segment before one would grow beyond this."
    )
    segment_age_s: float = _setting(
        604_800.0,
        _seconds(1.0, 3.2e9),
        "A log begins a new segment when the first message in the last one is older than this, looked at each upkeep.",
    )
    upkeep_interval_s: float = _setting(
        60.0,
        _seconds(0.05, 86_400.0),
        "How often logs are looked after: old or drained segments rolled, files removed late.",
    )
    recovery: Literal["salvage", "strict"] = _setting(
        "salvage",
        _choice("salvage", "strict"),
        "What damage in the middle of a log does: salvage passes over it, strict reads all logs and refuses to start.",
    )


@dataclass(frozen=True)
class LimitSettings:
    """When publishers are held until there is room again, by connection.blocked where an alarm is the reason."""

    memory_high_watermark: float = _setting(
        0.4, _share, "Share of the machine's (or cgroup's) memory; with more in use publishers are held."
    )
    disk_free_bytes: int = _setting(
        50_000_000, _bytes(0, 1 << 60), "With less free space in data_dir's file system publishers are held."
    )
    unopened_share: float = _setting(
        0.5,
        _share,
        "Share of the process's descriptors; with more AMQP sockets, those that have not logged in are closed, the "
        "oldest of the address that has most of them first.",
    )
    reserved_descriptors: int = _setting(
        256,
        _integer(0, 1 << 20),
        "Descriptors that no AMQP socket gets: for files and the admin API. At most a quarter of them all.",
    )
    unfinished_bodies_bytes: int = _setting(
        1 << 28,
        _bytes(0, 1 << 40),
        "Message bodies on their way, of all connections; with more, all but the oldest are not read. At most a "
        "quarter of the memory alarm's limit, never less than amqp.message_size_max_bytes.",
    )


@dataclass(frozen=True)
class DefaultSettings:
    """The first user and vhost: made at the first start, when the metadata is empty, and never looked at again."""

    user: str = _setting("guest", SHORT_TEXT, "Name of the first user.", environ_also="RABBITMQ_DEFAULT_USER")
    password: str = _setting(
        "guest", SOME_TEXT, "Password of the first user.", secret=True, environ_also="RABBITMQ_DEFAULT_PASS"
    )
    vhost: str = _setting("/", SHORT_TEXT, "Name of the first vhost.", environ_also="RABBITMQ_DEFAULT_VHOST")


@dataclass(frozen=True)
class Settings:
    """Every setting of the server."""

    data_dir: Path = _setting(
        Path("./amqpd-data"), PATH, "Directory of everything that is kept, made if need be; one broker per directory."
    )
    compat: str = _setting(
        "",
        Kind("rabbitmq-X.Y", _compat),
        "Name to clients: empty says amqpd and its version, rabbitmq-3.12 says RabbitMQ 3.12.0.",
    )
    amqp: AmqpSettings = AmqpSettings()
    http: HttpSettings = HttpSettings()
    log: LogSettings = LogSettings()
    metadata: MetadataSettings = MetadataSettings()
    storage: StorageSettings = StorageSettings()
    limits: LimitSettings = LimitSettings()
    default: DefaultSettings = DefaultSettings()

    @property
    def product(self) -> tuple[str, str]:
        """Product and version for the server-properties: `compat` read."""
        if not self.compat:
            return "amqpd", __version__
        return "RabbitMQ", self.compat.removeprefix("rabbitmq-") + ".0"

    @classmethod
    def load(cls, argv: Sequence[str], environ: Mapping[str, str]) -> Loaded:
        """The settings that defaults, file, `environ` and `argv` (without the program's name) add up to.

        Cost: one read of the TOML file if there is one. Raises: SettingsError.
        """
        return _load(argv, environ)


class Loaded(NamedTuple):
    """What `Settings.load` found.

    sources: setting's name -> `default`, `file amqpd.toml`, `environment AMQPD_...` or `command line`.
    wish: what the command line asks the program to do. formatter: for print-settings.
    """

    settings: Settings
    sources: dict[str, str]
    wish: Literal["run", "help", "version", "print-settings"]
    formatter: Literal["table", "json"]


def rows(tree: type = Settings, prefix: str = "") -> list[Row]:
    """Every setting, in the order of the tree."""
    found: list[Row] = []
    for one in fields(tree):
        name = prefix + one.name
        if is_dataclass(one.default):
            found += rows(type(one.default), name + ".")
        else:
            found.append(Row(name, one.default, **one.metadata))
    return found


def value_of(settings: Settings, name: str) -> Any:
    """The value of the setting with this dotted name."""
    value: Any = settings
    for part in name.split("."):
        value = getattr(value, part)
    return value


def _build(tree: type[T], values: Mapping[str, object], prefix: str = "") -> T:
    arguments: dict[str, object] = {}
    for one in fields(cast(Any, tree)):
        name = prefix + one.name
        if is_dataclass(one.default):
            arguments[one.name] = _build(type(one.default), values, name + ".")
        elif name in values:
            arguments[one.name] = values[name]
    return tree(**arguments)


def _unknown(given: str, known: Sequence[str]) -> str:
    """`unknown setting` with the nearest known spelling."""
    from difflib import get_close_matches

    near = get_close_matches(given, known, 1)
    return f"unknown setting {given}" + (f"; did you mean {near[0]}?" if near else "")


class _CommandLine(NamedTuple):
    wish: Literal["run", "help", "version", "print-settings"]
    formatter: Literal["table", "json"]
    config: str
    values: dict[str, str]  # by name of the setting
    problems: list[str]


def _parse_arguments(argv: Sequence[str], known: Mapping[str, Row]) -> _CommandLine:
    """Splits the command line; `--name value` and `--name=value` are the same, the last of a name wins."""
    wishes: list[str] = []
    problems: list[str] = []
    values: dict[str, str] = {}
    ours = ["--config", "--formatter", "--help", "--print-settings", "--version"]
    config = formatter = ""
    options = {row.option: row for row in known.values()}
    rest = list(argv)
    while rest:
        argument = rest.pop(0)
        option, equals, value = argument.partition("=")
        if argument in {"--help", "-h", "--version", "--print-settings"}:
            wishes.append("help" if argument == "-h" else argument.removeprefix("--"))
            continue
        if not option.startswith("--"):
            problems.append(f"unexpected argument {argument!r}")
            continue
        option = option.replace("_", "-")
        if option not in options and option not in {"--config", "--formatter"}:
            problems.append(_unknown(option, [*options, *ours]))
            if not equals and rest and not rest[0].startswith("--"):
                rest.pop(0)  # its value, which is no second mistake
            continue
        if not equals:
            if not rest or rest[0].startswith("--"):
                problems.append(f"{option} needs a value")
                continue
            value = rest.pop(0)
        if option == "--config":
            config = value
        elif option == "--formatter":
            formatter = value
        else:
            values[options[option].name] = value
    if formatter and "print-settings" not in wishes:
        problems.append("--formatter goes with --print-settings")
    if formatter not in {"", "table", "json"}:
        problems.append(f"--formatter must be table or json, not {formatter!r}")
    wish = next((wish for wish in ("help", "version", "print-settings") if wish in wishes), "run")
    return _CommandLine(cast(Any, wish), "json" if formatter == "json" else "table", config, values, problems)


def _read_file(named: str, known: Mapping[str, Row], problems: list[str]) -> tuple[dict[str, object], str]:
    """Values of the TOML file by name, and what `sources` calls the file; one that was not named may be missing."""
    path = Path(named or "amqpd.toml")
    if not named and not path.exists():
        return {}, ""
    import tomllib

    try:
        with path.open("rb") as file:
            document = tomllib.load(file)
    except OSError as error:
        problems.append(f"{path}: {error.strerror}")
        return {}, ""
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        problems.append(f"{path}: not TOML: {error}")
        return {}, ""
    values: dict[str, object] = {}
    sections = {name.rpartition(".")[0] for name in known} | {"amqp"}

    def walk(table: Mapping[str, object], prefix: str) -> None:
        for key, value in table.items():
            name = prefix + key
            if name in known:
                values[name] = value
            elif isinstance(value, dict) and name in sections:
                walk(value, name + ".")
            else:
                problems.append(f"{path}: {_unknown(name, list(known))}")

    walk(document, "")
    return values, f"file {path}"


def _read_environment(
    environ: Mapping[str, str], known: Mapping[str, Row], problems: list[str]
) -> dict[str, tuple[str, str]]:
    """Setting's name -> (text, variable)."""
    variables = {row.variable: row for row in known.values()}
    found: dict[str, tuple[str, str]] = {}
    for row in known.values():
        if row.environ_also in environ:
            found[row.name] = environ[row.environ_also], row.environ_also
    for variable, text in environ.items():
        if variable in variables:
            found[variables[variable].name] = text, variable
        elif variable.startswith("AMQPD_") and variable not in NO_SETTING and not SERVICE_LINK.fullmatch(variable):
            problems.append(f"environment: {_unknown(variable, list(variables))}")
    return found


def _load(argv: Sequence[str], environ: Mapping[str, str]) -> Loaded:
    known = {row.name: row for row in rows()}
    line = _parse_arguments(argv, known)
    sources = dict.fromkeys(known, "default")
    if line.wish in {"help", "version"}:
        return Loaded(Settings(), sources, line.wish, line.formatter)
    problems = line.problems
    raw: dict[str, object] = {}
    from_file, file_name = _read_file(line.config or environ.get(CONFIG_VARIABLE, ""), known, problems)
    for name, value in from_file.items():
        raw[name], sources[name] = value, file_name
    for name, (text, variable) in _read_environment(environ, known, problems).items():
        raw[name], sources[name] = text, f"environment {variable}"
    for name, text in line.values.items():
        raw[name], sources[name] = text, "command line"
    values: dict[str, object] = {}
    for name, given in raw.items():
        try:
            values[name] = known[name].kind.convert(given)
        except ValueError as error:
            # The text may quote the value, which must not put a password into a log.
            text = "must be text, and not empty" if known[name].secret else str(error)
            problems.append(f"{name} {text} ({sources[name]})")
    if not problems:
        settings = _build(Settings, values)
        problems = _disagreements(settings)
    if problems:
        raise SettingsError(problems)
    return Loaded(settings, sources, line.wish, line.formatter)


def _disagreements(settings: Settings) -> list[str]:
    """What is wrong with settings that are each within their bounds; files that must be there are looked for."""
    tls = settings.amqp.tls
    problems = []
    if tls.port is not None and (tls.certificate is None or tls.key is None):
        problems.append("amqp.tls.port needs amqp.tls.certificate and amqp.tls.key")
    if tls.port is not None and tls.port == settings.amqp.port != 0:
        problems.append(f"amqp.tls.port must not be amqp.port ({tls.port})")
    if tls.verify_peer and tls.ca is None:
        problems.append("amqp.tls.verify_peer needs amqp.tls.ca")
    if tls.fail_if_no_peer_certificate and not tls.verify_peer:
        problems.append("amqp.tls.fail_if_no_peer_certificate needs amqp.tls.verify_peer")
    for name, path in (("certificate", tls.certificate), ("key", tls.key), ("ca", tls.ca)):
        if path is not None and not path.is_file():
            problems.append(f"amqp.tls.{name}: there is no file {path}")
    return problems
