"""Tests of kafka_rig that start no Kafka."""

from __future__ import annotations

import subprocess
from pathlib import Path

import kafka_hosts
import pytest
from kafka_rig import new_cluster_id


def test_cluster_id_never_begins_with_a_dash() -> None:
    """Otherwise Kafka's script takes 1 in 64 identifiers for an option and does not start."""
    made = [new_cluster_id() for _ in range(5000)]
    assert not [each for each in made if each.startswith("-")]
    assert all(len(each) == 22 for each in made)
    assert len(set(made)) == len(made)


def test_program_on_a_host_is_in_the_mount_namespace_of_the_tests() -> None:
    """Otherwise a disk that a test of power cuts unmounts would stay mounted there, and that test would wait."""
    if lacking := kafka_hosts.missing():
        pytest.skip(lacking)
    namespace = Path("/proc/self/ns/mnt")
    with kafka_hosts.Network(1, number=6) as network:
        command = [*network.hosts[0].prefix, "readlink", str(namespace)]
        there = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    assert there == f"{namespace.readlink()}"
