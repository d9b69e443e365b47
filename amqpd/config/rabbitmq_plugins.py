"""Which plugins RabbitMQ would have enabled: `enabled_plugins` beside `rabbitmq.conf`, `RABBITMQ_ENABLED_PLUGINS`.

The file has one Erlang list, `[rabbitmq_management,rabbitmq_prometheus].`; RABBITMQ_ENABLED_PLUGINS_FILE names another
one, RABBITMQ_ENABLED_PLUGINS has the names themselves, with commas, and counts more. What amqpd has of them is part of
it, always; only metrics get a listener of their own by `rabbitmq_prometheus`, as there. One that it does not have is
told.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from amqpd.config.paths import there

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
    """Names -> where each is said. folder: of `rabbitmq.conf`. notes: gets a line for each that amqpd does not have."""
    if text := environ.get(NAMES, ""):
        place = f"environment {NAMES}"
    else:
        path = Path(named) if (named := environ.get(FILE, "")) else folder and folder / "enabled_plugins"
        if path is None or not there(path.is_file, True):
            return {}
        place = f"file {path}"
        try:
            text = re.sub("%.*", "", path.read_text("utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            notes.append(f"{path}: cannot be read, no plugin counts: {error}")
            return {}
    found = dict.fromkeys(_NAME.findall(text), place)
    for name in sorted(found.keys() - PART_OF_IT):
        notes.append(f"{place.removeprefix('file ')}: {name} changes nothing: amqpd has no such plugin")
    return found
