"""Logins of the web page: the session cookie, access with it, its end, and protection against other sites."""

from __future__ import annotations

import json
import os
import threading
from hashlib import sha256
from urllib.parse import urlencode

import pytest

from amqpd.auth.internal_backend import NoSuchUser
from amqpd.management import sessions
from amqpd.management.sessions import USER_SESSIONS_MAX, LoginSessions, cookie, token_of

PAGE = {"Amqpd-Page": "1"}
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
SESSION_PATH = "/api/amqpd/session"


class Row:
    def __init__(self, password_hash: str) -> None:
        self.password_hash = password_hash


class Users:
    """The part of an authentication backend that sessions use."""

    def __init__(self, **hashes: str) -> None:
        self.rows = {name: Row(each) for name, each in hashes.items()}

    def user(self, name: str) -> Row:
        if name not in self.rows:
            raise NoSuchUser(name)
        return self.rows[name]


@pytest.fixture
def log_lines(monkeypatch) -> list[str]:
    """The warnings of the sessions module. They are caught before logging, which other tests may have configured."""
    lines: list[str] = []
    monkeypatch.setattr(sessions.log, "warning", lambda text, *values: lines.append(text % values))
    return lines


class TestSessions:
    def test_session_is_valid_until_expiry(self):
        now = [100.0]
        users = Users(ann="1")
        store = LoginSessions(60.0, None, lambda: now[0])
        token = store.open("ann", users)
        assert store.user(token, users) == "ann"
        now[0] += 59.9
        assert store.user(token, users) == "ann"
        assert store.remaining_s(token) == pytest.approx(0.1)
        now[0] += 0.1
        assert store.user(token, users) is None
        assert store.remaining_s(token) is None

    def test_session_ends_when_password_changes_or_user_is_deleted(self):
        users = Users(ann="1", bob="2")
        store = LoginSessions(60.0)
        tokens = [store.open(name, users) for name in ("ann", "bob", "bob")]
        users.rows["ann"] = Row("3")
        assert [store.user(token, users) for token in tokens] == [None, "bob", "bob"]
        users.rows["ann"] = Row("1")
        del users.rows["bob"]
        assert [store.user(token, users) for token in tokens] == [None, None, None]

    def test_login_removes_sessions_of_deleted_users_and_old_passwords(self, tmp_path):
        users = Users(ann="1", bob="2", eve="3")
        path = tmp_path / "page-sessions.json"
        store = LoginSessions(60.0, path)
        for name in ("ann", "bob", "eve"):
            store.open(name, users)
        users.rows["ann"] = Row("4")
        del users.rows["bob"]
        store.open("eve", users)
        store.wait_saved()
        assert [user for user, _, _ in json.loads(path.read_text("utf-8")).values()] == ["eve", "eve"]

    def test_too_many_logins_end_the_oldest_session_of_that_user_only(self):
        users = Users(ann="1", bob="2")
        store = LoginSessions(60.0)
        other = store.open("bob", users)
        tokens = [store.open("ann", users) for _ in range(USER_SESSIONS_MAX + 2)]
        assert [store.user(token, users) for token in tokens[:3]] == [None, None, "ann"]
        assert store.user(other, users) == "bob"
        assert len(set(tokens)) == len(tokens)

    def test_session_survives_restart_and_file_contains_no_token(self, tmp_path):
        users = Users(ann="1", bob="2")
        path = tmp_path / "page-sessions.json"
        store = LoginSessions(60.0, path)
        token, ended = store.open("ann", users), store.open("bob", users)
        store.end_by_digest(sha256(ended.encode()).hexdigest())
        store.wait_saved()
        assert token not in path.read_text("utf-8")
        assert path.stat().st_mode & 0o777 == 0o600
        reloaded = LoginSessions(60.0, path)
        assert reloaded.user(token, users) == "ann"
        assert reloaded.user(ended, users) is None
        users.rows["ann"] = Row("another")
        with_new_password = LoginSessions(60.0, path)
        assert with_new_password.user(token, users) is None
        with_new_password.wait_saved()

    @pytest.mark.parametrize(
        "text", ["", "[]", "{", '{"a": 1}', '{"a": [1, 2]}', '{"a": ["u", "p", "soon"]}', "null", '"x"']
    )
    def test_unreadable_file_ends_all_sessions(self, tmp_path, text, log_lines):
        path = tmp_path / "page-sessions.json"
        path.write_text(text, "utf-8")
        store = LoginSessions(60.0, path)
        assert "log in again" in log_lines[0]
        users = Users(ann="1")
        token = store.open("ann", users)
        store.wait_saved()
        assert LoginSessions(60.0, path).user(token, users) == "ann"

    def test_login_succeeds_when_file_cannot_be_written(self, tmp_path, log_lines):
        users = Users(ann="1")
        store = LoginSessions(60.0, tmp_path / "none" / "page-sessions.json")
        assert store.user(store.open("ann", users), users) == "ann"
        store.wait_saved()
        assert "will be lost at the next start" in log_lines[0]

    async def test_invented_token_is_refused(self):
        store = LoginSessions(60.0)
        for token in ("", "x" * 43, "x.", "x.y", "x.\xff", f"{'x' * 43}.bm9ib2R5"):
            assert store.user(token, Users()) is None
            assert await store.find(token, Users()) is None
            await store.close(token)

    def test_slow_disk_does_not_delay_logins(self, tmp_path, monkeypatch):
        users, path = Users(ann="1"), tmp_path / "page-sessions.json"
        may_open, opening = threading.Event(), threading.Event()

        def slow_open(*args: object, **kwargs: object) -> int:
            opening.set()
            may_open.wait(60)
            return real_open(*args, **kwargs)

        real_open = os.open
        monkeypatch.setattr(sessions.os, "open", slow_open)
        store = LoginSessions(60.0, path)
        tokens = [store.open("ann", users) for _ in range(3)]
        assert opening.wait(60)
        assert not path.exists()
        may_open.set()
        store.wait_saved()
        reloaded = LoginSessions(60.0, path)
        assert [reloaded.user(token, users) for token in tokens] == ["ann"] * 3


