"""docs/deploy: each file checked by its own tool where it is installed, and against amqpd."""

from __future__ import annotations

import json
import os
import re
import shutil
import site
import subprocess
import sys
import tempfile
import tomllib
import urllib.request
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pika
import pytest

from amqpd.cli.commands import COMMANDS
from amqpd.config import Settings, load, rows
from amqpd.config.rabbitmq_env import VARIABLES, WITH_FILE
from amqpd.management.request import Role
from amqpd.management.routes import ROUTES
from amqpd.testing import BrokerProcess

yaml = pytest.importorskip("yaml", reason="needs the extra `all-tests`, which make test-all installs")

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "docs" / "deploy"
INSTRUCTIONS = {
    "ARG", "FROM", "RUN", "WORKDIR", "COPY", "ENV", "USER", "VOLUME", "EXPOSE", "HEALTHCHECK", "ENTRYPOINT",
}  # fmt: skip
COMPOSE = (DEPLOY / "compose.yaml").read_text("utf-8")
OUR_VARIABLES = {each.name for each in VARIABLES} | set(WITH_FILE) | {row.variable for row in rows()}


# -- amqpd.toml --------------------------------------------------------------------------------------------------------


def test_sample_settings_are_current() -> None:
    """After a change of a setting: amqpd --print-settings --formatter toml > docs/deploy/amqpd.toml"""
    command = [sys.executable, "-P", "-m", "amqpd", "--print-settings", "--formatter", "toml"]
    environment = {**_clean(), "PYTHONPATH": str(ROOT)}
    run = subprocess.run(command, cwd="/", env=environment, capture_output=True, text=True, check=True, timeout=60)
    assert (DEPLOY / "amqpd.toml").read_text("utf-8") == run.stdout


def test_uncommented_sample_equals_defaults(tmp_path: Path) -> None:
    text = (DEPLOY / "amqpd.toml").read_text("utf-8")
    assert load(["--config", str(DEPLOY / "amqpd.toml")], {}).settings == Settings()
    uncommented = re.sub(r"^# (?=[a-z_]+ = )", "", text, flags=re.MULTILINE).replace("********", "guest")
    assert len(list(_leaves(tomllib.loads(uncommented)))) == len(rows())
    (tmp_path / "all.toml").write_text(uncommented)
    assert load(["--config", str(tmp_path / "all.toml")], {}).settings == Settings()


def _leaves(table: dict[str, Any]) -> list[Any]:
    return [leaf for value in table.values() for leaf in (_leaves(value) if isinstance(value, dict) else [value])]


# -- Dockerfile --------------------------------------------------------------------------------------------------------


def steps() -> list[list[tuple[str, str]]]:
    """Return (instruction, rest of the line) for each stage, with continued lines joined."""
    text = re.sub(r"^#.*\n", "", (DEPLOY / "Dockerfile").read_text("utf-8"), flags=re.MULTILINE)
    stages: list[list[tuple[str, str]]] = [[]]
    for line in re.sub(r"\\\n", " ", text).split("\n"):
        if line.strip():
            word, _, rest = line.partition(" ")
            if word == "FROM":
                stages.append([])
            stages[-1].append((word, " ".join(rest.split())))
    return stages


def test_dockerfile() -> None:
    before, build, image = steps()
    assert {word for stage in (before, build, image) for word, _ in stage} <= INSTRUCTIONS
    instructions = dict(image)
    assert instructions["USER"] not in {"root", "0"}
    assert instructions["VOLUME"] == "/var/lib/rabbitmq"
    assert instructions["EXPOSE"].split() == ["5671", "5672", "15672", "15692", "25672"]
    assert "pip" not in str(image)  # the image has neither compiler nor sources
    for word, rest in [*build, *image]:
        if word == "COPY" and not rest.startswith("--from"):
            assert [name for name in rest.split()[:-1] if not (ROOT / name).exists()] == []
    included = {line[1:] for line in (DEPLOY / "Dockerfile.dockerignore").read_text("ascii").split() if line[0] == "!"}
    copied = {name for word, rest in build if word == "COPY" for name in rest.split()[:-1]}
    assert copied | {"docs/deploy"} == included


class Image(NamedTuple):
    """The result of the Dockerfile's steps, in a directory instead of a container. variables: its ENV."""

    root: Path
    program: str
    path: str
    data_dir: Path
    variables: dict[str, str]


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    """Run all steps except those with apt and useradd; nothing is downloaded or compiled. Other users may read the
    result.
    """
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield _make_image(Path(folder))


