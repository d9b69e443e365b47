"""docs/deploy/cluster, three nodes over three Kafka brokers: checked by the schemas of compose and Kubernetes, and
against amqpd.
"""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from amqpd.cli.commands import COMMANDS
from amqpd.config import load, rows
from amqpd.config.rabbitmq_env import VARIABLES, WITH_FILE
from amqpd.kafka.admin import cluster_options
from amqpd.management.request import Role
from amqpd.management.routes import ROUTES

yaml = pytest.importorskip("yaml", reason="needs the extra `all-tests`, which make test-all installs")

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "docs" / "deploy" / "cluster"
COMPOSE = (DEPLOY / "compose.yaml").read_text("utf-8")
MANIFESTS = (DEPLOY / "kubernetes.yaml").read_text("utf-8")
OUR_VARIABLES = {row.variable for row in rows()} | {each.name for each in VARIABLES}
OUR_VARIABLES |= set(WITH_FILE) | {f"{each}_FILE" for each in WITH_FILE}
SECRET = "an old pond, a frog"


def ports_of(container: dict[str, Any]) -> dict[str, int]:
    return {port["name"]: port["containerPort"] for port in container["ports"]}


def variables_of(container: dict[str, Any]) -> dict[str, Any]:
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in container["env"]}


def check_kafka(environment: dict[str, str]) -> None:
    """Check that Kafka is as safe as amqpd requires by default."""
    assert environment["KAFKA_PROCESS_ROLES"] == "broker,controller"
    assert re.fullmatch(r"[A-Za-z0-9_-]{22}", environment["CLUSTER_ID"])
    assert (environment["KAFKA_DEFAULT_REPLICATION_FACTOR"], environment["KAFKA_MIN_INSYNC_REPLICAS"]) == ("3", "2")
    assert environment["KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR"] == "3"
    assert environment["KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR"] == "3"
    assert environment["KAFKA_AUTO_CREATE_TOPICS_ENABLE"] == "false"


def test_compose_file() -> None:
    compose = yaml.safe_load(COMPOSE)
    services = compose["services"]
    kafka_services = {name: each for name, each in services.items() if name.startswith("kafka")}
    node_services = {name: each for name, each in services.items() if name.startswith("amqpd")}
    assert (len(kafka_services), len(node_services), len(services)) == (3, 3, 6)
    for number, (name, service) in enumerate(kafka_services.items(), 1):
        environment = service["environment"]
        check_kafka(environment)
        assert environment["KAFKA_NODE_ID"] == str(number)
        assert f"{number}@{name}:9093" in environment["KAFKA_CONTROLLER_QUORUM_VOTERS"].split(",")
        assert environment["KAFKA_ADVERTISED_LISTENERS"] == f"PLAINTEXT://{name}:9092"
    for name, service in node_services.items():
        environment = service["environment"]
        assert set(environment) <= OUR_VARIABLES
        assert set(environment["AMQPD_CLUSTER__KAFKA"].split(",")) == {f"{each}:9092" for each in kafka_services}
        assert set(service["depends_on"]) == set(kafka_services)
        assert service["hostname"] == name  # the name that other nodes use
        context = (DEPLOY / service["build"]["context"]).resolve()
        assert (context, (context / service["build"]["dockerfile"]).is_file()) == (ROOT, True)
    assert {each["volumes"][0].split(":")[0] for each in services.values()} == set(compose["volumes"])
    published = [port for each in node_services.values() for port in each["ports"]]
    assert len({port.rsplit(":", 1)[0] for port in published}) == len(published)


def test_settings_of_compose_file_are_valid() -> None:
    environment = yaml.safe_load(COMPOSE)["services"]["amqpd-1"]["environment"]
    settings = {name: value for name, value in environment.items() if name.startswith("AMQPD_")}
    settings["AMQPD_CLUSTER__SECRET"] = SECRET
    options = cluster_options(load([], settings).settings.cluster)
    assert (options.cluster, len(options.access.kafka)) == ("shop", 3)


