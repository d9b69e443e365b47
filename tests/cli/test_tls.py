"""amqpctl over HTTPS to a real broker: accepted certificates, logins by certificate, and error texts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
import trustme
from fake_broker import Ctl

from amqpd.testing import BrokerProcess


@pytest.fixture(scope="module")
def certificate_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two authorities: ca.pem, other.pem. The first issued server.pem and anna.pem (key also in anna.key)."""
    folder = tmp_path_factory.mktemp("papers")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    trustme.CA().cert_pem.write_to_path(folder / "other.pem")
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(folder / "server.pem")
    anna = authority.issue_cert(common_name="anna")
    anna.private_key_and_cert_chain_pem.write_to_path(folder / "anna.pem")
    anna.private_key_pem.write_to_path(folder / "anna.key")
    anna.cert_chain_pems[0].write_to_path(folder / "anna.crt")
    return folder


@pytest.fixture(scope="module")
def broker(certificate_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings: dict[str, object] = {
        "http.port": "off",
        "http.tls.port": 0,
        "http.tls.certificate": certificate_dir / "server.pem",
        "http.tls.key": certificate_dir / "server.pem",
        "http.tls.ca": certificate_dir / "ca.pem",
        "http.tls.verify_peer": True,
        "auth.mechanisms": "PLAIN,EXTERNAL",
        "auth.ssl_cert_login_from": "common_name",
    }
    with BrokerProcess(tmp_path_factory.mktemp("data"), settings=settings) as process:
        yield process
        assert "Traceback" not in process.stderr, process.stderr


def uri(broker: BrokerProcess, user: str = "guest:guest@") -> str:
    assert broker.ready is not None
    return f"https://{user}localhost:{broker.ready.listeners['https'][1]}"


def test_ca_file_from_option_or_environment_is_trusted(broker: BrokerProcess, ctl: Ctl, certificate_dir: Path) -> None:
    listed = ctl("list_users", "-q", "--uri", uri(broker), "--tls-ca-cert-file", str(certificate_dir / "ca.pem"))
    assert (listed.code, "guest" in listed.out, listed.err) == (0, True, "")
    environment = {"AMQPCTL_URI": uri(broker), "AMQPCTL_TLS_CA_CERT_FILE": str(certificate_dir / "ca.pem")}
    assert ctl("list_users", environment=environment).code == 0
    listeners = ctl("listeners", "--formatter", "json", environment=environment)
    assert '"https"' in listeners.out


@pytest.mark.parametrize("more", [(), ("--tls-ca-cert-file", "other.pem")])
def test_untrusted_certificate_is_refused(
    broker: BrokerProcess, ctl: Ctl, certificate_dir: Path, more: tuple[str, ...]
) -> None:
    refused = ctl(
        "list_users", "--uri", uri(broker), *[each.replace("other", f"{certificate_dir}/other") for each in more]
    )
    assert refused.code == 69
    assert "CERTIFICATE_VERIFY_FAILED" in refused.err
    assert "--tls-ca-cert-file FILE" in refused.err
    assert "guest:guest" not in refused.err


def test_port_with_tls_is_named(broker: BrokerProcess, ctl: Ctl) -> None:
    refused = ctl("list_users", "--uri", uri(broker).replace("https", "http"))
    assert (refused.code, "That port may be for HTTPS. Use https:// instead" in refused.err) == (69, True), refused.err


def test_insecure_option_warns(broker: BrokerProcess, ctl: Ctl) -> None:
    listed = ctl("list_users", "-q", "--uri", uri(broker), "--insecure")
    assert (listed.code, "guest" in listed.out) == (0, True)
    assert listed.err.startswith("Warning: --insecure: the broker's certificate is not checked.")
    exported = ctl("export", "--queue", "q", "--to", "/nowhere", "--uri", uri(broker), "--insecure")
    assert exported.code != 0
    assert "messages are not read without checking" in exported.err or "pip install" in exported.err


def test_client_certificate_logs_in(broker: BrokerProcess, ctl: Ctl, certificate_dir: Path) -> None:
    ca = ("--tls-ca-cert-file", str(certificate_dir / "ca.pem"), "--uri", uri(broker, ""))
    combined_file = (*ca, "--tls-cert-file", str(certificate_dir / "anna.pem"))
    unknown_user = ctl("list_vhosts", *combined_file)
    assert unknown_user.code == 77
    assert "auth.ssl_cert_login_from" in unknown_user.err
    local = {"AMQPD_DATA_DIR": str(broker.data_dir)}
    assert ctl("add_user", "anna", "never used", environment=local).code == 0
    assert ctl("clear_password", "anna", environment=local).code == 0
    assert ctl("set_user_tags", "anna", "administrator", environment=local).code == 0
    assert ctl("list_vhosts", *combined_file).code == 0
    separate_files = (
        *ca,
        "--tls-cert-file",
        str(certificate_dir / "anna.crt"),
        "--tls-key-file",
        str(certificate_dir / "anna.key"),
    )
    assert ctl("list_vhosts", *separate_files).code == 0
    no_credentials = ctl("list_vhosts", *ca)
    assert no_credentials.code == 77
    assert "put credentials into the URI" in no_credentials.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--insecure",), "--insecure goes with --uri https://HOST:15671"),
        (("--uri", "http://u:p@h", "--tls-cert-file", "f"), "--tls-cert-file goes with --uri https://"),
        (("--uri", "https://u:p@h", "--tls-key-file", "f"), "--tls-key-file goes with --tls-cert-file"),
        (("--uri", "https://u:p@h", "--tls-ca-cert-file", "/nowhere.pem"), "/nowhere.pem: No such file"),
        (("--uri", "https://u:p@h", "--tls-cert-file", os.devnull), f"{os.devnull}: "),
    ],
)
def test_bad_tls_options_are_errors(ctl: Ctl, arguments: tuple[str, ...], words: str) -> None:
    wrong = ctl("list_users", *arguments)
    assert wrong.code == 64
    assert words in wrong.err
    assert quote("u:p@") not in wrong.err
    assert "u:p@" not in wrong.err
