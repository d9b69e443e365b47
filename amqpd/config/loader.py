"""Loader of settings: finds the value of each setting, and its source.

Later sources override earlier ones: default, file, environment, command line. The file is `--config`, else
`AMQPD_CONFIG`, else `./amqpd.toml` if it exists. It is TOML, or RabbitMQ's format if its name ends in `.conf`
(`rabbitmq_conf`). The file in RABBITMQ_CONFIG_FILE is read before it. Our own variables override
RabbitMQ's (`rabbitmq_env`).

All mistakes are reported at once: each unusable value and each unknown name is a line of one `SettingsError`. A
`Settings` that `load` returns is within its bounds, and its settings do not contradict each other.

Parts that few starts need (TOML, guesses at a misspelt name) are imported when they are needed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from importlib.util import find_spec
from pathlib import Path
from stat import S_ISREG
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypeVar, cast, get_args

from amqpd.config.schema import ClusterSettings, Settings, TlsSettings, rows
from amqpd.config.types import Setting, access_problem, file_exists

EXIT_USAGE: Final = 64
"""Exit code for an unusable command line, environment or file (EX_USAGE of sysexits.h)."""

CONFIG_VARIABLE: Final = "AMQPD_CONFIG"
RABBITMQ_ENDINGS: Final = (".conf", ".config")
"""Endings of RabbitMQ's files. Any other file is TOML."""

NO_SETTING: Final = {CONFIG_VARIABLE, "AMQPD_INTERPRETED"}
"""Variables with our prefix that are no settings: the file's name, and a variable of setup.py."""

SERVICE_LINK: Final = re.compile(r"AMQPD_(SERVICE_(HOST|PORT).*|PORT=\w+://.*|PORT_\d+_(TCP|UDP).*)")
"""Variables with their values that Kubernetes sets in every container if a service is called `amqpd`: no settings."""

_NO_CLUSTER: Final = ClusterSettings()

T = TypeVar("T")

Wish: TypeAlias = Literal["run", "ephemeral", "help", "version", "print-settings", "check-config"]
Formatter: TypeAlias = Literal["table", "json", "toml"]