def _make_image(root: Path) -> Image:
    (root / "bin").mkdir()
    (root / "bin" / "python").symlink_to(sys.executable)
    libraries = os.pathsep.join([*site.getsitepackages(), *(path for path in sys.path if path.endswith("-packages"))])
    environment = {
        **_clean(),
        "PATH": f"{root / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": libraries,
        "PIP_NO_DEPS": "1",
        "PIP_NO_BUILD_ISOLATION": "0",  # for pip, 0 means no build isolation
        "PIP_NO_INDEX": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "AMQPD_INTERPRETED": "1",
    }

    def in_root(text: str) -> str:
        return re.sub(r"(?<![\w.])/(?=(opt|src|etc|var)\b)", f"{root}/", text)

    folder, variables = root, dict[str, str]()
    _, build, image = steps()
    for word, rest in [*build, *image]:
        if word == "WORKDIR":
            folder = Path(in_root(rest))
            folder.mkdir(parents=True, exist_ok=True)
        elif word == "COPY" and not rest.startswith("--from"):
            _copy(rest.split()[:-1], folder / in_root(rest.split()[-1]))
        elif word == "RUN" and "apt-get" not in rest and "useradd" not in rest:
            subprocess.run(["/bin/sh", "-ec", in_root(rest)], cwd=folder, env=environment, check=True, timeout=300)
        elif word == "ENV":
            variables.update(pair.split("=", 1) for pair in in_root(rest).split())
    assert set(variables) - OUR_VARIABLES == {"PATH", "PYTHONUNBUFFERED"}
    path = variables.pop("PATH")
    program = shutil.which("amqpd", path=path)
    assert program == str(root / "opt/amqpd/bin/amqpd")
    return Image(root, program, path, Path(variables.pop("AMQPD_DATA_DIR")), {**variables, "PYTHONPATH": libraries})


@pytest.mark.slow
def test_image_runs_like_rabbitmqs_image(image: Image) -> None:
    """The broker starts with the image's variables, passes its health check, accepts guest, and has metrics."""
    command = [image.program, "--print-settings", "--formatter", "json"]
    run = subprocess.run(
        command, env={**_clean(), **image.variables}, cwd="/", capture_output=True, text=True, check=True, timeout=60
    )
    settings = {each["name"]: each["value"] for each in json.loads(run.stdout)}
    assert (settings["metrics.port"], settings["metrics.host"], settings["http.host"]) == (15692, "0.0.0.0", "0.0.0.0")
    free = {"amqp.host": "", "metrics.port": 0}
    with BrokerProcess(image.data_dir, env=image.variables, command=[image.program], settings=free) as broker:
        _is_healthy(image)
        assert broker.api("GET", "/api/amqpd/loopback_users") == {"value": []}
        assert (image.root / "opt/amqpd/bin/rabbitmqctl").exists()
        listeners = broker.api("GET", "/api/overview")["listeners"]
        (port,) = [each["port"] for each in listeners if each["protocol"] == "http/prometheus"]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            assert b"rabbitmq_identity_info{" in answer.read()


@pytest.mark.slow
def test_image_runs_as_unprivileged_user(image: Image, tmp_path: Path) -> None:
    """Run as uid 999 without capabilities, with only the volume writable, like the compose file and the manifests."""
    drop = ["setpriv", "--reuid=999", "--regid=999", "--clear-groups", "--no-new-privs", "--bounding-set=-all"]
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        pytest.skip("becoming another user takes root, and setpriv")
    environment = {**_clean(), **image.variables}
    process = subprocess.run(
        [*drop, image.program, "--version"], env=environment, cwd="/", capture_output=True, text=True, check=False
    )
    if process.returncode:
        pytest.skip(f"other users cannot read this environment: {process.stderr.strip().splitlines()[-1:]}")
    data_dir = image.root / "volume" / "amqpd"
    data_dir.parent.mkdir()
    os.chown(data_dir.parent, 999, 999)
    free = {"amqp.host": "127.0.0.1", "metrics.port": 0}
    with BrokerProcess(data_dir, env=image.variables, command=[*drop, image.program], settings=free) as broker:
        status = Path(f"/proc/{broker.pid}/status").read_text("ascii")
        assert re.search(r"^Uid:\s+999\s+999\s", status, re.MULTILINE)
        assert re.search(r"^CapEff:\s+0+$", status, re.MULTILINE)
        parameters = pika.ConnectionParameters("127.0.0.1", broker.amqp_port, socket_timeout=60)
        connection = pika.BlockingConnection(parameters)
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("kept", durable=True)
        channel.basic_publish("", "kept", b"x", pika.BasicProperties(delivery_mode=2))
        assert channel.basic_get("kept", auto_ack=True)[2] == b"x"
        connection.close()
        _is_healthy(image._replace(data_dir=data_dir), drop)
    assert {path.stat().st_uid for path in data_dir.rglob("*")} == {999}


