"""The contents of a cluster's `meta` topic, read with kafka-python: slot owners, without asking a node."""

from __future__ import annotations

import json
import warnings
from typing import Any

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python uses importlib.resources.read_text
    from kafka import KafkaConsumer, TopicPartition


class Meta:
    """The records of one cluster. Each query reads new records first. Must be closed."""

    def __init__(self, bootstrap: str, cluster: str) -> None:
        self.topic = f"amqpd.{cluster}.meta"
        self.rows: dict[tuple[int, str], Any] = {}  # (partition, key as JSON) -> value
        self._consumer = KafkaConsumer(
            bootstrap_servers=bootstrap.split(","), enable_auto_commit=False, auto_offset_reset="earliest"
        )
        self._assigned = False

    def close(self) -> None:
        self._consumer.close()

    def read(self) -> None:
        """Read all records up to now."""
        consumer = self._consumer
        if not self._assigned:
            found = consumer.partitions_for_topic(self.topic) or set()
            if not found:
                return
            consumer.assign([TopicPartition(self.topic, each) for each in sorted(found)])
            consumer.seek_to_beginning()
            self._assigned = True
        ends = consumer.end_offsets(list(consumer.assignment()))
        while any(consumer.position(place) < end for place, end in ends.items()):
            for place, records in consumer.poll(timeout_ms=200).items():
                for record in records:
                    if record.key is not None:
                        key = record.key.decode("utf-8", "replace")
                        self.rows[place.partition, key] = None if record.value is None else json.loads(record.value)

    def slot_of(self, vhost: str) -> int | None:
        """Return the slot, or None if it has none yet."""
        self.read()
        for (partition, key), value in self.rows.items():
            if partition == 0 and value is not None and _same(key, ["vhost-slot", vhost]):
                return next(each for each in value.values() if isinstance(each, int))
        return None

    def owner_of(self, vhost: str) -> str | None:
        """Return the node that announced last that it serves the vhost, or None."""
        slot = self.slot_of(vhost)
        for (partition, key), value in self.rows.items():
            if partition == slot and value is not None and _same(key, ["owner", slot]):
                return str(value["node"])
        return None

    def vhosts(self) -> dict[str, str]:
        """Map each served vhost to the node that announced last that it serves it."""
        owners = self.owners()
        found = {}
        for (partition, key), value in self.rows.items():
            named = _parsed(key)
            if partition == 0 and value is not None and isinstance(named, list) and named[:1] == ["vhost-slot"]:
                slot = next(each for each in value.values() if isinstance(each, int))
                if slot in owners:
                    found[named[1]] = owners[slot]
        return found

    def owners(self) -> dict[int, str]:
        """Map each slot to the node that announced it last."""
        self.read()
        return {
            partition: value["node"]
            for (partition, key), value in self.rows.items()
            if value is not None and _same(key, ["owner", partition])
        }


def _same(key: str, wanted: list[Any]) -> bool:
    return bool(_parsed(key) == wanted)


def _parsed(key: str) -> Any:
    try:
        return json.loads(key)
    except ValueError:
        return None  # a barrier's key
