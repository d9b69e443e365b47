"""What starts Kafka for the tests, without starting one."""

from __future__ import annotations

from kafka_rig import new_cluster_id


def test_no_cluster_id_looks_like_an_option() -> None:
    """One of 64 did, and that Kafka did not start."""
    made = [new_cluster_id() for _ in range(5000)]
    assert not [each for each in made if each.startswith("-")]
    assert all(len(each) == 22 for each in made)
    assert len(set(made)) == len(made)
