"""Settings: sources and their precedence, refused values with helpful errors, and listings."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

import amqpd
from amqpd import __main__ as program
from amqpd import __version__
from amqpd.config import EXIT_USAGE, LoadedSettings, Settings, SettingsError, load, rows, value_of
from amqpd.config.help import MASK, help_text, masked, settings_text, shown


@pytest.fixture(autouse=True)
def _empty_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def problems(argv: Sequence[str] = (), environ: Mapping[str, str] | None = None) -> list[str]:
    with pytest.raises(SettingsError) as error:
        load(argv, environ or {})
    return error.value.problems


def only_problem(argv: Sequence[str] = (), environ: Mapping[str, str] | None = None) -> str:
    found = problems(argv, environ)
    assert len(found) == 1, found
    return found[0]


class TestNames:
    def test_documented_defaults(self) -> None:
        settings = load([], {}).settings
        assert settings == Settings()
        assert settings.data_dir == Path("amqpd-data")
        assert (settings.amqp.port, settings.http.host, settings.http.port) == (5672, "127.0.0.1", 15672)
        limits = settings.amqp.frame_max, settings.amqp.channel_max, settings.amqp.heartbeat_s
        assert limits == (131072, 2047, 60)
        assert settings.amqp.message_size_max_bytes == 128 << 20
        assert settings.amqp.loopback_users == ("guest",)
        assert settings.amqp.tls.port is None
        assert (settings.log.level, settings.compat, settings.metadata.url) == ("info", "", "")
        assert settings.storage.segment_size_bytes == 64 << 20
        assert (settings.default.user, settings.default.password, settings.default.vhost) == ("guest", "guest", "/")

    def test_spellings_of_names(self) -> None:
        spellings = {row.name: (row.variable, row.option) for row in rows()}
        assert spellings["data_dir"] == ("AMQPD_DATA_DIR", "--data-dir")
        assert spellings["amqp.port"] == ("AMQPD_AMQP__PORT", "--amqp.port")
        assert spellings["amqp.tls.verify_peer"] == ("AMQPD_AMQP__TLS__VERIFY_PEER", "--amqp.tls.verify-peer")

    @pytest.mark.parametrize("row", rows(), ids=lambda row: row.name)
    def test_shown_default_is_accepted(self, row) -> None:
        """A value copied from --print-settings is accepted again; disabled paths stay disabled."""
        assert row.kind.convert(shown(row.default)) == row.default
        assert row.doc.endswith(".")

    def test_settings_are_frozen_and_hide_password(self) -> None:
        settings = load(["--default.password", "s3cret"], {}).settings
        with pytest.raises(dataclasses.FrozenInstanceError):
            settings.amqp.port = 1  # type: ignore[misc]
        assert "s3cret" not in repr(settings)


class TestSources:
    def test_precedence_of_sources(self, tmp_path: Path) -> None:
        (tmp_path / "amqpd.toml").write_text(
            'data_dir = "one"\ncompat = "rabbitmq-3.12"\n[amqp]\nport = 1\nheartbeat_s = 5\n'
            "[amqp.tls]\nverify_peer = false\n"
        )
        environ = {"AMQPD_AMQP__PORT": "2", "AMQPD_AMQP__HEARTBEAT_S": "6", "HOME": "/"}
        loaded = load(["--amqp.port", "3"], environ)
        assert loaded.settings.amqp.port == 3
        assert loaded.settings.amqp.heartbeat_s == 6
        assert loaded.settings.data_dir == Path("one")
        assert {name: source for name, source in loaded.sources.items() if source != "default"} == {
            "data_dir": "file amqpd.toml",
            "compat": "file amqpd.toml",
            "amqp.tls.verify_peer": "file amqpd.toml",
            "amqp.heartbeat_s": "environment AMQPD_AMQP__HEARTBEAT_S",
            "amqp.port": "command line",
        }

    @pytest.mark.parametrize(
        ("argv", "environ"),
        [(["--config", "my.toml"], {}), (["--config=my.toml"], {}), ([], {"AMQPD_CONFIG": "my.toml"})],
    )
    def test_named_config_file(self, tmp_path: Path, argv: list[str], environ: dict[str, str]) -> None:
        (tmp_path / "my.toml").write_text("amqp.port = 7\n")
        (tmp_path / "amqpd.toml").write_text("amqp.port = 8\n")
        assert load(argv, environ).settings.amqp.port == 7

    def test_config_option_overrides_variable(self, tmp_path: Path) -> None:
        (tmp_path / "a.toml").write_text("amqp.port = 7\n")
        (tmp_path / "b.toml").write_text("amqp.port = 8\n")
        assert load(["--config", "a.toml"], {"AMQPD_CONFIG": "b.toml"}).settings.amqp.port == 7

    def test_own_variables_override_rabbitmq_variables(self) -> None:
        environ = {"RABBITMQ_DEFAULT_USER": "u", "RABBITMQ_DEFAULT_PASS": "p", "RABBITMQ_DEFAULT_VHOST": "v"}
        default = load([], environ).settings.default
        assert (default.user, default.password, default.vhost) == ("u", "p", "v")
        loaded = load([], {"AMQPD_DEFAULT__USER": "ours"} | environ)
        assert loaded.settings.default.user == "ours"
        assert loaded.sources["default.user"] == "environment AMQPD_DEFAULT__USER"
        assert loaded.sources["default.vhost"] == "environment RABBITMQ_DEFAULT_VHOST"

    def test_command_line_spellings(self) -> None:
        settings = load(
            ["--amqp.port=1", "--amqp.port", "2", "--data_dir=a=b", "--amqp.heartbeat-s", "0", "--amqp.host", "::1"], {}
        ).settings
        assert (settings.amqp.port, settings.data_dir, settings.amqp.heartbeat_s) == (2, Path("a=b"), 0)
        assert settings.amqp.host == "::1"

    def test_kubernetes_service_variables_are_ignored(self) -> None:
        environ = {
            "AMQPD_PORT": "tcp://10.0.0.1:5672",
            "AMQPD_PORT_5672_TCP_ADDR": "10.0.0.1",
            "AMQPD_SERVICE_HOST": "10.0.0.1",
            "AMQPD_SERVICE_PORT_HTTP": "15672",
        }
        assert load([], environ).settings == Settings()


class TestConversion:
    @pytest.mark.parametrize(
        ("name", "text", "value"),
        [
            ("storage.segment_size_bytes", "1048576", 1 << 20),
            ("storage.segment_size_bytes", "1 MiB", 1 << 20),
            ("storage.segment_size_bytes", "1GiB", 1 << 30),
            ("amqp.frame_max", "64kib", 65536),
            ("amqp.tls.verify_peer", "No", False),
            ("amqp.loopback_users", "guest, admin", ("guest", "admin")),
            ("amqp.loopback_users", "", ()),
            ("amqp.handshake_timeout_s", "2.5", 2.5),
            ("amqp.tls.port", "off", None),
            ("amqp.port", "0", 0),
            ("log.level", "DEBUG", "debug"),
            ("compat", "rabbitmq-3.12", "rabbitmq-3.12"),
        ],
    )
    def test_text_is_converted(self, name: str, text: str, value: object) -> None:
        option = "--" + name.replace("_", "-")
        assert value_of(load([option, text], {}).settings, name) == value

    def test_toml_types_are_converted(self, tmp_path: Path) -> None:
        (tmp_path / "amqpd.toml").write_text(
            '[amqp]\nloopback_users = []\nhandshake_timeout_s = 3\nframe_max = "8 KiB"\n'
            "[storage]\nsegment_size_bytes = 8192\n"
        )
        settings = load([], {}).settings
        assert settings.amqp.loopback_users == ()
        assert settings.amqp.handshake_timeout_s == 3
        assert settings.amqp.frame_max == settings.storage.segment_size_bytes == 8192

    @pytest.mark.parametrize(
        ("argv", "text"),
        [
            (["--amqp.port", "65536"], "amqp.port must be from 0 to 65535, not 65536"),
            (["--amqp.port", "-1"], "amqp.port must be from 0 to 65535, not -1"),
            (["--amqp.port", "http"], "amqp.port must be a whole number, not 'http'"),
            (["--amqp.channel-max", "0"], "amqp.channel_max must be from 1 to 65535, not 0"),
            (["--amqp.handshake-timeout-s", "nan"], "amqp.handshake_timeout_s must be from 0.1 to 3600.0, not nan"),
            (["--amqp.handshake-timeout-s", "x"], "amqp.handshake_timeout_s must be a number of seconds, not 'x'"),
            (["--amqp.tls.verify-peer", "maybe"], "amqp.tls.verify_peer must be true or false, not 'maybe'"),
            (["--log.level", "loud"], "log.level must be one of debug, info, warning, error, not 'loud'"),
            (["--data-dir", ""], "data_dir must not be empty"),
            (["--default.vhost", "v" * 256], "default.vhost must be at most 255 bytes long"),
            (["--amqp.port"], "--amqp.port needs a value"),
            (["--amqp.port", "--amqp.host=x"], "--amqp.port needs a value"),
            (["start"], "unexpected argument 'start'"),
            (["--formatter", "json"], "--formatter goes with --print-settings or --ephemeral"),
            (["--print-settings", "--formatter", "xml"], "--formatter must be table, json or toml, not 'xml'"),
            (["--ephemeral", "--formatter", "toml"], "--formatter must be json with --ephemeral, not 'toml'"),
        ],
    )
    def test_invalid_arguments_are_refused(self, argv: list[str], text: str) -> None:
        assert only_problem(argv).removesuffix(" (command line)") == text

    def test_invalid_sizes_and_products_are_refused(self) -> None:
        assert "must be a number of bytes such as 65536 or 64 MiB" in only_problem(["--amqp.frame-max", "64 MB"])
        assert "must be from 4096 to" in only_problem(["--amqp.frame-max", "4095"])
        for compat in ("rabbitmq", "rabbitmq-3", "rabbitmq-3.12.1", "qpid-1.0"):
            assert "rabbitmq-MAJOR.MINOR" in only_problem(["--compat", compat])

    def test_refused_secret_is_not_shown(self, tmp_path: Path) -> None:
        (tmp_path / "amqpd.toml").write_text("default.password = 12345\n")
        assert "12345" not in only_problem()

    def test_wrong_toml_types_are_refused(self, tmp_path: Path) -> None:
        (tmp_path / "amqpd.toml").write_text(
            "data_dir = 5\n[amqp]\nport = true\nframe_max = 1.5\nloopback_users = [1]\nhandshake_timeout_s = true\n"
        )
        found = problems()
        assert len(found) == 5
        assert all(line.endswith("(file amqpd.toml)") for line in found)


class TestUnknown:
    def test_unknown_name_suggests_nearest_name(self, tmp_path: Path) -> None:
        assert only_problem(["--amqp.prot", "1"]) == "unknown setting --amqp.prot; did you mean --amqp.port?"
        assert only_problem(["--hlep"]) == "unknown setting --hlep; did you mean --help?"
        found = only_problem([], {"AMQPD_AMQP_PORT": "1"})
        assert found == "environment: unknown setting AMQPD_AMQP_PORT; did you mean AMQPD_AMQP__PORT?"
        (tmp_path / "amqpd.toml").write_text("[amqp.tls]\nprot = 1\n")
        assert only_problem() == "amqpd.toml: unknown setting amqp.tls.prot; did you mean amqp.tls.port?"

    def test_last_part_of_a_name_suggests_the_setting_of_amqp(self) -> None:
        assert only_problem(["--port", "1"]) == "unknown setting --port; did you mean --amqp.port?"
        found = only_problem([], {"AMQPD_PORT": "24000"})  # Kubernetes' variable of this name has a URL
        assert found == "environment: unknown setting AMQPD_PORT; did you mean AMQPD_AMQP__PORT?"
        assert only_problem(["--interval-s", "1"]).startswith("unknown setting --interval-s; did you mean --")

    def test_unknown_section_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "amqpd.toml").write_text("[zebra]\nstripes = 1\n")
        assert only_problem() == "amqpd.toml: unknown setting zebra"

    def test_all_mistakes_are_reported_at_once(self) -> None:
        found = problems(["--amqp.port", "x", "--bogus", "y"], {"AMQPD_HTTP__PORT": "z"})
        assert len(found) == 3

    def test_unreadable_files_are_reported(self, tmp_path: Path) -> None:
        assert only_problem(["--config", "none.toml"]) == "none.toml: No such file or directory"
        assert only_problem(["--config", str(tmp_path)]) == f"{tmp_path}: Is a directory"
        long = "/" + "a" * 300  # too long for the kernel, so looking for it fails, as without access
        for name in ("load_definitions", "amqp.tls.certificate"):
            assert only_problem([f"--{name}", long]) == f"{name}: {long}: File name too long"
        assert only_problem([], {"RABBITMQ_CONFIG_FILE": long + ".conf"}) == f"{long}.conf: File name too long"
        (tmp_path / "amqpd.toml").write_text("amqp = \n")
        assert only_problem().startswith("amqpd.toml: not TOML: ")
        (tmp_path / "amqpd.toml").write_bytes(b"compat = '\xff'\n")
        assert only_problem().startswith("amqpd.toml: not TOML: ")

    @pytest.mark.parametrize("text", ["a = " + "9" * 5000, "a = " + "[" * 5000], ids=["number", "nesting"])
    def test_oversized_toml_is_refused(self, tmp_path: Path, text: str) -> None:
        """The parser has no error of its own for a number of many digits, nor for deep nesting."""
        (tmp_path / "amqpd.toml").write_text(text)
        assert only_problem().startswith("amqpd.toml: not TOML: ")

    @pytest.mark.parametrize("pattern", ["(", "a{9999999999}", "(" * 5000])
    def test_invalid_pattern_is_refused(self, pattern: str) -> None:
        given = ["--cluster.kafka-topics", pattern, "--cluster.kafka", "h:1", "--cluster.name", "c"]
        assert problems(given)[0].startswith("cluster.kafka_topics is no regular expression: ")


class TestConsistency:
    def test_tls_settings(self, tmp_path: Path) -> None:
        for name in ("cert.pem", "key.pem", "ca.pem"):
            (tmp_path / name).touch()
        server = ["--amqp.tls.port", "5671", "--amqp.tls.certificate", "cert.pem", "--amqp.tls.key", "key.pem"]
        assert load(server, {}).settings.amqp.tls.port == 5671
        assert only_problem(server[:2]) == "amqp.tls.port needs amqp.tls.certificate and amqp.tls.key"
        assert only_problem([*server, "--amqp.port", "5671"]) == "amqp.tls.port must not be amqp.port (5671)"
        peer = [*server, "--amqp.tls.verify-peer", "true"]
        assert only_problem(peer) == "amqp.tls.verify_peer needs amqp.tls.ca"
        assert load([*peer, "--amqp.tls.ca", "ca.pem"], {}).settings.amqp.tls.verify_peer
        assert "needs amqp.tls.verify_peer" in only_problem([*server, "--amqp.tls.fail-if-no-peer-certificate", "true"])
        assert only_problem([*peer, "--amqp.tls.ca", "no.pem"]) == "amqp.tls.ca: there is no file no.pem"

    def test_https_settings(self, tmp_path: Path) -> None:
        """Like those of AMQP, in addition to plain HTTP or instead of it."""
        for name in ("cert.pem", "key.pem", "ca.pem"):
            (tmp_path / name).write_text("")
        server = ["--http.tls.port", "15671", "--http.tls.certificate", "cert.pem", "--http.tls.key", "key.pem"]
        assert load(server, {}).settings.http.tls.port == 15671
        assert load([*server, "--http.port", "off"], {}).settings.http.port is None
        assert only_problem(server[:2]) == "http.tls.port needs http.tls.certificate and http.tls.key"
        assert only_problem([*server, "--http.port", "15671"]) == "http.tls.port must not be http.port (15671)"
        assert only_problem([*server, "--http.tls.verify-peer", "true"]) == "http.tls.verify_peer needs http.tls.ca"

    def test_tls_settings_of_kafka_listener(self, tmp_path: Path) -> None:
        (tmp_path / "pem").touch()
        server = ["--kafka.tls.port", "9093", "--kafka.tls.certificate", "pem", "--kafka.tls.key", "pem"]
        assert load(server, {}).settings.kafka.tls.port == 9093
        assert only_problem(server[:2]) == "kafka.tls.port needs kafka.tls.certificate and kafka.tls.key"
        assert only_problem([*server, "--kafka.port", "9093"]) == "kafka.tls.port must not be kafka.port (9093)"
        assert only_problem([*server, "--kafka.tls.ca", "no.pem"]) == "kafka.tls.ca: there is no file no.pem"

    def test_sasl_mechanisms(self, tmp_path: Path) -> None:
        (tmp_path / "ca.pem").write_text("")
        external = ["--auth.mechanisms", "external,plain,EXTERNAL"]
        needs = "EXTERNAL in auth.mechanisms needs amqp.tls.verify_peer or http.tls.verify_peer"
        assert only_problem(external) == needs
        for section in ("amqp", "http"):
            verify = [f"--{section}.tls.verify-peer", "on", f"--{section}.tls.ca", "ca.pem"]
            assert load([*external, *verify], {}).settings.auth.mechanisms == ("EXTERNAL", "PLAIN")
        assert "must be one or more of PLAIN, AMQPLAIN, EXTERNAL" in only_problem(["--auth.mechanisms", "CRAM-MD5"])
        assert "must be one or more of" in only_problem(["--auth.mechanisms", ","])

    def test_two_free_ports_do_not_collide(self, tmp_path: Path) -> None:
        (tmp_path / "pem").touch()
        argv = ["--amqp.port", "0", "--amqp.tls.port", "0", "--amqp.tls.certificate", "pem", "--amqp.tls.key", "pem"]
        assert load(argv, {}).settings.amqp.tls.port == 0

    def test_product(self) -> None:
        assert Settings().product == ("amqpd", __version__)
        assert load(["--compat", "rabbitmq-3.12"], {}).settings.product == ("RabbitMQ", "3.12.0")


class TestProgram:
    def test_version(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert program.main(["--version"]) == 0
        python = ".".join(str(part) for part in sys.version_info[:3])
        version = capsys.readouterr().out
        assert version.startswith((f"amqpd {__version__} (compiled), ", f"amqpd {__version__} (interpreted), "))
        assert version.endswith(f" {python}\n")

    def test_is_compiled_matches_loaded_module(self) -> None:
        import amqpd.broker.queue.queue
        from amqpd._build import is_compiled

        assert is_compiled() is not amqpd.broker.queue.queue.__file__.endswith(".py")

    def test_help_lists_every_setting_despite_invalid_option(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert program.main(["--bogus", "--help"]) == 0
        text = capsys.readouterr().out
        assert text.rstrip() == help_text()
        for row in rows():
            assert f"\n  {row.option} {row.kind.word}" in text
        assert max(map(len, text.splitlines())) <= 120

    @pytest.mark.parametrize("option", ["--help", "--print-settings", "--version"])
    def test_closed_output_pipe_is_no_error(self, option: str) -> None:
        reader, writer = os.pipe()
        os.close(reader)
        command = [sys.executable, "-P", "-m", "amqpd", option]
        run = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, timeout=30, check=False)
        os.close(writer)
        assert (run.returncode, run.stderr) == (0, b"")

    def test_invalid_value_is_a_usage_error(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert program.main(["--amqp.port", "x"]) == EXIT_USAGE == 64
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith("amqpd: amqp.port must be a whole number")

    def test_print_settings_as_a_table(self) -> None:
        environ = {"AMQPD_METADATA__URL": "postgresql://joe:s3cret@db/amqpd", "AMQPD_DEFAULT__PASSWORD": "s3cret"}
        text = settings_text(load(["--print-settings"], environ))
        assert "s3cret" not in text
        lines = {line.split()[0]: line.split()[1:] for line in text.splitlines()}
        assert lines["name"] == ["value", "source"]
        assert lines["metadata.url"] == [f"postgresql://joe:{MASK}@db/amqpd", "environment", "AMQPD_METADATA__URL"]
        assert lines["default.password"][0] == MASK
        assert lines["data_dir"] == ["./amqpd-data", "default"]

    def test_print_settings_as_json(self) -> None:
        loaded = load(["--print-settings", "--formatter", "json", "--amqp.port", "0"], {})
        assert isinstance(loaded, LoadedSettings)
        listed = {each["name"]: each for each in json.loads(settings_text(loaded))}
        assert list(listed) == [row.name for row in rows()]
        assert listed["amqp.port"] == {"name": "amqp.port", "value": 0, "source": "command line"}
        assert listed["amqp.tls.port"]["value"] is None
        assert listed["amqp.tls.verify_peer"]["value"] is False
        assert listed["amqp.loopback_users"]["value"] == ["guest"]
        assert listed["default.password"]["value"] == MASK

    def test_settings_import_no_server_and_no_parser_library(self) -> None:
        """Modules that are not imported cost no start-up time."""
        code = (
            "import sys; before = set(sys.modules); import amqpd.config as s; s.load([], {});"
            "print(*set(sys.modules) - before)"
        )
        home = Path(amqpd.__file__).parent.parent
        run = subprocess.run([sys.executable, "-c", code], cwd=home, capture_output=True, text=True, check=True)
        assert "amqpd.config" in run.stdout.split()
        heavy = {"asyncio", "argparse", "click", "tomllib", "difflib", "json", "logging", "sqlalchemy", "ssl"}
        assert heavy & set(run.stdout.split()) == set()


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql://u:p@h/db", "postgresql://u:********@h/db"),
        ("postgresql://u:pa/ss@h/db", "postgresql://u:********@h/db"),
        ("postgresql://h/db?user=u&sslPassword=p&x=1", "postgresql://h/db?user=u&sslPassword=********&x=1"),
        ("postgresql://u@h:5432/db", "postgresql://u@h:5432/db"),
        ("sqlite:////var/db", "sqlite:////var/db"),
    ],
)
def test_passwords_of_a_url_are_masked(url: str, expected: str) -> None:
    assert masked("metadata.url", url) == expected