class SettingsError(Exception):
    """Unusable settings. `problems` has one line for each mistake."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = list(problems)


class LoadedSettings(NamedTuple):
    """The settings with their sources, and the action that the command line asks for.

    Attributes:
        sources: setting's name -> `default`, `file amqpd.toml`, `environment AMQPD_...` or `command line`
        wish: the action, normally `run`
        formatter: the format of --print-settings, and of the line that --ephemeral prints
        notes: a line for each key and variable of RabbitMQ's that has no effect
    """

    settings: Settings
    sources: dict[str, str]
    wish: Wish
    formatter: Formatter
    notes: Sequence[str] = ()


def load(argv: Sequence[str], environ: Mapping[str, str]) -> LoadedSettings:
    """Return the settings of defaults, files, `environ` and `argv` (without the program's name).

    Raises:
        SettingsError: all mistakes
    """
    known = {row.name: row for row in rows()}
    line = _parse_arguments(argv, known)
    sources = dict.fromkeys(known, "default")
    if line.wish in {"help", "version"}:
        return LoadedSettings(Settings(), sources, line.wish, line.formatter)
    problems = line.problems
    raw: dict[str, object] = {}
    notes: list[str] = []
    named = line.config or environ.get(CONFIG_VARIABLE, "")
    raw.update(_read_rabbitmq_files(named, environ, sources, notes, problems))
    of_rabbitmq = set(raw)
    if not named.endswith(RABBITMQ_ENDINGS):
        from_file, file_name = _read_file(named, known, problems)
        for name, value in from_file.items():
            raw[name], sources[name] = value, file_name
            of_rabbitmq.discard(name)
    if any(variable.startswith("RABBITMQ_") for variable in environ):
        from amqpd.config import rabbitmq_env

        found = rabbitmq_env.read(environ)
        notes += found.notes
        problems += found.problems
        of_rabbitmq |= found.values.keys()
        for name, (value, variable) in found.values.items():
            raw[name], sources[name] = value, f"environment {variable}"
    for name, (text, variable) in _read_environment(environ, known, problems).items():
        if name in of_rabbitmq and variable.startswith("AMQPD_") and str(raw[name]) != text:
            source = sources[name].replace("environment ", "environment: ").removeprefix("file ")
            notes.append(f"{source} changes nothing: {variable} overrides it")
        raw[name], sources[name] = text, f"environment {variable}"
    for name, text in line.values.items():
        raw[name], sources[name] = text, "command line"
    values: dict[str, object] = {}
    for name, given in raw.items():
        try:
            values[name] = known[name].kind.convert(given)
        except ValueError as error:
            # The text can quote the value, and a password must not get into a log.
            text = "must be text, and not empty" if known[name].secret else str(error)
            problems.append(f"{name} {text} ({sources[name]})")
    if not problems:
        settings = _build(Settings, values)
        problems = _disagreements(settings)
    if problems:
        raise SettingsError(problems)
    return LoadedSettings(settings, sources, line.wish, line.formatter, notes)


def _read_rabbitmq_files(
    named: str, environ: Mapping[str, str], sources: dict[str, str], notes: list[str], problems: list[str]
) -> dict[str, object]:
    """Return the values of RabbitMQ's files by setting's name. `named` is the file of --config or AMQPD_CONFIG."""
    variables = ("CONFIG_FILE", "CONFIG_FILES", "ENABLED_PLUGINS_FILE", "ENABLED_PLUGINS")
    if not named.endswith(RABBITMQ_ENDINGS) and not any(environ.get(f"RABBITMQ_{each}") for each in variables):
        return {}
    from amqpd.config import rabbitmq_conf, rabbitmq_env

    main, more = rabbitmq_env.files({} if named.endswith(RABBITMQ_ENDINGS) else environ, notes, problems)
    if named.endswith(RABBITMQ_ENDINGS):
        main = Path(named)
    if main is not None and main.name.endswith(".config"):
        problems.append(f"{main}: {rabbitmq_env.NO_CONFIG}")
        return {}
    if main is not None and file_exists(main.parent / "advanced.config", False):
        problems.append(f"{main.parent / 'advanced.config'}: {rabbitmq_env.NO_CONFIG}; then delete the file")
    if more is None:
        more = [] if main is None else rabbitmq_conf.matching_files(main.parent / "conf.d" / "*.conf", "", problems)
    plugins = rabbitmq_conf.enabled(main.parent if main is not None else None, environ, notes)
    found = rabbitmq_conf.read(main, more, environ, plugins)
    notes += found.notes
    problems += found.problems
    sources.update(found.sources)
    return found.values


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
    """Return the text about an unknown setting, with the most similar known one."""
    from difflib import get_close_matches

    # --port is rather --amqp.port than the most similar name
    of_amqp = re.sub("^AMQPD_", "AMQPD_AMQP__", given) if given.isupper() else re.sub("^(--)?", r"\g<0>amqp.", given)
    near = [of_amqp] if of_amqp in known else get_close_matches(given, known, 1)
    return f"unknown setting {given}" + (f"; did you mean {near[0]}?" if near else "")


class _CommandLine(NamedTuple):
    wish: Wish
    formatter: Formatter
    config: str
    values: dict[str, str]  # by name of the setting
    problems: list[str]


def _parse_arguments(argv: Sequence[str], known: Mapping[str, Setting]) -> _CommandLine:
    """Parse the command line. `--name value` is `--name=value`; of equal options the last counts."""
    wishes: list[str] = []
    problems: list[str] = []
    values: dict[str, str] = {}
    ours = ["--check-config", "--config", "--ephemeral", "--formatter", "--help", "--print-settings", "--version"]
    config = formatter = ""
    options = {row.option: row for row in known.values()}
    rest = list(argv)
    while rest:
        argument = rest.pop(0)
        option, equals, value = argument.partition("=")
        if argument in {"--help", "-h", "--version", "--print-settings", "--check-config", "--ephemeral"}:
            wishes.append("help" if argument == "-h" else argument.removeprefix("--"))
            continue
        if not option.startswith("--"):
            problems.append(f"unexpected argument {argument!r}")
            continue
        option = option.replace("_", "-")
        if option not in options and option not in {"--config", "--formatter"}:
            problems.append(_unknown(option, [*options, *ours]))
            if not equals and rest and not rest[0].startswith("--"):
                rest.pop(0)  # its value: not a second mistake
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
    wish = next((wish for wish in get_args(Wish) if wish in wishes and wish != "ephemeral"), "run")
    if wish == "run" and "ephemeral" in wishes:
        wish = "ephemeral"
        if formatter not in {"", "json"}:
            problems.append(f"--formatter must be json with --ephemeral, not {formatter!r}")
    elif formatter and wish != "print-settings":
        problems.append("--formatter goes with --print-settings or --ephemeral")
    elif formatter not in {"", "table", "json", "toml"}:
        problems.append(f"--formatter must be table, json or toml, not {formatter!r}")
    return _CommandLine(cast(Any, wish), cast(Any, formatter or "table"), config, values, problems)


def _read_file(named: str, known: Mapping[str, Setting], problems: list[str]) -> tuple[dict[str, object], str]:
    """Return the values of the TOML file by name, and the file's text for `sources`. ./amqpd.toml may be missing."""
    path = Path(named or "amqpd.toml")
    if not named and not file_exists(path, False):
        return {}, ""
    import tomllib

    try:
        with path.open("rb") as file:
            document = tomllib.load(file)
    except OSError as error:
        problems.append(f"{path}: {error.strerror}")
        return {}, ""
    except (ValueError, RecursionError) as error:
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
    environ: Mapping[str, str], known: Mapping[str, Setting], problems: list[str]
) -> dict[str, tuple[str, str]]:
    """Return setting's name -> (text, variable)."""
    variables = {row.variable: row for row in known.values()}
    found: dict[str, tuple[str, str]] = {}
    for row in known.values():
        if environ.get(row.environ_also):  # rabbit: an empty variable counts as not set
            found[row.name] = environ[row.environ_also], row.environ_also
    for variable, text in environ.items():
        if variable in variables:
            found[variables[variable].name] = text, variable
        elif (
            variable.startswith("AMQPD_")
            and variable not in NO_SETTING
            and not SERVICE_LINK.fullmatch(f"{variable}={text}")
        ):
            problems.append(f"environment: {_unknown(variable, list(variables))}")
    return found