@pytest.mark.parametrize(
    ("host", "origin", "name"),
    [
        ("localhost:15672", "http://localhost:15672", "amqpd-session-15672"),
        ("broker.example", "https://broker.example", "__Host-amqpd-session"),
        ("[::1]:15671", "https://[::1]:15671", "__Host-amqpd-session-15671"),
        ("nonsense:port", "", "amqpd-session"),
    ],
)
def test_cookie_name_has_port_and_host_prefix_under_https(host, origin, name):
    headers = {"Host": host, "Origin": origin}
    set_cookie = cookie(headers, "TOKEN", 60)
    assert set_cookie.startswith(f"{name}=TOKEN; Path=/; HttpOnly; SameSite=Strict; Max-Age=60")
    assert set_cookie.endswith("; Secure") == origin.startswith("https")
    assert token_of({"Host": host, "Cookie": f"a=b;{name}=TOKEN; c=d=e"}) == "TOKEN"
    assert token_of({"Host": host, "Cookie": "amqpd-session-1=TOKEN"}) == ""


class TestOverHttp:
    @pytest.fixture
    def anonymous(self, api):
        return type(api)(api.broker, "")

    @pytest.fixture
    def user(self, api):
        api("PUT", "/api/users/ann", {"password": "secret", "tags": "monitoring"})
        api("PUT", "/api/permissions/%2F/ann", {"configure": ".*", "write": ".*", "read": ".*"})
        yield "ann"
        api("DELETE", "/api/users/ann", raw=True)

    def login(self, anonymous, name="ann", password="secret", headers=None):
        form = urlencode({"username": name, "password": password}).encode()
        return anonymous("POST", SESSION_PATH, form, {**FORM, **PAGE, **(headers or {})}, raw=True)

    def cookie(self, answer):
        return answer.headers["set-cookie"].partition(";")[0]

    def test_login_and_logout(self, anonymous, user):
        answer = self.login(anonymous)
        assert answer.status == 200
        assert (answer.json["name"], answer.json["tags"]) == ("ann", ["monitoring"])
        set_cookie_header = answer.headers["set-cookie"]
        assert "HttpOnly" in set_cookie_header and "SameSite=Strict" in set_cookie_header
        assert "secret" not in set_cookie_header
        session_headers = {**PAGE, "Cookie": self.cookie(answer)}
        assert anonymous("GET", "/api/whoami", headers=session_headers).json["name"] == "ann"
        assert 0 < anonymous("GET", SESSION_PATH, headers=session_headers).json["ends_in_s"] <= 28800
        logout = anonymous("DELETE", SESSION_PATH, headers=session_headers, raw=True)
        assert logout.status == 204
        assert "Max-Age=0" in logout.headers["set-cookie"]
        assert anonymous("GET", SESSION_PATH, headers=session_headers, raw=True).status == 401

    def test_wrong_password_gives_no_session_and_no_browser_prompt(self, anonymous, user):
        answer = self.login(anonymous, password="wrong")
        assert answer.status == 401
        assert answer.json["reason"] == "Login failed"
        assert "set-cookie" not in answer.headers
        assert "www-authenticate" not in answer.headers
        assert "www-authenticate" not in anonymous("GET", "/api/overview", headers=PAGE, raw=True).headers
        assert "www-authenticate" in anonymous("GET", "/api/overview", raw=True).headers

    def test_user_without_tag_gets_no_session(self, api, anonymous, user):
        api("PUT", "/api/amqpd/users/ann/tags", {"tags": ""})
        answer = self.login(anonymous)
        assert (answer.status, answer.json["reason"]) == (401, "Not management user")
        assert "set-cookie" not in answer.headers

    def test_changed_tags_and_password_apply_to_open_sessions(self, api, anonymous, user):
        session_headers = {**PAGE, "Cookie": self.cookie(self.login(anonymous))}
        assert anonymous("GET", "/api/nodes", headers=session_headers, raw=True).status == 200
        api("PUT", "/api/amqpd/users/ann/tags", {"tags": "management"})
        assert anonymous("GET", "/api/nodes", headers=session_headers, raw=True).status == 401
        api("PUT", "/api/amqpd/users/ann/password", {"password": "another"})
        answer = anonymous("GET", SESSION_PATH, headers=session_headers, raw=True)
        assert (answer.status, answer.json["reason"]) == (401, "Login failed")

    def test_change_by_cookie_needs_page_header_and_own_origin(self, anonymous, user):
        session_headers = {"Cookie": self.cookie(self.login(anonymous))}
        path = "/api/queues/%2F/made-by-cookie"
        refused = anonymous("PUT", path, {}, session_headers)
        assert (refused.status, refused.json["error"]) == (403, "forbidden")
        for foreign in ({"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "same-site"}):
            assert anonymous("PUT", path, {}, {**session_headers, **PAGE, **foreign}).status == 403
        assert anonymous("PUT", path, {}, {**session_headers, **PAGE}).status == 201
        assert anonymous("DELETE", path, headers={**session_headers, **PAGE}, raw=True).status == 204

    @pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
    def test_request_of_a_tab_that_shows_another_user_is_refused(self, anonymous, user, method):
        session_headers = {**PAGE, "Cookie": self.cookie(self.login(anonymous))}
        path = "/api/queues/%2F/of-a-tab"
        anonymous("PUT", path, {}, {**session_headers, "Amqpd-User": "%61nn"})
        for shown in ("bob", "ann%20", ""):
            refused = anonymous(method, path, headers={**session_headers, "Amqpd-User": shown}, raw=True)
            assert (refused.status, refused.json["reason"]) == (401, "Login failed")
        assert anonymous("DELETE", path, headers={**session_headers, "Amqpd-User": "ann"}, raw=True).status == 204

    def test_other_site_cannot_log_in(self, anonymous, user):
        for foreign in ({"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
            assert self.login(anonymous, headers=foreign).status == 403
        form = urlencode({"username": "ann", "password": "secret"}).encode()
        assert anonymous("POST", SESSION_PATH, form, FORM, raw=True).status == 403

    def test_basic_credentials_override_the_cookie(self, api, anonymous, user):
        session_cookie = self.cookie(self.login(anonymous))
        assert api("GET", "/api/whoami", headers={"Cookie": session_cookie}).json["name"] != "ann"

    def test_invalid_cookie_without_credentials_is_401(self, anonymous, user):
        name = self.cookie(self.login(anonymous)).partition("=")[0]
        assert anonymous("GET", SESSION_PATH, headers={**PAGE, "Cookie": f"{name}=made-up"}, raw=True).status == 401
