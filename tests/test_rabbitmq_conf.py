"""`rabbitmq.conf` and RABBITMQ_* variables: the format, the resulting settings, and a broker started with them."""

from __future__ import annotations

import errno
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path

import pika
import pika.exceptions
import pytest

from amqpd import __main__ as program
from amqpd.cli.rabbitmq_compat import BUILT_IN
from amqpd.config import LoadedSettings, SettingsError, load, rabbitmq_conf, rows, value_of
from amqpd.config.rabbitmq_conf import PART_OF_IT, ROWS, matching, size_bytes
from amqpd.config.rabbitmq_env import VARIABLES
from amqpd.testing import BrokerProcess

HERE = Path(__file__).parent
DOC = HERE.parent / "docs" / "moving.md"
SHA512 = "rabbit_password_hashing_sha512"


@pytest.fixture(autouse=True)
def _empty_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def read(text: str, environ: Mapping[str, str] | None = None) -> LoadedSettings:
    Path("rabbitmq.conf").write_text(text, "utf-8")
    return load(["--config", "rabbitmq.conf"], environ or {})


def problems(text: str, environ: Mapping[str, str] | None = None) -> list[str]:
    with pytest.raises(SettingsError) as refused:
        read(text, environ)
    return refused.value.problems


class TestFormat:
    def test_typical_file(self) -> None:
        loaded = read(
            "# my broker\n\n  heartbeat=30\t# seconds\r\nlisteners.tcp.default = 5673\n"
            "default_user = anna\ndefault_pass = 'a # b'\nheartbeat = 20\n"
        )
        settings = loaded.settings
        assert (settings.amqp.heartbeat_s, settings.amqp.port) == (20, 5673)  # the last line wins
        assert (settings.default.user, settings.default.password) == ("anna", "a # b")
        assert loaded.sources["amqp.heartbeat_s"] == "file rabbitmq.conf:7: heartbeat"
        assert list(loaded.notes) == []

    def test_escaped_dot_in_key(self) -> None:
        assert read("loopback_users.anna\\.b = true\n").settings.amqp.loopback_users == ("anna.b",)

    def test_conf_d_and_included_files(self, tmp_path: Path) -> None:
        for folder in ("conf.d", "more"):
            (tmp_path / folder).mkdir()
        (tmp_path / "conf.d" / "20-b.conf").write_text("heartbeat = 3\n")
        (tmp_path / "conf.d" / "10-a.conf").write_text("heartbeat = 2\nchannel_max = 5\n")
        (tmp_path / "conf.d" / "30-c.txt").write_text("heartbeat = 4\n")
        (tmp_path / "more" / "a.conf").write_text("max_message_size = 1000\n")
        settings = read("heartbeat = 1\ninclude more/*.conf\nframe_max = 8192\n").settings
        assert (settings.amqp.heartbeat_s, settings.amqp.channel_max, settings.amqp.frame_max) == (3, 5, 8192)
        assert settings.amqp.message_size_max_bytes == 1000

    def test_inaccessible_directories_are_reported(self) -> None:
        folder = "/" + "a" * 300  # too long for the kernel, so listing it fails, as without access
        with pytest.raises(SettingsError) as refused:
            load(["--config", f"{folder}/rabbitmq.conf"], {})
        assert f"{folder}/conf.d: File name too long" in refused.value.problems
        assert problems(f"include {folder}/*.conf\n") == [f"rabbitmq.conf:1: {folder}: File name too long"]
        environ = {"RABBITMQ_CONFIG_FILES": f"{folder}/*.conf"}
        with pytest.raises(SettingsError) as refused:
            load([], environ)
        assert refused.value.problems == [f"environment: RABBITMQ_CONFIG_FILES: {folder}: File name too long"]

    def test_named_file_needs_no_list_of_its_directory(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The directory can have mode 0711."""

        def denied(self: Path) -> None:
            raise PermissionError(errno.EACCES, "Permission denied", str(self))

        monkeypatch.setattr(Path, "iterdir", denied)
        Path("more.conf").write_text("heartbeat = 7\n")
        assert load([], {"RABBITMQ_CONFIG_FILES": "more.conf"}).settings.amqp.heartbeat_s == 7
        assert load([], {"RABBITMQ_CONFIG_FILES": "none.conf"}).settings.amqp.heartbeat_s == 60

    def test_missing_directories_have_no_files(self) -> None:
        Path("file").touch()
        for folder in ("none", "file"):
            assert read(f"include {folder}/*.conf\n", {"RABBITMQ_CONFIG_FILES": f"{folder}/*.conf"}).notes == []

    def test_include_cycle_is_refused(self) -> None:
        assert problems("include rabbitmq.conf\n")[0].endswith("files include each other")

    def test_environment_variables_in_values(self) -> None:
        assert read("default_user = $(WHO)-1\n", {"WHO": "anna"}).settings.default.user == "anna-1"
        assert "there is no variable WHO" in problems("default_user = x$(WHO)\n")[0]

    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            ("heartbeet = 3\n", "rabbitmq.conf:1: RabbitMQ has no key heartbeet; did you mean heartbeat?"),
            ("\nheartbeat\n", "rabbitmq.conf:2: not `key = value`: 'heartbeat'"),
            ("default_user =\n", "rabbitmq.conf:1: default_user has no value, or a quote without an end"),
            ("[{rabbit, []}].\n", "rabbitmq.conf:1: this is RabbitMQ's Erlang format of before 3.7"),
            ("heartbeat = x\n", "rabbitmq.conf:1: heartbeat must be a whole number, not 'x'"),
            ("heartbeat = 70000\n", "amqp.heartbeat_s must be from 0 to 65535, not 70000 (file rabbitmq.conf:1: heart"),
            ("ssl_options.verify = maybe\n", "rabbitmq.conf:1: ssl_options.verify must be verify_peer or verify_none"),
            ("default_pass = encrypted:abc\n", "rabbitmq.conf:1: default_pass is encrypted"),
            ("auth_backends.1 = ldap\n", "rabbitmq.conf:1: auth_backends.1 cannot be ldap: amqpd keeps its users"),
            ("load_definitions = x.json\n", "load_definitions: there is no file or directory x.json"),
            ("definitions.https.url = x\n", "rabbitmq.conf:1: definitions.https.url is not supported: amqpd imports"),
            ("management.ssl.port = 1\n", "http.tls.port needs http.tls.certificate and http.tls.key"),
            ("management.ssl.password = x\n", "rabbitmq.conf:1: management.ssl.password is not supported: amqpd"),
            ("prometheus.ssl.port = 1\n", "rabbitmq.conf:1: prometheus.ssl.port is not supported: metrics over TLS"),
            ("prometheus.path = /m\n", "rabbitmq.conf:1: prometheus.path cannot be /m: amqpd has metrics at /metrics"),
            ("auth_mechanisms.1 = ANONYMOUS\n", "rabbitmq.conf:1: auth_mechanisms.1 cannot be ANONYMOUS: amqpd knows"),
            ("auth_mechanisms.1 = EXTERNAL\n", "EXTERNAL in auth.mechanisms needs amqp.tls.verify_peer or"),
            ("ssl_cert_login_san_type = other_name\n", "auth.ssl_cert_login_san_type must be one of dns, ip, email"),
            ("password_hashing_module = x\n", "rabbitmq.conf:1: password_hashing_module must be rabbit_password"),
            ("listeners.tcp.a = unix:/run/a.sock:0\n", "rabbitmq.conf:1: listeners.tcp.a cannot be unix:/run/a.sock"),
            ("proxy_protocol = true\n", "rabbitmq.conf:1: proxy_protocol cannot be true"),
            ("ssl_options.versions.1 = tlsv1.3\n", "rabbitmq.conf:1: ssl_options.versions.1: amqpd supports TLS 1.2"),
            ("listeners.tcp = none\n", "amqp.port and amqp.tls.port are both off: no client could connect"),
            ("listeners.tcp.a = 1\nlisteners.tcp.b = 2\n", "rabbitmq.conf:2: listeners.tcp.b: amqpd has one port"),
            ("log.console.level = loud\n", "rabbitmq.conf:1: log.console.level must be one of debug"),
        ],
    )
    def test_invalid_line_is_refused(self, text: str, problem: str) -> None:
        found = problems(text)
        assert len(found) == 1
        assert found[0].startswith(problem)

    def test_refused_password_is_not_shown(self) -> None:
        assert not any("s3cret" in line for line in problems("default_pass = s3cret\nheartbeat = x\n"))
        for line in ("default_pass : s3cret", "default_pass s3cret", "\tdefault_pass:s3cret"):
            assert not any("s3cret" in each for each in problems(f"{line}\n")), line

    def test_all_mistakes_are_reported_at_once(self) -> None:
        assert len(problems("a = 1\nheartbeat = x\nframe_max = 1\nb\n")) == 4

    def test_erlang_terms_are_refused(self, tmp_path: Path) -> None:
        with pytest.raises(SettingsError, match="advanced.config: files ending in .config have Erlang terms"):
            load(["--config", "advanced.config"], {})
        (tmp_path / "advanced.config").write_text("[].\n")
        assert "then delete the file" in problems("heartbeat = 1\n")[0]

    def test_invalid_include_pattern_is_refused(self) -> None:
        assert problems("include **.conf\n")[0].startswith("rabbitmq.conf:1: **.conf: ** is")

    def test_missing_file_is_refused(self) -> None:
        with pytest.raises(SettingsError, match=r"none\.conf: No such file or directory"):
            load(["--config", "none.conf"], {})


class TestKeys:
    @pytest.mark.parametrize(
        ("text", "name", "value"),
        [
            ("listeners.tcp.a = 127.0.0.1:5673\nlisteners.tcp.b = ::1:5673\n", "amqp.host", "127.0.0.1,::1"),
            ("handshake_timeout = 2500\n", "amqp.handshake_timeout_s", 2.5),
            ("handshake_timeout = infinity\n", "amqp.handshake_timeout_s", 3600.0),
            ("frame_max = 64kb\n", "amqp.frame_max", 65536),
            ("frame_max = 0\n", "amqp.frame_max", 1 << 27),
            ("channel_max = 0\n", "amqp.channel_max", 65535),
            ("cluster_name = the shop\n", "cluster_name", "the shop"),
            ("loopback_users = none\n", "amqp.loopback_users", ()),
            ("loopback_users.guest = false\n", "amqp.loopback_users", ()),
            ("default_user_tags.monitoring = true\n", "default.tags", ("monitoring",)),
            ("default_permissions.read = ^a\n", "default.read", "^a"),
            ("vm_memory_high_watermark.relative = 0.6\n", "limits.memory_high_watermark", 0.6),
            ("vm_memory_high_watermark.absolute = 2GB\n", "limits.memory_bytes", 2_000_000_000),
            ("disk_free_limit.absolute = 1GiB\n", "limits.disk_free_bytes", 1 << 30),
            ("disk_free_limit.relative = 1.5\n", "limits.disk_free_memory_multiple", 1.5),
            ("consumer_timeout = 60000\n", "consumer_timeout_ms", 60000),
            ("log.console = true\nlog.console.level = debug\n", "log.level", "debug"),
            ("log.file = a.log\nlog.dir = /var/log\nlog.file.level = critical\n", "log.file", Path("/var/log/a.log")),
            ("log.file = false\nlog.console.formatter = json\n", "log.format", "json"),
            ("management.tcp.port = 1234\n", "http.port", 1234),
            ("auth_mechanisms.1 = PLAIN\n", "auth.mechanisms", ("PLAIN",)),
            ("ssl_cert_login_from = subject_alt_name\n", "auth.ssl_cert_login_from", "subject_alternative_name"),
            ("ssl_cert_login_san_type = email\n", "auth.ssl_cert_login_san_type", "email"),
            ("ssl_cert_login_san_index = 1\n", "auth.ssl_cert_login_san_index", 1),
            ("load_definitions = rabbitmq.conf\n", "load_definitions", Path("rabbitmq.conf")),
            ("definitions.local.path = .\n", "definitions.local.path", Path()),
            ("definitions.skip_if_unchanged = true\n", "definitions.skip_if_unchanged", True),
            (f"password_hashing_module = {SHA512}\n", "auth.password_hashing", SHA512),
            ("prometheus.tcp.ip = 0.0.0.0\n", "metrics.port", 15692),
            ("prometheus.tcp.port = 9000\n", "metrics.port", 9000),
            ("prometheus.return_per_object_metrics = true\n", "metrics.return_per_object_metrics", True),
            ("max_channels_per_connection = 9\n", "amqp.channel_max", 9),
            ("management.listener.ip = 0.0.0.0\n", "http.host", "0.0.0.0"),
        ],
    )
    def test_key_becomes_setting(self, text: str, name: str, value: object) -> None:
        loaded = read(text)
        assert value_of(loaded.settings, name) == value
        assert loaded.sources[name].startswith("file rabbitmq.conf:")

    def test_tls_of_amqp(self, tmp_path: Path) -> None:
        for name in ("cert.pem", "key.pem", "ca.pem"):
            (tmp_path / name).touch()
        loaded = read(
            "listeners.tcp = none\nlisteners.ssl.default = 5671\nssl_options.cacertfile = ca.pem\n"
            "ssl_options.certfile = cert.pem\nssl_options.keyfile = key.pem\nssl_options.verify = verify_peer\n"
            "ssl_options.fail_if_no_peer_cert = true\nssl_options.versions.1 = tlsv1.2\nssl_options.depth = 2\n"
        )
        tls = loaded.settings.amqp.tls
        assert (loaded.settings.amqp.port, tls.port, tls.verify_peer) == (None, 5671, True)
        assert (tls.certificate, tls.key, tls.ca) == (Path("cert.pem"), Path("key.pem"), Path("ca.pem"))
        assert (tls.fail_if_no_peer_certificate, tls.depth, tls.ciphers) == (True, 2, ())
        assert list(loaded.notes) == ["rabbitmq.conf:8: ssl_options.versions.1: amqpd always supports TLS 1.2 and 1.3"]

    def test_tls_of_the_admin_api(self, tmp_path: Path) -> None:
        """RabbitMQ: without a management.tcp key there is no plain HTTP. Tests the new and the old keys."""
        for name in ("cert.pem", "key.pem", "ca.pem"):
            (tmp_path / name).touch()
        files = "cacertfile = ca.pem", "certfile = cert.pem", "keyfile = key.pem", "verify = verify_peer"
        text = "".join(f"management.ssl.{line}\n" for line in files)
        http = read(text).settings.http
        assert (http.port, http.tls.port, http.tls.verify_peer, http.tls.ca) == (None, 15671, True, Path("ca.pem"))
        http = read(f"{text}management.ssl.port = 1\nmanagement.tcp.idle_timeout = 5\n").settings.http
        assert (http.port, http.tls.port) == (15672, 1)
        old_keys = (
            "".join(f"management.listener.ssl_opts.{line}\n" for line in files) + "management.listener.port = 7\n"
        )
        http = read(f"{old_keys}management.listener.ssl = true\nmanagement.listener.ip = ::1\n").settings.http
        assert (http.port, http.tls.port, http.tls.host, http.tls.verify_peer) == (None, 7, "::1", True)
        http = read(f"{old_keys}management.listener.ssl = false\n").settings.http
        assert (http.port, http.tls.port, http.tls.certificate) == (7, None, None)
        settings = read("auth_mechanisms.1 = EXTERNAL\nauth_mechanisms.2 = PLAIN\n" + text).settings
        assert settings.auth.mechanisms == ("EXTERNAL", "PLAIN")

    @pytest.mark.parametrize(
        ("prefix", "more", "section"),
        [
            ("ssl_options", "", "amqp"),
            ("management.ssl", "", "http"),
            ("management.listener.ssl_opts", "management.listener.ssl = true\n", "http"),
        ],
    )
    def test_ciphers_and_depth(self, prefix: str, more: str, section: str) -> None:
        Path("cert.pem").touch()
        files = f"{prefix}.certfile = cert.pem\n{prefix}.keyfile = cert.pem\n"
        loaded = read(f"{files}{prefix}.ciphers.1 = B\n{prefix}.ciphers.2 = A\n{prefix}.depth = 200\n{more}")
        tls = getattr(loaded.settings, section).tls
        assert (tls.ciphers, tls.depth, list(loaded.notes)) == (("B", "A"), 100, [])
        with pytest.raises(SettingsError, match="must be 0 to 255"):
            read(f"{prefix}.depth = -1\n")

    def test_keys_without_effect_are_noted(self) -> None:
        loaded = read("net_ticktime = 60\nmqtt.listeners.tcp.default = 1883\nauth_mechanisms.1 = PLAIN\n")
        assert list(loaded.notes) == [
            "rabbitmq.conf:1: net_ticktime changes nothing: it is about Erlang",
            "rabbitmq.conf:2: mqtt.listeners.tcp.default changes nothing: amqpd does not speak this protocol",
        ]

    def test_every_key_of_rabbitmq_is_known(self) -> None:
        """The schemas of RabbitMQ 3.10.8 and of its plugins."""
        keys = (HERE / "samples" / "rabbitmq-3.10.8-keys.txt").read_text("ascii").split()
        assert len(keys) > 700
        assert [key for key in keys if matching(key.replace("$", "x").split(".")) is None] == []

    def test_every_line_of_example_file_is_known(self) -> None:
        """Each key of the example file by itself is a setting, a note, or refused with a specific reason."""
        kinds = Counter[str]()
        refused_keys = set()
        for line in (HERE / "samples" / "rabbitmq-4.3-example.conf").read_text("ascii").splitlines()[1:]:
            Path("rabbitmq.conf").write_text(f"{line}\n")
            result = rabbitmq_conf.read(Path("rabbitmq.conf"), [], {})
            key, _, value = line.partition("=")
            assert matching(key.strip().split(".")) is not None, line
            if result.problems:
                assert re.search("cannot be|not supported|is encrypted|cannot disable", result.problems[0]), line
                refused_keys.add(key.split(".")[0].strip() if "encrypted:" not in value else "encrypted:")
            kind = "setting" if result.values else "note" if result.notes else "default"
            kinds["refused" if result.problems else kind] += 1
        assert sum(kinds.values()) == 266
        assert min(kinds["setting"], kinds["note"]) > 50
        assert refused_keys == {
            "auth_backends", "auth_ldap", "auth_mechanisms", "auth_oauth2", "credential_validator", "default_limits",
            "default_policies", "default_users", "encrypted:", "listeners", "management", "ssl_options",
        }  # fmt: skip

    def test_every_row_can_match(self) -> None:
        """The first matching row wins, so each row must be found by its own pattern."""
        found = [row.pattern for row in ROWS if matching(row.pattern.replace("$", "x").split(".")) is not row]
        assert found == []

    def test_size_units(self) -> None:
        assert [size_bytes(text) for text in ("1", "2k", "2kB", "2KiB", "1MB", "1gib", "2Gi")] == [
            1, 2048, 2000, 2048, 1_000_000, 1 << 30, 1 << 31,
        ]  # fmt: skip
        with pytest.raises(ValueError, match="must be a number of bytes"):
            size_bytes("1 GB")


class TestEnvironment:
    def test_variables_of_docker_image(self, tmp_path: Path) -> None:
        (tmp_path / "secret").write_text("s3cret\n")
        environ = {
            "RABBITMQ_DEFAULT_USER": "anna",
            "RABBITMQ_DEFAULT_PASS_FILE": "secret",
            "RABBITMQ_DEFAULT_VHOST": "",
            "RABBITMQ_NODE_PORT": "5673",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_LOG": "warning,+color,connection=debug",
            "RABBITMQ_MNESIA_BASE": "/var/lib/rabbitmq",
            "RABBITMQ_VM_MEMORY_HIGH_WATERMARK": "512MiB",
        }
        loaded = load([], environ)
        settings = loaded.settings
        assert (settings.default.user, settings.default.password, settings.default.vhost) == ("anna", "s3cret", "/")
        assert (settings.amqp.host, settings.amqp.port, settings.log.level) == ("127.0.0.1", 5673, "warning")
        assert (settings.data_dir, settings.log.file) == (Path("/var/lib/rabbitmq/amqpd"), None)
        assert settings.limits.memory_bytes == 512 << 20
        assert loaded.sources["default.password"] == "environment RABBITMQ_DEFAULT_PASS_FILE"
        assert list(loaded.notes) == []
        assert load([], {"AMQPD_AMQP__PORT": "1", **environ}).settings.amqp.port == 1

    def test_overridden_values_are_noted(self) -> None:
        """The image sets some of these variables: a user of rabbitmq.conf must see that they override the file."""
        environ = {"RABBITMQ_MNESIA_BASE": "/data", "AMQPD_DATA_DIR": "/var/lib/rabbitmq/amqpd"}
        loaded = read("management.tcp.ip = 127.0.0.1\nheartbeat = 5\n", {"AMQPD_HTTP__HOST": "0.0.0.0", **environ})
        assert (loaded.settings.http.host, loaded.settings.data_dir) == ("0.0.0.0", Path("/var/lib/rabbitmq/amqpd"))
        assert list(loaded.notes) == [
            "rabbitmq.conf:1: management.tcp.ip changes nothing: AMQPD_HTTP__HOST overrides it",
            "environment: RABBITMQ_MNESIA_BASE changes nothing: AMQPD_DATA_DIR overrides it",
        ]
        assert list(read("heartbeat = 5\n", {"AMQPD_AMQP__HEARTBEAT_S": "5"}).notes) == []

    def test_variables_without_effect_are_noted(self) -> None:
        environ = {"RABBITMQ_ERLANG_COOKIE": "x", "RABBITMQ_URL": "y", "RABBITMQ_PORT_5672_TCP": "z", "RABBITMQ_X": ""}
        assert list(load([], environ).notes) == [
            "environment: RABBITMQ_ERLANG_COOKIE changes nothing: it is about Erlang",
            "environment: RABBITMQ_URL changes nothing: amqpd does not know it",
        ]

    @pytest.mark.parametrize(
        ("environ", "problem"),
        [
            ({"RABBITMQ_DEFAULT_PASS_FILE": "none"}, "RABBITMQ_DEFAULT_PASS_FILE: none: No such file or directory"),
            ({"RABBITMQ_DEFAULT_PASS_FILE": "a", "RABBITMQ_DEFAULT_PASS": "b"}, "are both set; set only one"),
            ({"RABBITMQ_SSL_CERTFILE": "a"}, "RABBITMQ_SSL_CERTFILE is not supported: put ssl_options"),
            ({"RABBITMQ_NODE_PORT": "x"}, "amqp.port must be a whole number, not 'x' (environment RABBITMQ_NODE_PORT)"),
            ({"RABBITMQ_LOG": "loud"}, "RABBITMQ_LOG must be a level"),
            ({"RABBITMQ_LOGS": "-,a.log"}, "RABBITMQ_LOGS names several logs"),
            ({"RABBITMQ_CONFIG_FILE": "a.config"}, "a.config: files ending in .config have Erlang terms"),
            ({"RABBITMQ_CONFIG_FILES": "a**.conf"}, "RABBITMQ_CONFIG_FILES: a**.conf: ** is not possible, use *"),
        ],
    )
    def test_invalid_variable_is_refused(self, environ: dict[str, str], problem: str, tmp_path: Path) -> None:
        (tmp_path / "a.config").touch()
        with pytest.raises(SettingsError) as refused:
            load([], environ)
        assert len(refused.value.problems) == 1
        assert problem in refused.value.problems[0]

    def test_config_files_named_by_variables(self, tmp_path: Path) -> None:
        (tmp_path / "my.conf").write_text("heartbeat = 1\nchannel_max = 7\n")
        (tmp_path / "further").mkdir()
        (tmp_path / "further" / "a.conf").write_text("heartbeat = 2\n")
        (tmp_path / "amqpd.toml").write_text("amqp.channel_max = 8\n")
        environ = {"RABBITMQ_CONFIG_FILE": "my", "RABBITMQ_CONFIG_FILES": "further"}
        settings = load([], environ).settings
        assert (settings.amqp.heartbeat_s, settings.amqp.channel_max) == (2, 8)
        assert load([], environ | {"RABBITMQ_CONFIG_FILES": "further/*.conf"}).settings.amqp.heartbeat_s == 2
        assert load([], {"RABBITMQ_CONFIG_FILES": "further"}).settings.amqp.heartbeat_s == 2
        assert load(["--config", "amqpd.toml"], environ).settings.amqp.heartbeat_s == 2
        notes = load([], {"RABBITMQ_CONFIG_FILE": "/none/rabbitmq"}).notes
        assert list(notes) == ["environment: RABBITMQ_CONFIG_FILE: there is no file /none/rabbitmq.conf"]


class TestPlugins:
    """`rabbitmq_prometheus` means metrics on a separate port, as in RabbitMQ's image."""

    def test_enabled_plugins_file(self, tmp_path: Path) -> None:
        (tmp_path / "enabled_plugins").write_text("% mine\n[rabbitmq_management,rabbitmq_prometheus,rabbitmq_mqtt].\n")
        loaded = read("heartbeat = 1\n")
        assert loaded.settings.metrics.port == 15692
        assert loaded.sources["metrics.port"] == "file enabled_plugins"
        assert list(loaded.notes) == ["enabled_plugins: rabbitmq_mqtt changes nothing: amqpd has no such plugin"]
        assert read("prometheus.tcp.port = 9000\n").settings.metrics.port == 9000
        environ = {"RABBITMQ_ENABLED_PLUGINS": "rabbitmq_management", "RABBITMQ_CONFIG_FILE": "rabbitmq"}
        (tmp_path / "rabbitmq.conf").write_text("heartbeat = 1\n")
        assert load([], environ).settings.metrics.port is None

    def test_enabled_plugins_variables(self, tmp_path: Path) -> None:
        (tmp_path / "plugins").write_text("[rabbitmq_prometheus].")
        for environ in (
            {"RABBITMQ_ENABLED_PLUGINS": "rabbitmq_management,rabbitmq_prometheus"},
            {"RABBITMQ_ENABLED_PLUGINS_FILE": "plugins"},
        ):
            assert load([], environ).settings.metrics.port == 15692
        (tmp_path / "plugins").write_bytes(b"\xff")
        assert "cannot be read" in load([], {"RABBITMQ_ENABLED_PLUGINS_FILE": "plugins"}).notes[0]

    def test_built_in_plugins(self) -> None:
        """rabbitmq-plugins lists the same."""
        assert set(BUILT_IN) == PART_OF_IT


class TestProgram:
    def test_check_config(self, capsys: pytest.CaptureFixture[str]) -> None:
        text = "heartbeat = 30\ndefault_pass = s3cret\nnet_ticktime = 1\n"
        Path("rabbitmq.conf").write_text(text)
        assert program.main(["--check-config", "--config", "rabbitmq.conf"]) == 0
        assert capsys.readouterr().out.splitlines() == [
            "note: rabbitmq.conf:3: net_ticktime changes nothing: it is about Erlang",
            "amqp.heartbeat_s = 30  (file rabbitmq.conf:1: heartbeat)",
            "default.password = ********  (file rabbitmq.conf:2: default_pass)",
            "the settings can be used",
        ]
        Path("rabbitmq.conf").write_text("heartbeat = x\n")
        assert program.main(["--check-config", "--config", "rabbitmq.conf"]) == 64
        assert "heartbeat must be a whole number" in capsys.readouterr().err

    @pytest.mark.slow
    def test_broker_with_rabbitmq_conf(self, tmp_path: Path) -> None:
        """The broker has the file's settings, and its log names the keys without effect."""
        (tmp_path / "my.conf").write_text(
            "default_user = anna\ndefault_pass = 'a # b'\ndefault_user_tags.monitoring = true\n"
            "default_permissions.configure = ^own\nheartbeat = 33\nvm_memory_high_watermark.absolute = 1GiB\n"
            "disk_free_limit.relative = 0.001\nnet_ticktime = 60\n"
        )
        with BrokerProcess(tmp_path / "data", env={"RABBITMQ_CONFIG_FILE": str(tmp_path / "my.conf")}) as broker:
            login = pika.PlainCredentials("anna", "a # b")
            parameters = pika.ConnectionParameters("127.0.0.1", broker.amqp_port, "/", login)
            connection = pika.BlockingConnection(parameters)
            connection.channel().queue_declare("own")
            with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused:
                connection.channel().queue_declare("others")
            assert refused.value.reply_code == 403
            connection.close()
            assert broker.ctl("list_users", "-s").stdout.split("\n")[0] == "anna\t[monitoring]"
            status = json.loads(broker.ctl("status", "--formatter", "json").stdout)
            assert status["vm_memory_high_watermark_setting"] == {"absolute": 1 << 30}
            assert status["vm_memory_high_watermark_limit"] == 1 << 30
            assert broker.says("net_ticktime changes nothing: it is about Erlang")


def test_broker_on_several_addresses(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, settings={"amqp.host": "127.0.0.1,127.0.0.2"}) as broker:
        for host in ("127.0.0.1", "127.0.0.2"):
            pika.BlockingConnection(pika.ConnectionParameters(host, broker.amqp_port)).close()


def table(rows_: Sequence[tuple[str, str]]) -> list[str]:
    """Return table lines; consecutive names with the same description share a line."""
    lines = []
    for description, group in groupby(rows_, key=lambda row: row[1]):
        names = " ".join(f"`{name}`" for name, _ in group)
        lines.append(f"| {names} | {description} |")
    return lines


def test_every_key_is_documented() -> None:
    """After a change of the keys, put this table between the two marks of docs/moving.md."""
    expected = ["| key | becomes |", "|---|---|", *table([(row.pattern, row.does) for row in ROWS])]
    text = DOC.read_text("utf-8").partition("<!-- keys -->\n")[2].partition("<!-- end of keys -->")[0]
    assert text.splitlines() == expected


def test_every_variable_is_documented() -> None:
    """After a change, put this table between the two marks of docs/moving.md. Variables of the settings table are
    first.
    """
    from_settings = [(row.environ_also, f"`{row.name}`") for row in rows() if row.environ_also]
    expected = [
        "| variable | becomes |",
        "|---|---|",
        *table([*from_settings, *((each.name, each.does) for each in VARIABLES)]),
    ]
    text = DOC.read_text("utf-8").partition("<!-- variables -->\n")[2].partition("<!-- end of variables -->")[0]
    assert text.splitlines() == expected


def test_settings_named_in_rows_exist() -> None:
    """Names such as `amqp.port` in the documentation are settings."""
    known = {row.name for row in rows()}
    sections = {name.partition(".")[0] for name in known if "." in name}
    words = {word.strip("`;,:") for row in ROWS for word in row.does.split() if word.startswith("`")}
    named = {word for word in words if word.partition(".")[0] in sections and "." in word}
    assert named
    assert named - known == set()
