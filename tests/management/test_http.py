"""Logins, request checks and error replies of the HTTP API."""

from __future__ import annotations

import gzip
import json
import socket
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

import pytest

from amqpd.management.json_body import BODY_BYTES_MAX, JSON_DEPTH_MAX


class TestLogin:
    def test_request_without_credentials_is_401(self, amqpd_broker, api):
        answer = type(api)(amqpd_broker, "")("GET", "/api/overview")
        assert answer.status == 401
        assert answer.headers["www-authenticate"] == 'Basic realm="RabbitMQ Management"'
        assert answer.json == {"error": "not_authorized", "reason": "Login failed"}

    @pytest.mark.parametrize("value", ["Basic", "Basic !!", "Basic Z3Vlc3Q=", "Bearer x", "Basic /////w=="])
    def test_malformed_credentials_are_401(self, amqpd_broker, api, value):
        answer = type(api)(amqpd_broker, "")("GET", "/api/whoami", headers={"Authorization": value})
        assert answer.status == 401

    def test_wrong_password_is_delayed(self, amqpd_broker, api):
        started = time.monotonic()
        assert type(api)(amqpd_broker, "guest", "wrong")("GET", "/api/whoami").status == 401
        assert time.monotonic() - started >= 0.1

    @pytest.mark.slow
    def test_wrong_guesses_wait_longer_but_correct_password_is_answered(self, amqpd_broker, api, user):
        """Clients behind a proxy share one address, so wrong guesses must not lock out correct passwords."""
        anna = user("management")
        guesser = type(api)(amqpd_broker, anna.user, "wrong")
        started = time.monotonic()
        assert [guesser("GET", "/api/whoami").status for _ in range(3)] == [401] * 3
        assert time.monotonic() - started >= 0.1 + 0.2 + 0.4
        with ThreadPoolExecutor(8) as threads:
            answers = threads.map(lambda n: guesser("GET", f"/api/whoami?{n}").status, range(8))
            assert anna("GET", "/api/whoami").status == 200
            assert list(answers) == [401] * 8
        assert anna("GET", "/api/whoami").status == 200

    def test_user_without_tags_is_401(self, user):
        answer = user("", read=".*")("GET", "/api/whoami")
        assert answer.status == 401
        assert answer.json == {"error": "not_authorised", "reason": "Not management user"}

    def test_whoami_shows_name_and_tags(self, api, user):
        assert api.get("/api/whoami") == {"name": "guest", "tags": ["administrator"], "is_internal_user": True}
        assert user("management,other").get("/api/whoami")["tags"] == ["management", "other"]


class TestUnixSocket:
    def test_unix_socket_caller_is_the_operator(self, operator):
        assert operator.get("/api/whoami")["tags"] == ["administrator"]
        assert operator.get("/api/amqpd/ping")["status"] == "ok"

    def test_unix_socket_has_mode_600(self, amqpd_broker):
        found = (amqpd_broker.data_dir / "amqpctl.sock").stat()
        assert stat.S_ISSOCK(found.st_mode)
        assert stat.S_IMODE(found.st_mode) == 0o600

    def test_socket_is_removed_on_stop_and_replaced_after_kill(self, tmp_path, amqpd_broker, api):
        directory = tmp_path / ("long" * 30)  # a socket path has at most 107 bytes, a data directory can have more
        with type(amqpd_broker)(directory) as broker:
            path = directory / "amqpctl.sock"
            assert path.exists()
            broker.kill()
            assert path.exists()
            broker.start()
            assert type(api)(broker, None).get("/api/amqpd/ping")["status"] == "ok"
            broker.stop()
            assert not path.exists()

    def test_headers_do_not_make_a_tcp_caller_the_operator(self, amqpd_broker, api):
        headers = {"X-Forwarded-For": "unix", "Host": "localhost"}
        assert type(api)(amqpd_broker, "")("GET", "/api/amqpd/status", headers=headers).status == 401