def _is_healthy(image: Image, prefix: Sequence[str] = ()) -> None:
    """Run the image's own health check."""
    check = re.fullmatch(r'.* CMD \["(.*)"\]', dict(steps()[-1])["HEALTHCHECK"])
    assert check is not None
    path = f"{image.path}:{os.environ['PATH']}"
    health = {**_clean(), **image.variables, "PATH": path, "AMQPD_DATA_DIR": str(image.data_dir)}
    subprocess.run([*prefix, *check[1].split('", "')], env=health, check=True, timeout=60)


def _copy(names: list[str], target: Path) -> None:
    for name in names:
        source = ROOT / name
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.so")
            shutil.copytree(source, target, symlinks=True, ignore=ignored, dirs_exist_ok=True)
        else:
            destination = target if target.name == source.name else target / source.name
            destination.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, destination)


def _clean() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("AMQPD_", "RABBITMQ_", "PYTHON"))}


# -- compose -----------------------------------------------------------------------------------------------------------


def test_compose_file() -> None:
    compose = yaml.safe_load(COMPOSE)
    assert set(compose) == {"services", "volumes"}
    (service,) = compose["services"].values()
    assert set(service["environment"]) <= OUR_VARIABLES
    assert {volume.split(":")[0] for volume in service["volumes"]} == set(compose["volumes"])
    context = (DEPLOY / service["build"]["context"]).resolve()
    assert (context, (context / service["build"]["dockerfile"]).is_file()) == (ROOT, True)
    assert dict(steps()[-1])["VOLUME"] == service["volumes"][0].split(":")[1]


@pytest.mark.parametrize("name", ["compose.yaml", "cluster/compose.yaml"])
def test_compose_files_need_a_password_and_listen_on_loopback(name: str) -> None:
    compose = yaml.safe_load((DEPLOY / name).read_text("utf-8"))
    nodes = [service for service in compose["services"].values() if service["image"] == "amqpd"]
    for service in nodes:
        secrets = {each: value for each, value in service["environment"].items() if re.search("PASS|SECRET", each)}
        assert secrets and all(re.fullmatch(r"\$\{[A-Z_]+:\?[^}]+\}", value) for value in secrets.values()), secrets
        assert all(re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port) for port in service["ports"])
        environment = service["environment"] | dict.fromkeys(secrets, "a password made just now, long enough")
        settings = load([], environment).settings
        assert (settings.default.user, settings.default.password) == ("app", "a password made just now, long enough")
    tracked_files = subprocess.run(
        ["git", "ls-files", "."], cwd=DEPLOY, capture_output=True, text=True, check=False
    ).stdout
    assert [each for each in tracked_files.split() if each.endswith((".txt", ".env"))] == []


def test_compose_file_is_valid_for_docker() -> None:
    """Compose's own schema; needs the program and no daemon."""
    docker = ["docker", "compose"]
    if not shutil.which("docker") or subprocess.run([*docker, "version"], check=False, capture_output=True).returncode:
        pytest.skip("docker compose is not installed")
    command = [*docker, "-f", str(DEPLOY / "compose.yaml"), "config", "--quiet"]
    for environment, code in ((os.environ | {"DEFAULT_PASSWORD": "made just now"}, 0), (os.environ, 1)):
        run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert (run.returncode > 0, "DEFAULT_PASSWORD" in run.stderr) == (code > 0, code > 0), run.stderr


