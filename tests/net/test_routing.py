"""The table of routes, without a socket."""

import pytest

from lapwing.net.server import answers
from lapwing.net.server.answers import Refused, compact
from lapwing.net.server.requests import BadEscape, Caller, Head, Query, Request, escape
from lapwing.net.server.routes import Route, Router, TlsRequired

ROUTER = Router(
    Route(method, path, lambda request: answers.OK)
    for method, path in (
        ("GET", "/ping"),
        ("POST", "/pub"),
        ("GET", "/stats"),
        ("POST", "/topic/create"),
        ("GET", "/config/<option>"),
        ("PUT", "/config/<option>"),
        ("GET", "/debug/pprof/"),
    )
)


def resolve(method, target, table=ROUTER):
    head = Head(method, target.encode("latin-1"), [], old=False, close=False)
    route, head.parameter = table.resolve(head)
    answer = route.respond(Request(head, b"", Caller(), 0.0))
    return answer, dict(answer.headers), head.parameter


def test_an_exact_path_is_found():
    assert resolve("GET", "/ping")[0] is answers.OK
    assert resolve("GET", "/p%69ng?x=1")[0] is answers.OK
    assert resolve("GET", "http://other.example/ping")[0] is answers.OK


@pytest.mark.parametrize("path", ["/", "/nope", "/pin", "/config", "/config/", "/config/a/b", "/put", "/ping/x"])
def test_what_is_not_there_is_404(path):
    answer, headers, _ = resolve("GET", path)

    assert (answer.status, answer.body, answer.nsq) == (404, b'{"message":"NOT_FOUND"}', True)
    assert headers == {}


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("POST", "/ping", "GET, OPTIONS"),
        ("HEAD", "/ping", "GET, OPTIONS"),
        ("GET", "/pub", "OPTIONS, POST"),
        ("POST", "/config/log_level", "GET, OPTIONS, PUT"),
    ],
)
def test_another_method_is_405_with_the_allowed_ones(method, path, allow):
    answer, headers, _ = resolve(method, path)

    assert (answer.status, answer.body) == (405, b'{"message":"METHOD_NOT_ALLOWED"}')
    assert headers == {"Allow": allow}


def test_options_says_what_is_allowed_without_a_body():
    answer, headers, _ = resolve("OPTIONS", "/config/log_level")

    assert (answer.status, answer.body, answer.nsq) == (200, b"", False)
    assert headers == {"Allow": "GET, OPTIONS, PUT"}
    assert resolve("OPTIONS", "*")[0].status == 200
    assert resolve("OPTIONS", "/nope")[0].status == 404


@pytest.mark.parametrize(
    ("method", "path", "location", "status"),
    [
        ("GET", "/ping/", "/ping", 301),
        ("GET", "/stats/?format=json", "/stats?format=json", 301),
        ("POST", "/pub/?topic=a", "/pub?topic=a", 307),
        ("GET", "/PING", "/ping", 301),
        ("POST", "/Pub?topic=a", "/pub?topic=a", 307),
        ("GET", "//ping", "/ping", 301),
        ("POST", "/topic//create", "/topic/create", 307),
        ("GET", "/debug/pprof", "/debug/pprof/", 301),
        ("GET", "/Config/Log_Level", "/config/Log_Level", 301),
        ("GET", "/config/a%0d%0ab/", "/config/a%0D%0Ab", 301),
    ],
)
def test_nearly_the_path_is_redirected_to_it(method, path, location, status):
    answer, headers, _ = resolve(method, path)

    assert (answer.status, headers) == (status, {"Location": location})
    assert bool(answer.body) is (method == "GET")


def test_a_near_miss_of_another_method_is_no_redirect():
    assert resolve("POST", "/PING")[0].status == 404


def test_a_parameter_is_one_segment_decoded():
    assert resolve("GET", "/config/log_level")[2] == "log_level"
    assert resolve("PUT", "/config/a%20b")[2] == "a b"


def test_tls_required_refuses_everything_alike():
    answer, _, _ = resolve("BREW", "/any", TlsRequired(4152))

    assert (answer.status, answer.body) == (403, b'{"message": "TLS_REQUIRED", "https_port": 4152}')


def test_the_first_value_counts_and_all_are_there():
    query = Query(b"topic=a&topic=b&x=1+2&y=%2B%23&empty=&bare")

    assert query["topic"] == "a"
    assert query.all("topic") == ["a", "b"]
    assert (query["x"], query["y"], query["empty"], query["bare"]) == ("1 2", "+#", "", "")


@pytest.mark.parametrize("raw", [b"a=%", b"a=%z1", b"%1=a", b"a=1;b=2", b"ok=1&x=%zz"])
def test_a_query_that_cannot_be_decoded_is_refused(raw):
    with pytest.raises(BadEscape):
        Query(raw)
    with pytest.raises(Refused) as caught:
        _ = Head("GET", b"/x?" + raw, [], old=False, close=False).query

    assert (caught.value.status, caught.value.code) == (400, "INVALID_REQUEST")


def test_a_missing_argument_is_named():
    request = Request(Head("GET", b"/x?topic=a", [], old=False, close=False), b"", Caller(), 0.0)

    assert request.argument("topic") == "a"
    with pytest.raises(Refused) as caught:
        request.argument("channel")
    assert caught.value.code == "MISSING_ARG_CHANNEL"


@pytest.mark.parametrize("target", [b"/a%zz", b"nothing", b"ftp://x/", b"*"])
def test_a_target_that_is_no_path_is_refused(target):
    with pytest.raises(BadEscape):
        Head("GET", target, [], old=False, close=False)


def test_json_is_compact_and_harmless_in_html():
    assert compact({"a": "<b>&\u2028", "c": [1, None]}) == b'{"a":"\\u003cb\\u003e\\u0026\\u2028","c":[1,null]}'
    assert compact("é") == '"é"'.encode()


def test_escape_leaves_nothing_that_means_something():
    assert escape("a b/ü\r\n") == "a%20b%2F%C3%BC%0D%0A"
