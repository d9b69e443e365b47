"""What is wrong with the settings of a cluster that are each within their bounds: imported where one of them is given.

A password or a secret may stand in a file of its own, one line, instead of the settings.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Final

from amqpd.config.paths import problem
from amqpd.config.schema import ClusterSettings

SECRET_LENGTH_MIN: Final = 16
FRAME_MAX: Final = 512 << 10
_NEED: Final = "the package aiokafka is missing: pip install 'amqpd[cluster]'"


def disagreements(cluster: ClusterSettings, frame_max: int) -> list[str]:
    """A line for each. Files that must be there are looked for, and secrets read. frame_max: of clients' frames, one of
    which holds a message's properties.
    """
    if not cluster.kafka:
        # Who has named a cluster and left out Kafka must not be given a node of its own without a word.
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
        elif path is not None and (why := problem(path.is_file, f"there is no file {path}")):
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
    """Of a setting that `name`_file may hold instead."""
    if text and file is not None:
        return [f"{name} and {name}_file are the same setting; give one of them"]
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
    """The secret: `text`, or what stands in `file`, without the end of its line. Raises: OSError; ValueError."""
    return file.read_text("utf-8").strip("\r\n") if file is not None else text