def _disagreements(settings: Settings) -> list[str]:
    """Return contradictions between settings, and missing files, one line each."""
    amqp, http = settings.amqp, settings.http
    kafka = settings.kafka
    problems = [
        *_tls_disagreements(amqp.tls, "amqp", amqp.port),
        *_tls_disagreements(http.tls, "http", http.port),
        *_tls_disagreements(kafka.tls, "kafka", kafka.port),
    ]
    if "EXTERNAL" in settings.auth.mechanisms and not (amqp.tls.verify_peer or http.tls.verify_peer):
        problems.append("EXTERNAL in auth.mechanisms needs amqp.tls.verify_peer or http.tls.verify_peer")
    if amqp.port is None and amqp.tls.port is None:
        problems.append("amqp.port and amqp.tls.port are both off: no client could connect")
    given = {"load_definitions": settings.load_definitions, "definitions.local.path": settings.definitions.local.path}
    if None not in given.values():
        problems.append("load_definitions and definitions.local.path are the same setting; set only one")
    for name, path in given.items():
        if path is not None and (why := access_problem(path, f"there is no file or directory {path}")):
            problems.append(f"{name}: {why}")
    if settings.cluster != _NO_CLUSTER:
        problems += disagreements(settings.cluster, amqp.frame_max)
    alone = (
        ("kafka.port", kafka.is_on, "clients of a cluster's streams use Kafka itself"),
        ("metadata.url", settings.metadata.url, "the metadata of a cluster is in Kafka"),
        ("load_definitions", any(given.values()), "amqpctl import_definitions imports them at any node"),
    )
    problems += [
        f"{name} must not be set with cluster.kafka: {why}"
        for name, is_set, why in alone
        if settings.cluster.kafka and is_set
    ]
    return problems


def _tls_disagreements(tls: TlsSettings, section: str, plain_port: int | None) -> list[str]:
    name = f"{section}.tls"
    problems = []
    if tls.port is not None and (tls.certificate is None or tls.key is None):
        problems.append(f"{name}.port needs {name}.certificate and {name}.key")
    if tls.port is not None and tls.port == plain_port != 0:
        problems.append(f"{name}.port must not be {section}.port ({tls.port})")
    if tls.verify_peer and tls.ca is None:
        problems.append(f"{name}.verify_peer needs {name}.ca")
    if tls.fail_if_no_peer_certificate and not tls.verify_peer:
        problems.append(f"{name}.fail_if_no_peer_certificate needs {name}.verify_peer")
    for key, path in (("certificate", tls.certificate), ("key", tls.key), ("ca", tls.ca)):
        if path is not None and (why := access_problem(path, f"there is no file {path}", S_ISREG)):
            problems.append(f"{name}.{key}: {why}")
    return problems


