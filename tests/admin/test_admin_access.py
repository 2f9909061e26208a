"""Who may do what, and what the door lets through."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from admin_stage import start_nsqadmin

from daemons import program, until
from lapwing.admin.access import AccessRules, Logins, hash_password, inside, parse_networks, read_passwords
from lapwing.admin.asgi import WebRoute, WebRoutes, headers_of
from lapwing.admin.audit import Audit
from lapwing.admin.firewall import host_allowed, same_origin
from lapwing.admin.login import _local
from lapwing.errors import ConfigError

# ---- rules, pure ----


def visitor(access, headers=None, peer="127.0.0.1", cookies=None):
    return access.visitor(headers or {}, peer, cookies or {})


def test_everybody_may_change_when_no_admin_is_named():
    assert visitor(AccessRules()).may_change


def test_the_header_counts_only_from_a_trusted_proxy():
    access = AccessRules(admin_users=("ann",), trusted_proxies=parse_networks(["127.0.0.1/8"]))
    named = {"x-forwarded-user": "ann"}

    assert visitor(access, named, "127.0.0.5").may_change
    assert not visitor(access, named, "10.1.2.3").may_change
    assert visitor(access, named, "10.1.2.3").user == ""
    assert not visitor(access, {"x-forwarded-user": "bob"}).may_change
    assert visitor(access, {"x-forwarded-user": "bob"}).may_read


def test_without_named_proxies_no_header_names_a_user_or_an_address():
    access = AccessRules(logins=Logins({}))
    found = visitor(access, {"x-forwarded-user": "ann", "x-forwarded-for": "203.0.113.9"})

    assert (found.user, found.may_read, found.may_change) == ("", False, False)
    assert found.address == "127.0.0.1"


def test_the_client_is_the_last_hop_that_is_no_trusted_proxy():
    access = AccessRules(trusted_proxies=parse_networks(["127.0.0.1/8", "10.0.0.0/24"]))

    def address(hops: str) -> str:
        return visitor(access, {"x-forwarded-for": hops}).address

    assert address("6.6.6.6, 203.0.113.9") == "203.0.113.9"
    assert address("6.6.6.6, 203.0.113.9, 10.0.0.7") == "203.0.113.9"
    assert address("10.0.0.8, 10.0.0.7") == "10.0.0.8"
    assert address("") == "127.0.0.1"


def test_a_header_sent_twice_is_read_as_one():
    scope = {"headers": [(b"X-Forwarded-For", b"6.6.6.6"), (b"x-forwarded-for", b"203.0.113.9"),
                         (b"X-Forwarded-User", b"ann"), (b"X-Forwarded-User", b"eve")]}  # fmt: skip

    assert headers_of(scope) == {"x-forwarded-for": "6.6.6.6, 203.0.113.9", "x-forwarded-user": "ann, eve"}


def test_read_only_beats_everything():
    assert not visitor(AccessRules(read_only=True)).may_change


def test_strangers_see_nothing_where_a_user_is_required():
    access = AccessRules(require_user=True, trusted_proxies=parse_networks(["127.0.0.1/8"]))

    assert not visitor(access).may_read
    assert visitor(access, {"x-forwarded-user": "ann"}).may_read


def test_networks_know_mapped_addresses():
    networks = parse_networks(["127.0.0.1/8", "::1/128"])

    assert inside(networks, "::ffff:127.0.0.1")
    assert inside(networks, "::1")
    assert not inside(networks, "")
    with pytest.raises(ConfigError):
        parse_networks(["nonsense"])


async def test_a_session_opens_with_the_right_password_and_closes():
    logins = Logins({"ann": hash_password("secret")})
    token = await logins.open("ann", "secret", "10.0.0.1")

    assert token is not None
    assert logins.user(token) == "ann"
    assert await logins.open("ann", "wrong", "10.0.0.1") is None
    assert await logins.open("nobody", "secret", "10.0.0.1") is None
    logins.close(token)
    assert logins.user(token) == ""


async def test_who_guesses_too_often_has_to_wait():
    now = [0.0]
    logins = Logins({"ann": hash_password("secret")}, clock=lambda: now[0])
    for _ in range(5):
        await logins.open("ann", "wrong", "10.0.0.1")

    assert await logins.open("ann", "secret", "10.0.0.1") is None
    assert await logins.open("ann", "secret", "10.0.0.2") is not None
    now[0] += 31.0
    assert await logins.open("ann", "secret", "10.0.0.1") is not None


def test_a_password_file_is_checked_line_by_line(tmp_path):
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.write_text(f"# users\n\nann:{hash_password('x')}\n")
    bad.write_text("ann:plain\n")

    assert list(read_passwords(str(good))) == ["ann"]
    with pytest.raises(ConfigError, match="line 1"):
        read_passwords(str(bad))


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("127.0.0.1:4171", True),
        ("[::1]:4171", True),
        ("localhost:4171", True),
        ("nsqadmin:4171", True),
        ("me.example.org", True),
        ("ui.example.org", True),
        ("evil.example.net:4171", False),
        ("127.0.0.1.evil.net", False),
        ("", False),
    ],
)
def test_a_foreign_name_that_points_at_us_is_not_us(host, allowed):
    assert host_allowed(host, ["ui.example.org"], ["me.example.org"]) is allowed


@pytest.mark.parametrize(
    ("headers", "same"),
    [
        ({}, True),
        ({"origin": "http://ui:4171"}, True),
        ({"origin": "https://ui:4171"}, True),  # TLS ends at a proxy
        ({"origin": "http://evil.example"}, False),
        ({"origin": "null"}, False),
        ({"origin": "http://ui:4171", "sec-fetch-site": "cross-site"}, False),
        ({"sec-fetch-site": "none"}, True),
    ],
)
def test_a_change_has_to_come_from_our_own_page_or_from_none(headers, same):
    assert same_origin(headers, ["ui:4171"]) is same


@pytest.mark.parametrize(
    ("target", "safe"),
    [
        ("/nsq/topics?x=1", "/nsq/topics?x=1"),
        ("//evil.example/nsq/", "/nsq"),
        ("https://evil.example", "/nsq"),
        ("/nsq/\\evil", "/nsq"),
        ("/other", "/nsq"),
        ("", "/nsq"),
    ],
)
def test_after_the_login_one_stays_here(target, safe):
    assert _local(target, "/nsq") == safe


def test_routes_find_names_with_escapes():
    async def nobody(request):
        raise AssertionError("not asked")

    routes = WebRoutes([WebRoute("GET", "/topics/<topic>", nobody)])

    assert routes.resolve("GET", "/topics/a%2Fb%23ephemeral")[1] == {"topic": "a/b#ephemeral"}


def test_the_audit_outlives_a_restart(tmp_path):
    path = tmp_path / "audit.jsonl"
    Audit(str(path)).write("ann", "10.0.0.1", "pause_topic", topic="t")
    path.write_text(path.read_text() + "torn li")
    again = Audit(str(path))

    assert [(entry.user, entry.action, entry.topic) for entry in again.entries()] == [("ann", "pause_topic", "t")]


def test_an_audit_file_that_cannot_be_written_stops_nobody(tmp_path):
    audit = Audit(str(tmp_path / "audit"))
    (tmp_path / "audit").unlink()
    (tmp_path / "audit").mkdir()
    audit.write("ann", "10.0.0.1", "pause_topic", topic="t")

    assert "cannot be written" in audit.trouble
    assert len(audit.entries()) == 1


# ---- the real daemon ----


ANN = {"X-Forwarded-User": "ann"}


def test_only_admins_change_and_the_body_is_not_even_looked_at(guarded, cluster):
    url = f"{guarded.url}/nsq/api/topics"

    assert httpx.post(url, content=b"nonsense").json() == {"message": "FORBIDDEN"}
    assert httpx.delete(f"{url}/orders", headers={"X-Forwarded-User": "bob"}).status_code == 403
    assert httpx.post(url, json={"topic": "t"}, headers=ANN).status_code == 200
    assert httpx.get(url).status_code == 200
    assert cluster.a.calls == []


def test_the_base_path_is_everywhere(guarded):
    for path, status in (("/", 404), ("/api/topics", 404), ("/nsq", 200), ("/nsq/topics", 200), ("/nsqx", 404)):
        assert httpx.get(guarded.url + path).status_code == status, path
    redirect = httpx.get(f"{guarded.url}/nsq/")
    assert (redirect.status_code, redirect.headers["location"]) == (301, "/nsq")
    assert httpx.get(f"{guarded.url}/nsq/api/topics/").headers["location"] == "/nsq/api/topics"


def test_changes_are_announced_and_audited(guarded, cluster):
    httpx.post(f"{guarded.url}/nsq/api/topics/orders", json={"action": "pause"}, headers=ANN, auth=("basil", "x"))
    until(lambda: "/notify" in cluster.lookupd.calls, what="the notification")

    told = cluster.lookupd.notified[-1]
    assert (told["action"], told["topic"], told["user"]) == ("pause_topic", "orders", "basil")
    assert told["url"] == f"{guarded.url}/nsq/api/topics/orders"
    last = json.loads(guarded.audit.read_text().splitlines()[-1])
    assert (last["user"], last["action"], last["topic"], last["outcome"]) == ("ann", "pause_topic", "orders", "")


def test_behind_a_proxy_the_user_and_their_address_are_the_proxys_word(guarded, cluster):
    named = {**ANN, "X-Forwarded-For": "6.6.6.6, 203.0.113.9", "X-Forwarded-Proto": "https"}
    answer = httpx.post(f"{guarded.url}/nsq/api/topics/orders", json={"action": "unpause"}, headers=named)

    last = json.loads(guarded.audit.read_text().splitlines()[-1])
    assert answer.status_code == 200
    assert (last["user"], last["address"]) == ("ann", "203.0.113.9")  # the last hop is what the proxy itself saw


def test_config_is_for_the_configured_network_only(guarded):
    assert httpx.get(f"{guarded.url}/nsq/config/log_level").json() == {"message": "FORBIDDEN"}


def test_the_configuration_is_changed_by_admins_only_and_audited(shared_cluster, starting, tmp_path_factory):
    audit = tmp_path_factory.mktemp("config") / "audit.jsonl"
    lookupd = f"--lookupd-http-address={shared_cluster.lookupd.address}"
    guarded = starting(lookupd, "--admin-user=ann", "--trusted-proxy=127.0.0.1/32", f"--audit-file={audit}")
    still = starting(lookupd, "--read-only")
    path = "/config/nsqlookupd_http_addresses"
    other = json.dumps([shared_cluster.lookupd.address, "127.0.0.1:1"])

    assert httpx.put(guarded.url + path, content=other).json() == {"message": "FORBIDDEN"}
    assert httpx.put(f"{guarded.url}/config/log_level", content="debug").status_code == 403
    assert httpx.put(still.url + path, content=other).status_code == 403
    assert httpx.get(guarded.url + path).json() == [shared_cluster.lookupd.address]
    assert httpx.put(guarded.url + path, content=other, headers=ANN).json() == json.loads(other)
    entries = [json.loads(line) for line in audit.read_text().splitlines()]
    assert [(entry["user"], entry["action"], entry["outcome"][:7]) for entry in entries] == [
        ("", "set_option", "refused"),
        ("", "set_option", "refused"),
        ("ann", "set_option", ""),
    ]
    assert entries[-1]["detail"] == f"nsqlookupd_http_addresses={other}"


@pytest.mark.parametrize(
    "value", ["nonsense", "[1]", '["127.0.0.1"]', '["http://127.0.0.1:4161/"]', "[]", "null", "[" * 99_999]
)
def test_addresses_that_cannot_be_asked_are_not_taken_over(nsqadmin, shared_cluster, value):
    path = f"{nsqadmin.url}/config/nsqlookupd_http_addresses"

    assert httpx.put(path, content=value).json() == {"message": "INVALID_VALUE"}
    assert httpx.get(path).json() == [shared_cluster.lookupd.address]


def test_the_configuration_shows_no_password(shared_cluster, starting):
    daemon = starting(
        f"--lookupd-http-address={shared_cluster.lookupd.address}",
        "--graphite-url=http://ann:sesame@127.0.0.1:1/graphite",
        "--notification-http-endpoint=http://bob:open@127.0.0.1:1/hook?token=abc",
    )

    assert httpx.get(f"{daemon.url}/config/graphite_url").text == "http://ann:***@127.0.0.1:1/graphite"
    shown = httpx.get(f"{daemon.url}/config/notification_http_endpoint").text
    assert shown == "http://bob:***@127.0.0.1:1/hook?***"


def test_another_sites_page_can_change_nothing(nsqadmin, cluster):
    url = f"{nsqadmin.url}/api/topics/orders"
    evil = {"Origin": "http://evil.example"}

    assert httpx.post(url, json={"action": "empty"}, headers=evil).status_code == 403
    assert httpx.delete(url, headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403
    assert httpx.post(url, json={"action": "pause"}, headers={"Origin": nsqadmin.url}).status_code == 200
    assert cluster.a.calls == ["/topic/pause?topic=orders"]


def test_a_rebound_name_gets_no_page(nsqadmin):
    answer = httpx.get(f"{nsqadmin.url}/", headers={"Host": "evil.example:4171"})

    assert answer.status_code == 403
    assert "--allowed-host" in answer.text


def test_a_rebound_page_reads_nothing_whatever_headers_it_adds(nsqadmin):
    """To the browser it is of the same origin: it may add any header, not change the Host, nor hide its language."""
    evil = {"Host": "evil.example", "X-Forwarded-Host": "localhost", "X-Forwarded-User": "ann", "Accept-Language": "en"}
    for path in ("/", "/api/topics", "/config/log_level"):
        assert httpx.get(nsqadmin.url + path, headers=evil).status_code == 403, path
    script = {"Host": "nsqadmin.example"}  # curl and the like, by a name that we do not know
    assert httpx.get(f"{nsqadmin.url}/api/topics", headers=script).status_code == 200


def upgrade(url: str, **headers: str) -> int:
    """The status of a websocket handshake."""
    given = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
        **headers,
    }
    with httpx.stream("GET", f"{url}/_nicegui_ws/socket.io/?EIO=4&transport=websocket", headers=given) as answer:
        return answer.status_code


def test_websockets_are_for_our_own_pages(nsqadmin):
    assert upgrade(nsqadmin.url, Origin="http://evil.example") == 403
    assert upgrade(nsqadmin.url) == 403
    assert upgrade(nsqadmin.url, Origin="http://evil.example", Host="evil.example") == 403
    assert upgrade(nsqadmin.url, Origin=nsqadmin.url) == 101
    polling = f"{nsqadmin.url}/_nicegui_ws/socket.io/?EIO=4&transport=polling"
    assert httpx.get(polling, headers={"Origin": "http://evil.example"}).status_code == 403


def test_pages_carry_a_policy_without_inline_script_or_eval(nsqadmin):
    answer = httpx.get(f"{nsqadmin.url}/")
    policy = answer.headers["content-security-policy"]
    nonce = policy.partition("'nonce-")[2].partition("'")[0]

    assert "default-src 'none'" in policy
    script = next(part for part in policy.split("; ") if part.startswith("script-src"))
    assert script == f"script-src 'self' 'nonce-{nonce}'"
    tags = re.findall("<(?:script|style)[^>]*>", answer.text)
    assert len(tags) > 5
    assert all(f' nonce="{nonce}"' in tag for tag in tags)
    assert answer.headers["x-frame-options"] == "DENY"
    assert nonce not in httpx.get(f"{nsqadmin.url}/").text


@pytest.mark.parametrize("path", ["/topics/%3Cscript%3Ealert(1)%3C%2Fscript%3E", "/messages?topic=%3Cscript%20x%3E"])
def test_markup_in_an_address_gets_no_nonce_and_is_no_tag(nsqadmin, path):
    usual = httpx.get(f"{nsqadmin.url}/topics").text
    odd = httpx.get(f"{nsqadmin.url}{path}").text

    assert odd.count(" nonce=") == usual.count(" nonce=")
    assert odd.count("<script") == usual.count("<script")


def test_the_built_in_login(shared_cluster, starting, tmp_path_factory):
    path = tmp_path_factory.mktemp("login") / "passwords"
    made = subprocess.run(
        [*program("nsqadmin"), "--hash-password=ann"],
        input="open sesame\n",
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    path.write_text(made.stdout)
    daemon = starting(f"--lookupd-http-address={shared_cluster.lookupd.address}", f"--password-file={path}")
    forged = {"X-Forwarded-User": "ann"}
    assert httpx.get(f"{daemon.url}/api/topics", headers=forged).status_code == 401
    assert httpx.post(f"{daemon.url}/api/topics", json={"topic": "t"}, headers=forged).status_code == 401
    with httpx.Client(base_url=daemon.url) as http:
        stranger = http.get("/topics?x=1")
        wrong = http.post("/login", data={"user": "ann", "password": "<b>no"})
        refused = http.get("/api/topics")
        form = {"user": "ann", "password": "open sesame", "next": "/topics"}
        foreign = http.post("/login", data=form, headers={"Origin": "http://evil.example"})
        entered = http.post("/login", data=form)
        inside = http.get("/api/topics")
        left = http.post("/logout")
        outside = http.get("/api/topics")

    assert (stranger.status_code, stranger.headers["location"]) == (303, "/login?next=%2Ftopics%3Fx%3D1")
    assert (wrong.status_code, "Wrong name or password" in wrong.text) == (401, True)
    assert (refused.status_code, foreign.status_code) == (401, 403)
    assert (entered.status_code, entered.headers["location"]) == (303, "/topics")
    assert "HttpOnly; SameSite=Strict" in entered.headers["set-cookie"]
    assert (inside.status_code, left.status_code, outside.status_code) == (200, 303, 401)


def test_a_forged_address_does_not_reset_the_guessing_limit(shared_cluster, starting, tmp_path_factory):
    path = tmp_path_factory.mktemp("guessing") / "passwords"
    path.write_text(f"ann:{hash_password('open sesame')}\n")
    daemon = starting(f"--lookupd-http-address={shared_cluster.lookupd.address}", f"--password-file={path}")
    with httpx.Client(base_url=daemon.url) as http:
        guesses = [
            http.post(
                "/login",
                data={"user": "ann", "password": "no"},
                headers={"X-Forwarded-For": f"203.0.113.{number}"},
            ).status_code
            for number in range(6)
        ]

    assert guesses == [401, 401, 401, 401, 429, 429]


def test_an_admin_whom_nobody_can_name_is_warned_of(shared_cluster, starting):
    daemon = starting(f"--lookupd-http-address={shared_cluster.lookupd.address}", "--admin-user=ann")

    assert httpx.post(f"{daemon.url}/api/topics", json={"topic": "t"}, headers=ANN).status_code == 403
    warning = next(line for line in daemon.lines if "--admin-user" in line)
    assert "--trusted-proxy" in warning
    assert "--password-file" in warning


@pytest.mark.parametrize(
    ("flags", "status", "words"),
    [
        ([], 1, "required"),
        (["--lookupd-http-address=127.0.0.1:1", "--require-user"], 1, "--trusted-proxy"),
        (["--lookupd-http-address=127.0.0.1:1", "--trusted-proxy=proxy"], 1, "CIDR"),
        (["--nsqd-http-address=a:1", "--lookupd-http-address=b:2"], 1, "not both"),
        (["--lookupd-http-address=127.0.0.1"], 1, "missing port"),
        (["--lookupd-http-address=127.0.0.1:1", "--http-client-tls-cert=x"], 1, "tls"),
        (["--lookupd-http-address=127.0.0.1:1", "--allow-config-from-cidr=x"], 1, "CIDR"),
        (["--lookupd-http-address=127.0.0.1:1", "--proxy-graphite", "--graphite-url=::"], 1, "graphite"),
        (["--lookupd-http-address=127.0.0.1:1", "--proxy-graphite", "--graphite-url=http://[x"], 1, "graphite"),
        (["--lookupd-http-address=127.0.0.1:1", "--graphite-url=http://g", "--statsd-interval=0s"], 1, "longer"),
        (["--lookupd-http-address=127.0.0.1:99999"], 1, "host:port"),
        (["--lookupd-http-address=::1:4161"], 1, "host:port"),
        (["--lookupd-http-address=127.0.0.1:1", "--http-address=127.0.0.1:99999"], 1, "host:port"),
        (["--lookupd-http-address=127.0.0.1:1", "--http-address=127.0.0.1"], 1, "host:port"),
        (["--lookupd-http-address=127.0.0.1:1", "--audit-file=/"], 1, "cannot open the audit file /: Is a directory"),
        (["--lookupd-http-address=127.0.0.1:1", "--audit-file=/proc/x/y"], 1, "No such file"),
        (["--nonsense"], 2, "not defined"),
    ],
)
def test_what_cannot_work_is_said_at_the_start(flags, status, words):
    ended = subprocess.run(
        [*program("nsqadmin"), "--http-address=127.0.0.1:0", *flags],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert ended.returncode == status
    assert words in ended.stderr
    if status == 1:
        assert ended.stderr.startswith("failed to instantiate nsqadmin - ")


@pytest.mark.parametrize(("user", "typed"), [("ann", "\n"), ("ann", ""), ("a:b", "secret\n")])
def test_a_line_for_the_password_file_needs_a_name_and_a_password(user, typed):
    ended = subprocess.run(
        [*program("nsqadmin"), f"--hash-password={user}"],
        input=typed,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (ended.returncode, ended.stdout) == (1, "")
    assert "a password is needed" in ended.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_in_order_while_it_starts_too(number):
    starting = subprocess.Popen(
        [*program("nsqadmin"), "--http-address=127.0.0.1:0", "--lookupd-http-address=127.0.0.1:1"],
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert starting.stderr is not None
    first = starting.stderr.readline()  # before it loads its pages
    starting.send_signal(number)
    rest = starting.communicate(timeout=60)[1]

    assert "nsqadmin v1.3.0" in first
    assert (starting.returncode, "Traceback" in rest) == (0, False), rest


def test_it_ends_in_order(cluster):
    daemon = start_nsqadmin(f"--lookupd-http-address={cluster.lookupd.address}")

    assert daemon.stop() == 0


def test_the_libraries_of_the_pages_are_no_part_of_the_start(cluster):
    """Importing them takes several times the CPU of everything else that a start needs."""
    code = "import sys, lapwing.cli.nsqadmin, lapwing.admin.daemon; print('nicegui' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    with start_nsqadmin(f"--lookupd-http-address={cluster.lookupd.address}", env={}) as daemon:  # not forked
        paths = ("/ping", "/api/topics", "/static/lapwing.css", "/", "/topics")
        answers = [httpx.get(daemon.url + path, timeout=60.0).status_code for path in paths]

        assert done.stdout == "False\n"
        assert answers == [200] * 5
        assert "pydantic_core" in Path(f"/proc/{daemon.pid}/maps").read_text()
        assert daemon.stop() == 0
        assert "Traceback" not in daemon.stderr
