"""Features that a cluster node refuses, with the reason. The broker of these tests has no replicated log."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from amqpd.broker.queue import arguments as queue_arguments
from amqpd.broker.vhost import cluster_checks, policies
from amqpd.broker.vhost.cluster_checks import REFUSED
from amqpd.broker.vhost.declaration import ExchangeDeclaration, QueueDeclaration
from amqpd.broker.vhost.policy_table import InvalidPolicy
from amqpd.broker.vhost.policy_table import keys as policy_keys
from amqpd.cluster.peer_link import NAME
from amqpd.errors import PreconditionFailed
from amqpd.management import log_files
from amqpd.management.node_admin import NotOurs, copy_metadata
from amqpd.management.request import ResourceNotFound
from amqpd.storage.export.files import DirectorySource, SourceError

KINDS = {
    "argument": "queue argument",
    "policy": "policy key",
    "exchange": "exchange type",
    "header": "message header",
    "command": "command",
}


def test_manual_lists_all_refused_features() -> None:
    page = (Path(__file__).parents[2] / "docs" / "cluster.md").read_text("utf-8")
    table = page[page.index("| refused | why |") :].split("\n\n")[0].splitlines()[2:]
    assert table == [f"| {KINDS[each.kind]} `{each.name}` | {each.why} |" for each in REFUSED]


def queue(**arguments: Any) -> QueueDeclaration:
    fields = {"name": "q", "durable": True, "auto_delete": False, "exclusive": False}
    return QueueDeclaration(**fields, arguments={name.replace("_", "-"): each for name, each in arguments.items()})  # type: ignore[arg-type]


def test_each_refused_feature_exists() -> None:
    names = {each.name for each in REFUSED if each.kind == "argument"}
    keys = {each.name for each in REFUSED if each.kind == "policy"}
    assert names <= queue_arguments.ROWS.keys()
    assert keys <= policy_keys().keys()
    assert {key.name for name in names if (key := queue_arguments.ROWS[name].policy) is not None} == keys


@pytest.mark.parametrize("arguments", [{"x_retain": "1D"}, {"x_export": "lake"}, {"x_compact": True}])
def test_queue_arguments_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(PreconditionFailed, match=r"invalid arg 'x-.*' for queue 'q' in vhost '/': not in a cluster: "):
        cluster_checks.check_queue("/", queue(**arguments))


def test_argument_without_effect_is_accepted() -> None:
    cluster_checks.check_queue("/", queue(x_compact=False, x_max_length=3))
    assert cluster_checks.policy_faults({"cleanup-policy": "delete", "max-length": 3}) == []


def test_delayed_message_exchange_is_refused() -> None:
    declaration = ExchangeDeclaration("later", "x-delayed-message", True, False, False, {"x-delayed-type": "fanout"})
    with pytest.raises(PreconditionFailed, match="not in a cluster: delayed messages wait"):
        cluster_checks.check_exchange("/", declaration)
    cluster_checks.check_exchange("/", declaration._replace(kind="fanout"))


def test_policy_keys_are_refused() -> None:
    vhost: Any = SimpleNamespace(name="/", catalogue=SimpleNamespace(storage=SimpleNamespace(replicates=True)))
    names: Any = SimpleNamespace(vhost=vhost)
    value = {"pattern": ".", "priority": 0, "definition": {"retain": "1D", "cleanup-policy": "compact"}}
    with pytest.raises(InvalidPolicy) as refused:
        policies.declare(names, "p", value)
    assert str(refused.value) == (
        "Validation failed\n\nretain is not possible in a cluster: settled messages are not kept in Kafka\n"
        "cleanup-policy is not possible in a cluster: a vhost's topic in Kafka is not compacted\n"
    )


@pytest.mark.parametrize("handler", [log_files.get_log, log_files.get_log_file, log_files.get_exports])
async def test_cache_of_a_log_is_not_exported(handler: Any) -> None:
    """Exports and `sql` would take the cache for the log, and find no messages in it."""
    queue = SimpleNamespace(name="q", vhost_name="/", durable=True, store=SimpleNamespace(local=False))
    params = {"queue": "q", "file": "queue.json"}
    call: Any = SimpleNamespace(permitted_queue=lambda _: queue, params=params, query={}, headers={})
    with pytest.raises(ResourceNotFound, match="queue 'q' in vhost '/' is in a cluster: its log is in Kafka"):
        await handler(call)


async def test_backup_is_refused_with_the_reason() -> None:
    call: Any = SimpleNamespace(broker=SimpleNamespace(storage=SimpleNamespace(replicates=True)))
    with pytest.raises(NotOurs, match="in Kafka, with copies: use export_definitions"):
        await copy_metadata(call)


def test_data_directory_of_a_node_is_not_exported(tmp_path: Path) -> None:
    (tmp_path / NAME).touch()
    with pytest.raises(SourceError, match="belongs to a node of a cluster: its queues are in Kafka"):
        DirectorySource(str(tmp_path)).queues("/")