@pytest.mark.skipif(
    find_spec("check_jsonschema") is None, reason="needs the extra `all-tests`, which make test-all installs"
)
def test_compose_file_matches_its_schema() -> None:
    command = [sys.executable, "-P", "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    invalid = COMPOSE.replace("read_only: true", "read_only: [true]")
    for text, is_valid in ((COMPOSE, True), (invalid, False)):
        run = subprocess.run(
            [*command, "--default-filetype", "yaml", "-"], input=text, capture_output=True, text=True, timeout=60,
            check=False,
        )  # fmt: skip
        assert (run.returncode == 0) == is_valid, run.stdout + run.stderr


def test_manifests_are_consistent() -> None:
    found = {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(MANIFESTS)}
    kafka, amqpd = found["StatefulSet", "kafka"]["spec"], found["StatefulSet", "amqpd"]["spec"]
    for spec in (kafka, amqpd):
        labels = spec["template"]["metadata"]["labels"]
        service = found["Service", spec["serviceName"]]["spec"]
        assert spec["selector"]["matchLabels"] == service["selector"] == labels
        assert (spec["replicas"], service["clusterIP"]) == (3, "None")
        (container,) = spec["template"]["spec"]["containers"]
        assert {port["targetPort"] for port in service["ports"]} <= set(ports_of(container))
        volumes = {each["name"] for each in spec["template"]["spec"].get("volumes", [])}
        volumes |= {claim["metadata"]["name"] for claim in spec["volumeClaimTemplates"]}
        assert {mount["name"] for mount in container["volumeMounts"]} == volumes
        assert spec["template"]["spec"]["securityContext"]["runAsNonRoot"] is True
    (broker,) = kafka["template"]["spec"]["containers"]
    check_kafka(variables_of(broker))
    voters = variables_of(broker)["KAFKA_CONTROLLER_QUORUM_VOTERS"].split(",")
    assert voters == [f"{number + 1}@kafka-{number}.kafka:9093" for number in range(3)]
    config = found["ConfigMap", "amqpd-cluster"]["data"]
    assert config["kafka"] == ",".join(f"kafka-{number}.kafka:9092" for number in range(3))
    check_node(amqpd, found)


def check_node(spec: dict[str, Any], found: dict[tuple[str, str], Any]) -> None:
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    ports = ports_of(container)
    assert ports == {"amqp": 5672, "http": 15672, "prometheus": 15692, "cluster": 25672}
    budget = found["PodDisruptionBudget", "amqpd"]["spec"]
    assert (budget["maxUnavailable"], budget["selector"]["matchLabels"]) == (1, spec["selector"]["matchLabels"])
    public = {f"/{route.path}" for route in ROUTES if route.method == "GET" and route.role is Role.PUBLIC}
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["path"] in public
        assert container[probe]["httpGet"]["port"] in ports
    command = container["lifecycle"]["preStop"]["exec"]["command"]
    assert (command[0], command[2] in COMMANDS) == ("amqpctl", True)
    assert int(command[-1]) < pod["terminationGracePeriodSeconds"]
    variables = variables_of(container)
    assert set(variables) <= OUR_VARIABLES
    config = found["ConfigMap", "amqpd-cluster"]["data"]
    environ = {
        "AMQPD_CLUSTER__NODE": "amqpd-0",
        "AMQPD_CLUSTER__ADDRESS": variables["AMQPD_CLUSTER__ADDRESS"].replace("$(AMQPD_CLUSTER__NODE)", "amqpd-0"),
        "AMQPD_CLUSTER__KAFKA": config[variables["AMQPD_CLUSTER__KAFKA"]["configMapKeyRef"]["key"]],
        "AMQPD_CLUSTER__NAME": config[variables["AMQPD_CLUSTER__NAME"]["configMapKeyRef"]["key"]],
        "AMQPD_CLUSTER__SECRET": SECRET,
    }
    options = cluster_options(load([], environ).settings.cluster)
    assert (options.node, options.address) == ("amqpd-0", ("amqpd-0.amqpd-nodes", ports["cluster"]))
    assert options.listen == ("", ports["cluster"])


def test_manifests_match_their_schemas() -> None:
    """Kubernetes' own schemas, of the oldest version that the validator has and of the newest."""
    validator = pytest.importorskip("kubernetes_validate")
    for version in ("1.25", validator.latest_version()):
        for manifest in yaml.safe_load_all(MANIFESTS):
            validator.validate(manifest, version, strict=True)
