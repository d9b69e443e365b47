"""Tests of kafka_rig that start no Kafka."""

from __future__ import annotations

from kafka_rig import new_cluster_id


def test_cluster_id_never_begins_with_a_dash() -> None:
    """Otherwise Kafka's script takes 1 in 64 identifiers for an option and does not start."""
    made = [new_cluster_id() for _ in range(5000)]
    assert not [each for each in made if each.startswith("-")]
    assert all(len(each) == 22 for each in made)
    assert len(set(made)) == len(made)