SECRET_LENGTH_MIN: Final = 16
FRAME_MAX: Final = 512 << 10
_NEED: Final = "the package aiokafka is missing: pip install 'amqpd[cluster]'"


def disagreements(cluster: ClusterSettings, frame_max: int) -> list[str]:
    """Return contradictions in the settings of a cluster, one line each. Reads secrets and looks for files.

    `frame_max` is amqp.frame_max: the properties of a message are in one frame, and Kafka must accept them.
    """
    if not cluster.kafka:
        # A user who names a cluster without Kafka must not get a single node silently.
        named = (("name", cluster.name), ("secret", cluster.secret), ("secret_file", cluster.secret_file))
        return [f"cluster.{name} is given, but not cluster.kafka" for name, value in named if value]
    problems = [] if find_spec("aiokafka") is not None else [f"cluster.kafka is given, but {_NEED}"]
    if not cluster.name:
        problems.append("cluster.kafka needs cluster.name")
    problems += _wrong_text("cluster.secret", cluster.secret, cluster.secret_file, SECRET_LENGTH_MIN)
    if cluster.replication_factor < cluster.required_insync:
        problems.append(
            f"cluster.required_insync ({cluster.required_insync}) must not be more than cluster.replication_factor "
            f"({cluster.replication_factor})"
        )
    if frame_max > FRAME_MAX:
        problems.append(
            f"amqp.frame_max must be at most {FRAME_MAX} in a cluster, not {frame_max}: Kafka's topics have room for "
            "properties of that size"
        )
    if cluster.heartbeat_s * 3 > cluster.session_timeout_s:
        problems.append(
            f"cluster.heartbeat_s ({cluster.heartbeat_s:g}) must be at most a third of cluster.session_timeout_s "
            f"({cluster.session_timeout_s:g})"
        )
    return problems + _access_disagreements(cluster)


def _access_disagreements(cluster: ClusterSettings) -> list[str]:
    tls, sasl = cluster.tls, cluster.sasl
    problems = []
    files = (("ca", tls.ca), ("certificate", tls.certificate), ("key", tls.key))
    for name, path in files:
        if path is not None and not tls.enabled:
            problems.append(f"cluster.tls.{name} needs cluster.tls.enabled")
        elif path is not None and (why := access_problem(path, f"there is no file {path}", S_ISREG)):
            problems.append(f"cluster.tls.{name}: {why}")
    if tls.key is not None and tls.certificate is None:
        problems.append("cluster.tls.key needs cluster.tls.certificate")
    if not sasl.mechanism:
        given = (("user", sasl.user), ("password", sasl.password), ("password_file", sasl.password_file))
        return problems + [f"cluster.sasl.{name} needs cluster.sasl.mechanism" for name, value in given if value]
    if not sasl.user:
        problems.append("cluster.sasl.mechanism needs cluster.sasl.user")
    return problems + _wrong_text("cluster.sasl.password", sasl.password, sasl.password_file, 1)


def _wrong_text(name: str, text: str, file: Path | None, length_min: int) -> list[str]:
    """Return mistakes of a secret that is given in a setting or in a file."""
    if text and file is not None:
        return [f"{name} and {name}_file are the same setting; set only one"]
    if not text and file is None:
        return [f"cluster.kafka needs {name} or {name}_file" if length_min > 1 else f"{name} is missing"]
    try:
        found = secret_text(text, file)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8"
        return [f"{name}_file: {file}: {why}"]
    if len(found) < length_min:
        what = f"{name}_file: {file}" if file is not None else name
        return [f"{what}: {length_min} characters or more" if found else f"{what} is empty"]
    return []


def secret_text(text: str, file: Path | None) -> str:
    """Return the secret: `text`, or the content of `file` without the line end. Raises: OSError; ValueError."""
    return file.read_text("utf-8").strip("\r\n") if file is not None else text