class TestRequests:
    def test_trailing_slash_is_accepted(self, api):
        assert api("GET", "/api/connections/").status == 200
        assert api("GET", "/api/connections/%2F/").status == 404

    def test_unknown_path_is_404(self, api):
        answer = api("GET", "/api/none")
        assert answer.status == 404
        assert answer.json == {"error": "Object Not Found", "reason": "Not Found"}

    def test_wrong_method_is_405(self, api):
        answer = api("POST", "/api/overview", {})
        assert answer.status == 405
        assert answer.headers["allow"] == "GET, HEAD, OPTIONS"

    def test_head_has_length_and_no_body(self, api):
        answer = api("HEAD", "/api/overview")
        assert (answer.status, answer.body) == (200, b"")
        assert int(answer.headers["content-length"]) > 100

    def test_name_that_is_not_utf8_is_refused(self, api):
        assert api("GET", "/api/queues/%2F/%ff").status == 400

    @pytest.mark.parametrize("name", ["..%2f..%2fetc", "%2e%2e", "a%2Fb%2F..", "%22'<img>{{7*7}}", "é" * 127, "100%25"])
    def test_unusual_names_create_no_files(self, api, v, amqpd_broker, name):
        path = f"/api/queues/{v}/{quote(name, safe='%')}"
        before = {each.name for each in amqpd_broker.data_dir.iterdir()}
        assert api("PUT", path, {"durable": True}).status == 201
        assert api("GET", path).status == 200
        assert [queue["name"] for queue in api.get(f"/api/queues/{v}")] == [api.get(path)["name"]]
        assert {each.name for each in amqpd_broker.data_dir.iterdir()} == before

    @pytest.mark.parametrize("name", ["a%00b", "é" * 128])
    def test_names_that_amqp_refuses_are_400(self, api, v, name):
        assert api("PUT", f"/api/queues/{v}/{quote(name, safe='%')}", {}).status == 400

    @pytest.mark.parametrize(
        ("body", "reason"),
        [
            ("{", "not_json"),
            ("[NaN]", "not_json"),
            ("[" * 100000, "deeper"),
            ("[" * (JSON_DEPTH_MAX + 1) + "]" * (JSON_DEPTH_MAX + 1), "deeper"),
            ("[]", "must be a JSON object"),
            ('{"durable": "maybe"}', "durable must be true or false"),
            ('{"arguments": 3}', "arguments must be an object"),
            ('{"arguments": {"x-max-length": -1}}', "x-max-length"),
            ('{"arguments": {"a": 1e999}}', ""),
            ('{"arguments": {"a": 99999999999999999999999}}', ""),
            ('{"arguments": {"\\ud800": 1}}', ""),
        ],
    )
    def test_bad_body_is_refused(self, api, v, body, reason):
        answer = api("PUT", f"/api/queues/{v}/q", body, raw=True)
        assert answer.status == 400
        assert answer.json["error"] == "bad_request"
        assert reason in answer.json["reason"]

    def test_json_depth_at_the_limit_is_accepted(self, api, v):
        nested = "[" * (JSON_DEPTH_MAX - 2) + "]" * (JSON_DEPTH_MAX - 2)
        assert api("PUT", f"/api/queues/{v}/q", f'{{"arguments": {{"a": {nested}}}}}', raw=True).status == 201

    def test_body_of_three_million_objects_is_413(self, user):
        """Parsing such a body in one call would block the loop for a second."""
        answer = user("management")("PUT", "/api/queues/%2F/q", "[" + "{}," * 3_000_000 + "{}]", raw=True)
        assert answer.status == 413
        assert "objects and lists" in answer.json["reason"]

    def test_too_large_body_is_413(self, api, v):
        answer = api("PUT", f"/api/queues/{v}/q", b" " * (BODY_BYTES_MAX + 1), raw=True)
        assert answer.status == 413

    def test_too_large_chunked_body_is_413(self, amqpd_broker, v):
        with socket.create_connection(("127.0.0.1", amqpd_broker.http_port), 60) as sock:
            head = f"PUT /api/queues/{v}/q HTTP/1.1\r\nHost: x\r\nAuthorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n"
            sock.sendall(head.encode() + b"Transfer-Encoding: chunked\r\n\r\n")
            chunk = b"10000\r\n" + b" " * 65536 + b"\r\n"
            sent = 0
            try:
                while sent <= BODY_BYTES_MAX + 4 * 65536:
                    sock.sendall(chunk)
                    sent += 65536
            except OSError:
                pass  # the broker closes the connection at the limit, as expected
            sock.settimeout(60)
            answer = b""
            try:
                while part := sock.recv(65536):
                    answer += part
            except ConnectionError:
                pass  # the broker resets the connection because bytes are unread
            assert b" 413 " in answer.split(b"\r\n")[0]

    @pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "x"])
    def test_compressed_body_is_415(self, api, v, coding):
        """The broker neither decompresses the body nor parses it as JSON."""
        packed = gzip.compress(b"{}")
        answer = api("PUT", f"/api/queues/{v}/q", packed, {"Content-Encoding": coding}, raw=True)
        assert answer.status == 415
        assert api("PUT", f"/api/queues/{v}/q", {}, {"Content-Encoding": "identity"}).status == 201

    @pytest.mark.parametrize("body", [b"zz\r\n{}\r\n", b"2\r\n{}xx\r\n0\r\n\r\n"])
    def test_broken_chunks_are_400(self, amqpd_broker, v, body):
        with socket.create_connection(("127.0.0.1", amqpd_broker.http_port), 60) as sock:
            head = f"PUT /api/queues/{v}/q HTTP/1.1\r\nHost: x\r\nAuthorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n"
            sock.sendall(head.encode() + b"Transfer-Encoding: chunked\r\n\r\n" + body)
            assert b" 400 " in sock.recv(1000).split(b"\r\n")[0]
        assert "Traceback" not in amqpd_broker.stderr

    def test_bytes_that_are_not_http_are_400(self, amqpd_broker, api):
        with socket.create_connection(("127.0.0.1", amqpd_broker.http_port), 60) as sock:
            sock.sendall(b"AMQP\x00\x00\x09\x01\r\n\r\n")
            assert b" 400 " in sock.recv(1000).split(b"\r\n")[0]
        assert api("GET", "/api/whoami").status == 200
        assert "Traceback" not in amqpd_broker.stderr


