"""RabbitMQ's environment variables, with those of its official image: settings, notes or errors for each.

An empty variable counts as not set. NAME_FILE is a file with the value of NAME in its first line, for secrets.
Variables that Kubernetes sets for a service called `rabbitmq` are ignored without a note.

Imported only if a variable begins with RABBITMQ_.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from stat import S_ISDIR
from typing import Final, NamedTuple

from amqpd.config.rabbitmq_conf import FILE as ENABLED_PLUGINS_FILE
from amqpd.config.rabbitmq_conf import LEVELS, matching_files, size_bytes
from amqpd.config.rabbitmq_conf import NAMES as ENABLED_PLUGINS
from amqpd.config.types import file_exists

PREFIX: Final = "RABBITMQ_"
SERVICE_LINK: Final = re.compile(r"RABBITMQ_(SERVICE_(HOST|PORT).*|PORT(_\d+_(TCP|UDP).*)?)")
CONFIG_FILE: Final = "RABBITMQ_CONFIG_FILE"
CONFIG_FILES: Final = "RABBITMQ_CONFIG_FILES"
NO_CONFIG: Final = "files ending in .config have Erlang terms; use rabbitmq.conf (docs/moving.md)"

# `loader` reads the variables themselves (`environ_also` of their settings); here they may come from a file.
WITH_FILE: Final = {
    "RABBITMQ_DEFAULT_USER": "default.user",
    "RABBITMQ_DEFAULT_PASS": "default.password",
    "RABBITMQ_DEFAULT_VHOST": "default.vhost",
}


class Variable(NamedTuple):
    """A row: a variable and its effect.

    Attributes:
        does: the effect, as documentation for users
        take: returns the settings for a value; raises ValueError with a text that follows the variable's name
    """

    name: str
    does: str
    take: Callable[[str], dict[str, object]]


class EnvResult(NamedTuple):
    """Settings of the variables. `values`: setting's name -> (text, variable); notes and problems are lines."""

    values: dict[str, tuple[object, str]]
    notes: list[str]
    problems: list[str]


def read(environ: Mapping[str, str]) -> EnvResult:
    """Return the settings of RabbitMQ's variables, except those in WITH_FILE. Reads a file for each `_FILE`."""
    found = EnvResult({}, [], [])
    known = {each.name: each for each in VARIABLES}
    for name, text in sorted(environ.items()):
        if not name.startswith(PREFIX) or not text or name in WITH_FILE or SERVICE_LINK.fullmatch(name):
            continue
        if name.endswith("_FILE") and name.removesuffix("_FILE") in WITH_FILE:
            _read_secret(name, Path(text), environ, found)
        elif name not in known:
            found.notes.append(f"environment: {name} changes nothing: amqpd does not know it")
        else:
            try:
                for setting, value in known[name].take(text).items():
                    found.values[setting] = value, name
                if known[name].does.startswith("nothing"):
                    found.notes.append(f"environment: {name} changes nothing{known[name].does.removeprefix('nothing')}")
            except ValueError as error:
                found.problems.append(f"environment: {name} {error}")
    return found


def _read_secret(name: str, path: Path, environ: Mapping[str, str], found: EnvResult) -> None:
    plain = name.removesuffix("_FILE")
    if environ.get(plain):
        found.problems.append(f"environment: {plain} and {name} are both set; set only one")
        return
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        found.problems.append(f"environment: {name}: {path}: {reason}")
        return
    found.values[WITH_FILE[plain]] = text.partition("\n")[0].removesuffix("\r"), name


def _maps_to(name: str, setting: str) -> Variable:
    return Variable(PREFIX + name, f"`{setting}`", lambda text: {setting: text})


def _ignored(why: str, *names: str) -> list[Variable]:
    return [Variable(PREFIX + name, f"nothing: {why}", lambda _text: {}) for name in names]


def _refused(why: str, *names: str) -> list[Variable]:
    def take(_text: str) -> dict[str, object]:
        raise ValueError(f"is not supported: {why}")

    return [Variable(PREFIX + name, f"**refused**: {why}", take) for name in names]


def _logs(text: str) -> dict[str, object]:
    """Return log.file. rabbit: `-` is standard output, and commas separate several logs."""
    if "," in text:
        raise ValueError("names several logs; amqpd has one")
    return {"log.file": "" if text in {"-", "stderr", "-stderr"} else text}


def _level(text: str) -> dict[str, object]:
    """Return level and format. rabbit: words with commas, such as `debug,+color,channel=debug`."""
    found: dict[str, object] = {}
    for word in text.split(","):
        if word in LEVELS:
            found["log.level"] = LEVELS[word]
        elif word in {"+json", "-json"}:
            found["log.format"] = "json" if word == "+json" else "text"
        elif word not in {"+color", "-color", "+single_line", "-single_line"} and "=" not in word:
            raise ValueError(f"must be a level, one of {', '.join(LEVELS)}, not {word!r}")
    return found


def _watermark(text: str) -> dict[str, object]:
    if re.fullmatch(r"[01]?\.\d+|[01]", text):
        return {"limits.memory_high_watermark": text}
    return {"limits.memory_bytes": size_bytes(text)}


def _file(_text: str) -> dict[str, object]:
    return {}  # `loader` has read it


TLS_KEYS: Final = "put ssl_options.* and listeners.ssl.default into rabbitmq.conf"