# -- systemd -----------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(
    find_spec("check_jsonschema") is None, reason="needs the extra `all-tests`, which make test-all installs"
)
def test_compose_file_matches_its_schema() -> None:
    """The schema of compose-spec that check-jsonschema includes."""
    command = [sys.executable, "-P", "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    for text, problem in ((COMPOSE, ""), (COMPOSE.replace("read_only: true", "read_only: [true]"), "read_only")):
        run = subprocess.run(
            [*command, "--default-filetype", "yaml", "-"], input=text, capture_output=True, text=True, timeout=60,
            check=False,
        )  # fmt: skip
        assert (run.returncode == 0, problem in run.stdout + run.stderr) == (not problem, True), run.stdout


def test_systemd_unit_matches_the_program() -> None:
    text = (DEPLOY / "amqpd.service").read_text("utf-8")
    pairs = [line.split("=", 1) for line in text.split("\n") if "=" in line and not line.startswith("#")]
    unit = dict(pairs)
    assert len(unit) == len(pairs)  # no key is repeated
    assert (unit["Type"], unit["ExecReload"], unit["RestartPreventExitStatus"]) == (
        "notify", "/bin/kill -HUP $MAINPID", "64",
    )  # fmt: skip
    assert unit["Environment"].split("=")[0] in OUR_VARIABLES
    assert "Documentation" not in unit  # the wheel installs no documentation


def test_systemd_unit_is_valid(tmp_path: Path) -> None:
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is not installed")
    unit = tmp_path / "amqpd.service"
    text = (DEPLOY / "amqpd.service").read_text("utf-8").replace("=/opt/amqpd/bin/amqpd", "=/bin/true")
    unit.write_text(text.replace("User=amqpd", "User=root").replace("Group=amqpd", "Group=root"))
    command = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(unit)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert [line for line in run.stderr.split("\n") if "amqpd.service" in line] == []
    assert run.returncode == 0


# -- Kubernetes --------------------------------------------------------------------------------------------------------


def test_manifests_are_consistent(tmp_path: Path) -> None:
    config, service, stateful = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text("utf-8"))
    assert [each["apiVersion"] + " " + each["kind"] for each in (config, service, stateful)] == [
        "v1 ConfigMap", "v1 Service", "apps/v1 StatefulSet",
    ]  # fmt: skip
    spec = stateful["spec"]
    pod, labels = spec["template"]["spec"], spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"] == service["spec"]["selector"] == labels
    assert (spec["serviceName"], spec["replicas"]) == (service["metadata"]["name"], 1)
    (container,) = pod["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"amqp": 5672, "http": 15672, "prometheus": 15692}
    annotations = spec["template"]["metadata"]["annotations"]
    assert annotations == {"prometheus.io/scrape": "true", "prometheus.io/port": str(ports["prometheus"])}
    assert {port["targetPort"]: port["port"] for port in service["spec"]["ports"]} == ports
    public = {f"/{route.path}" for route in ROUTES if route.method == "GET" and route.role is Role.PUBLIC}
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["path"] in public
        assert container[probe]["httpGet"]["port"] in ports
    assert container["livenessProbe"]["httpGet"]["path"] != container["readinessProbe"]["httpGet"]["path"]
    command = container["lifecycle"]["preStop"]["exec"]["command"]
    assert command[0] == "amqpctl"
    assert command[2] in COMMANDS
    assert int(command[-1]) < pod["terminationGracePeriodSeconds"]
    assert {each["name"] for each in container["env"]} <= OUR_VARIABLES
    volumes = {each["name"] for each in pod["volumes"]}
    volumes |= {claim["metadata"]["name"] for claim in spec["volumeClaimTemplates"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    assert pod["securityContext"]["runAsNonRoot"] is True
    mount = next(each for each in container["volumeMounts"] if each["name"] == "config")
    assert pod["volumes"][0]["configMap"]["name"] == config["metadata"]["name"]
    (tmp_path / "mine.conf").write_text(config["data"][mount["subPath"]])
    assert list(load(["--config", str(tmp_path / "mine.conf")], {}).notes) == []


def test_manifests_match_their_schemas() -> None:
    """Kubernetes' own schemas, of the oldest version that the validator has and of the newest."""
    validator = pytest.importorskip("kubernetes_validate")
    manifests = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text("utf-8")))
    versions = ["1.25", validator.latest_version()]
    for version in versions:
        for manifest in manifests:
            validator.validate(manifest, version, strict=True)
    manifests[2]["spec"]["template"]["spec"]["containers"][0]["livenessProbe"]["httpget"] = {}
    with pytest.raises(validator.ValidationError):
        validator.validate(manifests[2], versions[-1], strict=True)