class TestCrossSiteRequests:
    """A page of another site must not change anything with the browser's credentials."""

    @pytest.mark.parametrize(
        "headers",
        [
            {"Origin": "http://evil.example"},
            {"Origin": "null"},
            {"Origin": "http://["},
            {"Sec-Fetch-Site": "cross-site"},
            {"Sec-Fetch-Site": "same-site"},
        ],
    )
    def test_cross_site_headers_are_refused(self, api, v, headers):
        assert api("PUT", f"/api/queues/{v}/q", {}, headers).status == 403
        assert api.get(f"/api/queues/{v}") == []

    def test_own_page_is_accepted(self, api, v):
        headers = {"Origin": f"http://127.0.0.1:{api.broker.http_port}", "Sec-Fetch-Site": "same-origin"}
        assert api("PUT", f"/api/queues/{v}/q", {}, headers).status == 201

    @pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
    def test_cross_site_form_with_json_body_is_refused(self, api, v, kind):
        """Browsers send a form to another site without preflight request. Their headers name the origin."""
        body = json.dumps({"durable": True})
        headers = {"Content-Type": kind, "Origin": "http://evil.example"}
        assert api("PUT", f"/api/queues/{v}/q", body, headers, raw=True).status == 403
        headers = {"Content-Type": kind, "Sec-Fetch-Site": "cross-site"}
        assert api("PUT", f"/api/queues/{v}/q", body, headers, raw=True).status == 403

    @pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded"])
    def test_json_with_content_type_of_curl_is_accepted(self, api, v, kind):
        body = json.dumps({"durable": True})
        assert api("PUT", f"/api/queues/{v}/q", body, {"Content-Type": kind}, raw=True).status == 201
        assert api("PUT", f"/api/queues/{v}/q", body, {"Content-Type": "multipart/form-data"}, raw=True).status == 415

    def test_other_origin_gets_no_cors_header(self, api):
        headers = api("GET", "/api/overview", headers={"Origin": "http://evil.example"}).headers
        assert "access-control-allow-origin" not in headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