# fmt: off
VARIABLES: Final[tuple[Variable, ...]] = (
    *(Variable(f"{name}_FILE", f"`{setting}`, from a file", _file) for name, setting in WITH_FILE.items()),
    Variable(CONFIG_FILE, "path of `rabbitmq.conf`, with or without its ending", _file),
    Variable(CONFIG_FILES, "a directory or a pattern; read after it, instead of `conf.d/*.conf`", _file),
    Variable(ENABLED_PLUGINS, "plugins, with commas; `rabbitmq_prometheus` sets `metrics.port` to 15692", _file),
    Variable(ENABLED_PLUGINS_FILE, "the same in a file, instead of `enabled_plugins` beside `rabbitmq.conf`", _file),
    _maps_to("NODE_PORT", "amqp.port"),
    _maps_to("NODE_IP_ADDRESS", "amqp.host"),
    Variable("RABBITMQ_LOGS", "`log.file`; `-` is standard error", _logs),
    Variable("RABBITMQ_LOG", "`log.level`, `log.format` (`debug`, `+json`); colours and categories: nothing", _level),
    _maps_to("MNESIA_DIR", "data_dir"),
    Variable("RABBITMQ_MNESIA_BASE", "`data_dir`: `amqpd` in it", lambda text: {"data_dir": str(Path(text) / "amqpd")}),
    Variable("RABBITMQ_VM_MEMORY_HIGH_WATERMARK", "`limits.memory_high_watermark`, `limits.memory_bytes`", _watermark),
    *_refused("advanced.config has Erlang terms; use rabbitmq.conf", "ADVANCED_CONFIG_FILE"),
    *_refused(
        TLS_KEYS, "SSL_CACERTFILE", "SSL_CERTFILE", "SSL_KEYFILE", "SSL_VERIFY", "SSL_FAIL_IF_NO_PEER_CERT", "SSL_DEPTH"
    ),
    *_refused(
        "put management.ssl.* into rabbitmq.conf",
        "MANAGEMENT_SSL_CACERTFILE", "MANAGEMENT_SSL_CERTFILE", "MANAGEMENT_SSL_KEYFILE", "MANAGEMENT_SSL_VERIFY",
        "MANAGEMENT_SSL_FAIL_IF_NO_PEER_CERT", "MANAGEMENT_SSL_DEPTH",
    ),
    *_ignored("a node's name is amqpd@ and the host's", "NODENAME", "USE_LONGNAME"),
    *_ignored("it is about Erlang", "ERLANG_COOKIE", "SERVER_ERL_ARGS", "SERVER_ADDITIONAL_ERL_ARGS", "DBG"),
    *_ignored("it is about Erlang", "CTL_ERL_ARGS", "CTL_DIST_PORT_MIN", "CTL_DIST_PORT_MAX", "DIST_PORT"),
    *_ignored("it is about Erlang", "SERVER_START_ARGS", "IO_THREAD_POOL_SIZE", "DISTRIBUTION_BUFFER_SIZE"),
    *_ignored("it is about Erlang", "MAX_NUMBER_OF_PROCESSES", "MAX_NUMBER_OF_ATOMS"),
    *_ignored("amqpd's plugins are built in", "PLUGINS_DIR"),
    *_ignored("amqpd's plugins are built in", "PLUGINS_EXPAND_DIR"),
    *_ignored("amqpd has no feature flags", "FEATURE_FLAGS", "FEATURE_FLAGS_FILE", "LOG_FF_REGISTRY"),
    *_ignored("all files are in data_dir", "QUORUM_DIR", "STREAM_DIR", "SCHEMA_DIR", "HOME", "BASE", "DATA_DIR"),
    *_ignored("systemd or the container manages the process", "PID_FILE", "KEEP_PID_FILE_ON_EXIT", "SERVICENAME"),
    *_ignored("RABBITMQ_LOGS and log.file set the log", "LOG_BASE", "UPGRADE_LOG"),
    *_ignored("amqpd shows its own name and version", "PRODUCT_NAME", "PRODUCT_VERSION", "MOTD_FILE"),
    *_ignored("amqpd reads variables only from its environment", "CONF_ENV_FILE", "ALLOW_INPUT"),
    *_ignored("set it for a vhost: amqpctl add_vhost --default-queue-type", "DEFAULT_QUEUE_TYPE"),
    *_ignored("it is about RabbitMQ's image", "VERSION", "PGP_KEY_ID"),
)
# fmt: on


def files(environ: Mapping[str, str], notes: list[str], problems: list[str]) -> tuple[Path | None, list[Path] | None]:
    """Return the main file, and the further files or None if no variable names them.

    A missing main file is a note, because RabbitMQ starts without it too.
    """
    main: Path | None = None
    if named := environ.get(CONFIG_FILE):
        main = Path(named if named.endswith((".conf", ".config")) else f"{named}.conf")
        if not file_exists(main, True):
            notes.append(f"environment: {CONFIG_FILE}: there is no file {main}")
            main = None
    more: list[Path] | None = None
    if named := environ.get(CONFIG_FILES):
        path = Path(named)
        pattern = path / "*.conf" if file_exists(path, False, S_ISDIR) else path
        more = matching_files(pattern, f"environment: {CONFIG_FILES}: ", problems)
    return main, more
