"""Texts of `amqpd --help`, `--print-settings` and `--check-config`, made from the rows of the schema.

Imported only for these options.
"""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path
from typing import Any, Final

from amqpd._build import describe
from amqpd.config.loader import LoadedSettings
from amqpd.config.schema import rows, value_of

MASK: Final = "********"
WIDTH: Final = 100

HEAD: Final = """\
{what}: an AMQP 0-9-1 broker whose queues are logs in Kafka's format.

usage: amqpd [--config FILE] [--SETTING VALUE]...       start the broker
       amqpd --ephemeral [--formatter json]             a broker for tests: prints its URLs, ends with its parent
       amqpd --print-settings [--formatter table|json|toml]  show every setting with its value and source
       amqpd --check-config [--config FILE]             check the settings; exit code 64 if they cannot be used
       amqpd --version
       amqpd --help

Start it, and connect a client to amqp://guest:guest@127.0.0.1/ . When amqpd accepts connections, it prints a line
with the ports. SIGTERM or Ctrl-C stops it cleanly. amqpctl controls a running broker.

A setting can be given in three places; later ones override earlier ones:
  the file      [amqp] port = 5672       TOML; --config FILE, else AMQPD_CONFIG, else ./amqpd.toml if it exists
                                         FILE.conf and RABBITMQ_CONFIG_FILE: RabbitMQ's format
  environment   AMQPD_AMQP__PORT=5672    a dot is two underscores
  command line  --amqp.port 5672

settings (and their defaults):
"""


def shown(value: object) -> str:
    """Return a value as a user writes it on the command line."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(str(part) for part in value)
    if isinstance(value, Path) and not value.is_absolute():
        return f"./{value}"
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)


def masked(name: str, value: str) -> str:
    """Return a secret with its password hidden: a whole password, or the passwords in a URL and its query."""
    if name.endswith(".url"):
        value = re.sub(r"(://[^:/@]*:).*@", rf"\1{MASK}@", value)
        return re.sub(r"([?&][^=&]*passw[^=&]*=)[^&]+", rf"\1{MASK}", value, flags=re.IGNORECASE)
    return MASK if value else value


def help_text() -> str:
    """Return the text of `--help`."""
    parts = [HEAD.format(what=describe())]
    for row in rows():
        default = "" if row.default is None else shown(row.default)
        parts.append(f"  {row.option} {row.kind.word}" + (f"  ({default})" if default else ""))
        also = f" Also {row.environ_also}." if row.environ_also else ""
        indent = " " * 6
        parts.append(textwrap.fill(row.doc + also, WIDTH, initial_indent=indent, subsequent_indent=indent))
    return "\n".join(parts)


def check_text(loaded: LoadedSettings) -> str:
    """Return notes and all settings that are not the default, for settings that can be used."""
    given = [row for row in rows() if loaded.sources[row.name] != "default"]
    lines = [f"note: {note}" for note in loaded.notes]
    for row in given:
        value = shown(value_of(loaded.settings, row.name))
        lines.append(f"{row.name} = {masked(row.name, value) if row.secret else value}  ({loaded.sources[row.name]})")
    return "\n".join([*lines, "the settings can be used"])


def toml_text(loaded: LoadedSettings) -> str:
    """Return an `amqpd.toml` with all settings. Defaults and secrets are commented out."""
    lines = ["# Every setting of amqpd; a commented line shows the default. The environment and the command line",
             "# override this file. Made by `amqpd --print-settings --formatter toml`."]  # fmt: skip
    section = ""
    for row in rows():
        folder, _, name = row.name.rpartition(".")
        if folder != section:
            section = folder
            lines += ["", f"[{folder}]"]
        value = value_of(loaded.settings, row.name)
        off = "# " if row.secret or loaded.sources[row.name] == "default" else ""
        lines.append("")
        lines += textwrap.wrap(row.doc, WIDTH, initial_indent="# ", subsequent_indent="# ")
        if value is None and row.kind.word.endswith("off"):
            value = "off"
        shown_value = _toml_value(masked(row.name, value) if row.secret else value)
        lines.append(f"{off}{name} = {shown_value}")
    return "\n".join(lines)


def _toml_value(value: object) -> str:
    if isinstance(value, bool | int):
        return shown(value)
    if isinstance(value, float):
        return str(value)
    if isinstance(value, tuple):
        return json.dumps(list(value))
    return json.dumps(shown(value), ensure_ascii=False)


def settings_text(loaded: LoadedSettings) -> str:
    """Return name, value and source of every setting as a table, as JSON with typed values, or as TOML."""
    if loaded.formatter == "toml":
        return toml_text(loaded)
    lines: list[tuple[str, str, str]] = []
    objects: list[dict[str, Any]] = []
    for row in rows():
        value = value_of(loaded.settings, row.name)
        source = loaded.sources[row.name]
        if row.secret:
            value = masked(row.name, value)
        plain = list(value) if isinstance(value, tuple) else value
        if not isinstance(plain, list | int | float | None):
            plain = shown(plain)
        objects.append({"name": row.name, "value": plain, "source": source})
        lines.append((row.name, shown(value), source))
    if loaded.formatter == "json":
        return json.dumps(objects, indent=2)
    lines.insert(0, ("name", "value", "source"))
    name_width, value_width = (max(len(line[column]) for line in lines) for column in (0, 1))
    return "\n".join(f"{name:{name_width}}  {value:{value_width}}  {source}" for name, value, source in lines)
