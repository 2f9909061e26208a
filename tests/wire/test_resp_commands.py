"""The words of each command: what they mean, and the line that answers what is wrong with them."""

import pytest

from lapwing.wire.resp import commands, replies
from lapwing.wire.resp.errors import ErrorReply
from lapwing.wire.resp.ids import GREATEST, GREATEST_PART, LEAST, NewId
from lapwing.wire.resp.parse_groups import (
    GroupOptions,
    NackMode,
    Xautoclaim,
    Xclaim,
    Xnack,
    Xpending,
    parse_group_options,
    parse_xautoclaim,
    parse_xclaim,
    parse_xinfo_full,
    parse_xnack,
    parse_xpending,
)
from lapwing.wire.resp.parse_reads import Position, Xrange, Xread, parse_position, parse_xrange, parse_xread
from lapwing.wire.resp.parse_server import (
    ClientFilter,
    Hello,
    Scan,
    parse_client_kill,
    parse_client_list,
    parse_hello,
    parse_scan,
)
from lapwing.wire.resp.parse_writes import (
    References,
    Trim,
    Xadd,
    Xcfgset,
    Xdelex,
    Xsetid,
    parse_xackdel,
    parse_xadd,
    parse_xcfgset,
    parse_xdelex,
    parse_xsetid,
    parse_xtrim,
)

NO_ID = "ERR Invalid stream ID specified as stream command argument"
NO_NUMBER = "ERR value is not an integer or out of range"
SYNTAX = "ERR syntax error"


def words(line: str) -> list[bytes]:
    """The words of a line; '' is an empty word."""
    return [b"" if word == "''" else word.encode() for word in line.split()]


PARSERS = {
    "xadd": parse_xadd,
    "xtrim": parse_xtrim,
    "xdelex": parse_xdelex,
    "xackdel": parse_xackdel,
    "xsetid": parse_xsetid,
    "xcfgset": parse_xcfgset,
    "xrange": parse_xrange,
    "xrevrange": parse_xrange,
    "xread": parse_xread,
    "xreadgroup": parse_xread,
    "xgroup|create": parse_group_options,
    "xgroup|setid": parse_group_options,
    "xpending": parse_xpending,
    "xclaim": parse_xclaim,
    "xautoclaim": parse_xautoclaim,
    "xnack": parse_xnack,
    "xinfo|stream": parse_xinfo_full,
    "hello": parse_hello,
    "scan": parse_scan,
    "client|list": parse_client_list,
    "client|kill": parse_client_kill,
}


def parsed(line: str) -> object:
    some = words(line)
    return PARSERS[commands.find(some).name](some)


# --- what is understood --------------------------------------------------------------------------------------------

FV = [b"f", b"v"]


@pytest.mark.parametrize(
    ("line", "meaning"),
    [
        ("XADD k * f v", Xadd(b"k", NewId(), FV)),
        ("xadd k 5-* f v g w", Xadd(b"k", NewId(5), [*FV, b"g", b"w"])),
        ("XADD k 5-6 MAXLEN 5", Xadd(b"k", NewId(5, 6), [b"MAXLEN", b"5"])),
        ("XADD k NOMKSTREAM MAXLEN 5 * f v", Xadd(b"k", NewId(), FV, Trim(5), create=False)),
        ("XADD k maxlen = 0 nomkstream * f v", Xadd(b"k", NewId(), FV, Trim(0), create=False)),
        ("XADD k MAXLEN ~ 5 LIMIT 7 * f v", Xadd(b"k", NewId(), FV, Trim(5, approximate=True, limit=7))),
        ("XADD k MINID 5-1 * f v", Xadd(b"k", NewId(), FV, Trim(min_id=(5, 1)))),
        ("XADD k ACKED MAXLEN 1 * f v", Xadd(b"k", NewId(), FV, Trim(1, references=References.ACKED))),
        ("XADD k MAXLEN 1 DELREF * f v", Xadd(b"k", NewId(), FV, Trim(1, references=References.DELREF))),
        ("XADD k IDMP p i * f v", Xadd(b"k", NewId(), FV, producer=b"p", idempotent_id=b"i")),
        ("XADD k IDMPAUTO p MAXLEN 3 * f v", Xadd(b"k", NewId(), FV, Trim(3), producer=b"p")),
        ("XTRIM k MAXLEN 5", (b"k", Trim(5))),
        ("XTRIM k MINID ~ 5 LIMIT 0 KEEPREF", (b"k", Trim(None, (5, 0), True, 0, References.KEEPREF))),
        ("XDELEX k IDS 2 1-1 2", Xdelex(b"k", [(1, 1), (2, 0)], References.KEEPREF)),
        ("XDELEX k acked ids 1 1-1", Xdelex(b"k", [(1, 1)], References.ACKED)),
        ("XACKDEL k g DELREF IDS 1 1-1", Xdelex(b"k", [(1, 1)], References.DELREF, b"g")),
        ("XSETID k 9-9 ENTRIESADDED 5 MAXDELETEDID 3-3", Xsetid(b"k", (9, 9), 5, (3, 3))),
        ("XCFGSET k IDMP-DURATION 5 IDMP-MAXSIZE 7", Xcfgset(b"k", 5, 7)),
        ("XRANGE k - + COUNT 5", Xrange(b"k", LEAST, GREATEST, 5)),
        ("XRANGE k (5-1 6 COUNT -3", Xrange(b"k", (5, 2), (6, GREATEST_PART), 0)),
        ("XREVRANGE k 6 5", Xrange(b"k", (5, 0), (6, GREATEST_PART), reverse=True)),
        ("XREAD COUNT 5 BLOCK 0 STREAMS a b 0 $", Xread([b"a", b"b"], [b"0", b"$"], 5, block=0)),
        ("XREAD MAXCOUNT 5 MAXSIZE 6 STREAMS streams 0", Xread([b"streams"], [b"0"], max_count=5, max_size=6)),
        (
            "XREADGROUP GROUP STREAMS COUNT COUNT -5 NOACK CLAIM 10 STREAMS k >",
            Xread([b"k"], [b">"], group=b"STREAMS", consumer=b"COUNT", acknowledge=True, claim=10),
        ),
        ("XGROUP CREATE k g $ MKSTREAM ENTRIESREAD 5", GroupOptions(True, 5)),
        ("XGROUP SETID k g 0 ENTRIESREAD -1", GroupOptions()),
        ("XPENDING k g", None),
        ("XPENDING k g - + 5", Xpending(LEAST, GREATEST, 5)),
        ("XPENDING k g IDLE 7 (5-1 (6-1 -5 c", Xpending((5, 2), (6, 0), 0, 7, b"c")),
        ("XPENDING k g - + 10 c d", Xpending(LEAST, GREATEST, 10, 0, b"c")),
        ("XCLAIM k g c -5 1-1 2", Xclaim(0, [(1, 1), (2, 0)])),
        (
            "XCLAIM k g c 5 1-1 IDLE 1 TIME 2 RETRYCOUNT 3 FORCE JUSTID LASTID 4-4",
            Xclaim(5, [(1, 1)], 1, 2, 3, True, True, (4, 4)),
        ),
        ("XCLAIM k g c 0 JUSTID", Xclaim(0, just_ids=True)),
        ("XAUTOCLAIM k g c 5 (1-1 COUNT 7 JUSTID", Xautoclaim(5, (1, 2), 7, True)),
        ("XNACK k g fail IDS 2 1-1 2-2", Xnack(NackMode.FAIL, [(1, 1), (2, 2)])),
        ("XNACK k g SILENT IDS 1 1-1 RETRYCOUNT 5 FORCE", Xnack(NackMode.SILENT, [(1, 1)], 5, True)),
        ("XINFO STREAM k", None),
        ("XINFO STREAM k FULL", 10),
        ("XINFO STREAM k full count 0", 0),
        ("HELLO", Hello()),
        ("HELLO 3 AUTH u p SETNAME n", Hello(3, b"u", b"p", b"n")),
        ("SCAN 0 MATCH p* COUNT 5 TYPE Stream", Scan(b"p*", b"stream")),
        ("CLIENT LIST", ClientFilter()),
        ("CLIENT LIST ID 1 2", ClientFilter(ids=frozenset([1, 2]))),
        ("CLIENT LIST TYPE normal", ClientFilter(type=b"normal")),
        ("CLIENT KILL 1.2.3.4:5", ClientFilter(address=b"1.2.3.4:5", skip_me=False)),
        ("CLIENT KILL ID 5 SKIPME no", ClientFilter(ids=frozenset([5]), skip_me=False)),
    ],
)
def test_words_have_a_meaning(line, meaning):
    assert parsed(line) == meaning


@pytest.mark.parametrize(
    ("word", "grouped", "place"),
    [(b"$", False, Position.END), (b"+", False, Position.LAST), (b">", True, Position.NEW), (b"5", True, (5, 0))],
)
def test_a_stream_is_read_from_a_place(word, grouped, place):
    assert parse_position(word, grouped=grouped) == place


# --- what is refused -----------------------------------------------------------------------------------------------

BOTH = "ERR syntax error, MAXLEN and MINID options at the same time are not compatible"


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("NOSUCHCMD", "ERR unknown command 'NOSUCHCMD'"),
        ("NOSUCHCMD a b", "ERR unknown command 'NOSUCHCMD', with args beginning with: 'a' 'b' "),
        ("XGROUP NOSUCH k", "ERR unknown subcommand 'NOSUCH'. Try XGROUP HELP."),
        ("XGROUP", "ERR wrong number of arguments for 'xgroup' command"),
        ("XGROUP CREATE k g", "ERR wrong number of arguments for 'xgroup|create' command"),
        ("ECHO a b", "ERR wrong number of arguments for 'echo' command"),
        ("xlen", "ERR wrong number of arguments for 'xlen' command"),
        ("CLIENT MAINT_NOTIFICATIONS ON", "ERR unknown subcommand 'MAINT_NOTIFICATIONS'. Try CLIENT HELP."),
        ("XADD k * f v g", "ERR wrong number of arguments for 'xadd' command"),
        ("XADD k MAXLEN 5 *", "ERR wrong number of arguments for 'xadd' command"),
        ("XADD k 0-0 f v", "ERR The ID specified in XADD must be greater than 0-0"),
        ("XADD k 0 f v", "ERR The ID specified in XADD must be greater than 0-0"),
        ("XADD k MAXLEN -1 * f v", "ERR The MAXLEN argument must be >= 0."),
        ("XADD k MAXLEN = x * f v", NO_NUMBER),
        ("XADD k MAXLEN * f v", NO_NUMBER),
        ("XADD k MINID - * f v", NO_ID),
        ("XADD k MINID 5 MAXLEN 5 * f v", BOTH),
        ("XADD k MAXLEN 5 MAXLEN 1 * f v", BOTH),
        ("XADD k LIMIT 5 * f v", "ERR syntax error, LIMIT cannot be used without specifying a trimming strategy"),
        ("XADD k MAXLEN 5 LIMIT 5 * f v", "ERR syntax error, LIMIT cannot be used without the special ~ option"),
        ("XADD k MAXLEN ~ 5 LIMIT -1 * f v", "ERR The LIMIT argument must be >= 0."),
        ("XADD k FOO f v", NO_ID),
        ("XADD k IDMP p i 1-1 f v", "ERR syntax error, IDMP/IDMPAUTO can be used only with auto-generated IDs"),
        ("XADD k IDMP p * f v", NO_ID),
        ("XADD k IDMP '' i * f v", "ERR syntax error, IDMP requires a non-empty producer ID"),
        ("XADD k IDMP p '' * f v", "ERR syntax error, IDMP requires a non-empty idempotent ID"),
        ("XADD k IDMP p i IDMPAUTO p * f v", "ERR syntax error, IDMP/IDMPAUTO specified multiple times"),
        ("XTRIM k FOO 5", SYNTAX),
        ("XTRIM k LIMIT 5 LIMIT 6", "ERR syntax error, LIMIT cannot be used without specifying a trimming strategy"),
        ("XTRIM k MAXLEN ~", NO_NUMBER),
        ("XDELEX k IDS 0 1-1", "ERR Number of IDs must be a positive integer"),
        ("XDELEX k IDS 2 1-1", "ERR The `numids` parameter must match the number of arguments"),
        ("XDELEX k FOO IDS 1 1-1", SYNTAX),
        ("XACKDEL k g IDS 1 x", NO_ID),
        ("XSETID k x", NO_ID),
        ("XSETID k 5 FOO", SYNTAX),
        ("XSETID k 5 ENTRIESADDED -1", "ERR entries_added must be positive"),
        (
            "XSETID k 5 MAXDELETEDID 9",
            "ERR The ID specified in XSETID is smaller than the provided max_deleted_entry_id",
        ),
        ("XCFGSET k FOO 5", SYNTAX),
        ("XCFGSET k IDMP-DURATION 0", "ERR IDMP-DURATION must be between 1 and 86400"),
        ("XRANGE k x +", NO_ID),
        ("XRANGE k - + COUNT", SYNTAX),
        ("XRANGE k - + COUNT x", NO_NUMBER),
        ("XREVRANGE k x -", NO_ID),
        ("XREAD COUNT x STREAMS k 0", NO_NUMBER),
        ("XREAD BLOCK x STREAMS k 0", "ERR timeout is not an integer or out of range"),
        ("XREAD BLOCK -1 STREAMS k 0", "ERR timeout is negative"),
        ("XREAD FOO STREAMS k 0", SYNTAX),
        ("XREAD COUNT 1 BLOCK 5", SYNTAX),
        (
            "XREAD STREAMS a b 0",
            "ERR Unbalanced 'xread' list of streams: for each stream key an ID, '+', or '$' must be specified.",
        ),
        (
            "XREADGROUP GROUP g c STREAMS a b >",
            "ERR Unbalanced 'xreadgroup' list of streams: for each stream key an ID or '>' must be specified.",
        ),
        (
            "XREAD GROUP g c STREAMS k >",
            "ERR The GROUP option is only supported by XREADGROUP. You called XREAD instead.",
        ),
        ("XREAD NOACK STREAMS k 0", "ERR The NOACK option is only supported by XREADGROUP. You called XREAD instead."),
        ("XREAD CLAIM 5 STREAMS k 0", SYNTAX),
        ("XREADGROUP COUNT 1 BLOCK 1 STREAMS k >", "ERR Missing GROUP option for XREADGROUP"),
        ("XREADGROUP GROUP g c CLAIM -1 STREAMS k >", "ERR min-idle-time must be a positive integer"),
        ("XREADGROUP GROUP g c CLAIM x STREAMS k >", "ERR min-idle-time is not an integer or out of range"),
        ("XREAD COUNT 5 MAXCOUNT 2 STREAMS k 0", "ERR MAXCOUNT must be greater than or equal to COUNT"),
        ("XREAD MAXCOUNT 0 STREAMS k 0", "ERR MAXCOUNT must be a positive integer"),
        ("XREAD MAXSIZE 0 STREAMS k 0", "ERR MAXSIZE must be a positive integer"),
        (
            "XGROUP CREATE k g $ FOO",
            "ERR unknown subcommand or wrong number of arguments for 'CREATE'. Try XGROUP HELP.",
        ),
        (
            "XGROUP SETID k g $ MKSTREAM",
            "ERR unknown subcommand or wrong number of arguments for 'SETID'. Try XGROUP HELP.",
        ),
        ("XGROUP CREATE k g 0 ENTRIESREAD -5", "ERR value for ENTRIESREAD must be positive or -1"),
        ("XPENDING k g -", SYNTAX),
        ("XPENDING k g IDLE 1", SYNTAX),
        ("XPENDING k g IDLE x - + 10", NO_NUMBER),
        ("XPENDING k g - x 10", NO_ID),
        ("XCLAIM k g c x 1-1", "ERR Invalid min-idle-time argument for XCLAIM"),
        ("XCLAIM k g c 0 x", "ERR Unrecognized XCLAIM option 'x'"),
        ("XCLAIM k g c 0 1-1 IDLE", "ERR Unrecognized XCLAIM option 'IDLE'"),
        ("XCLAIM k g c 0 1-1 IDLE x", "ERR Invalid IDLE option argument for XCLAIM"),
        ("XCLAIM k g c 0 1-1 LASTID x", NO_ID),
        ("XAUTOCLAIM k g c x 0", "ERR Invalid min-idle-time argument for XAUTOCLAIM"),
        ("XAUTOCLAIM k g c 0 $", NO_ID),
        ("XAUTOCLAIM k g c 0 0 COUNT x", "ERR COUNT must be > 0"),
        ("XAUTOCLAIM k g c 0 0 FOO", SYNTAX),
        ("XNACK k g FOO IDS 1 1-1", "ERR mode must be SILENT, FAIL, or FATAL"),
        ("XNACK k g FAIL IDS 2 1-1", "ERR number of IDs doesn't match numids"),
        ("XNACK k g FAIL IDS 1 1-1 2-2", "ERR number of IDs doesn't match numids"),
        ("XNACK k g FAIL FOO 1 1-1", SYNTAX),
        ("XINFO STREAM k FOO", "ERR unknown subcommand or wrong number of arguments for 'STREAM'. Try XINFO HELP."),
        ("XINFO STREAM k FULL COUNT x", NO_NUMBER),
        ("HELLO x", "ERR Protocol version is not an integer or out of range"),
        ("HELLO 4", "NOPROTO unsupported protocol version"),
        ("HELLO 3 AUTH u", "ERR Syntax error in HELLO option 'AUTH'"),
        ("SCAN x", "ERR invalid cursor"),
        ("SCAN 0 COUNT 0", SYNTAX),
        ("SCAN 0 MATCH", SYNTAX),
        ("CLIENT LIST ID x", "ERR Invalid client ID"),
        ("CLIENT LIST TYPE x", "ERR Unknown client type 'x'"),
        ("CLIENT KILL ID 0", "ERR client-id should be greater than 0"),
        ("CLIENT KILL FOO x", SYNTAX),
    ],
)
def test_wrong_words_get_the_line_that_clients_know(line, answer):
    with pytest.raises(ErrorReply) as refused:
        parsed(line)

    assert refused.value.line == answer


def test_an_unknown_command_repeats_about_128_bytes():
    answer = commands.errors.unknown_command([b"NOSUCHCMD", b"x" * 100, b"y" * 100, b"z" * 100]).line

    assert answer.endswith(f"'{'x' * 100}' '{'y' * 25}' ")


def test_every_command_has_its_place_in_the_table():
    for spec in commands.all_specs():
        name, _, sub = spec.name.partition("|")
        some = [name.encode(), *([sub.encode()] if sub else [])]
        some += [b"x"] * (abs(spec.arity) - len(some))
        if not spec.subcommands:
            assert commands.find(some) is spec
        assert spec.summary.endswith(".")


def test_keys_are_found():
    def keys(line: str) -> list[bytes]:
        some = words(line)
        return commands.keys_of(commands.find(some), some)

    assert keys("XADD k * f v") == [b"k"]
    assert keys("XREADGROUP GROUP g c STREAMS k1 k2 > >") == [b"k1", b"k2"]
    assert keys("DEL a b c") == [b"a", b"b", b"c"]
    assert keys("XGROUP CREATE k g $") == [b"k"]
    assert keys("PING") == []


# --- replies -------------------------------------------------------------------------------------------------------


def test_replies_differ_between_the_protocols():
    pairs = [("a", replies.integer(1))]

    assert replies.fields(pairs, 2) == b"*2\r\n$1\r\na\r\n:1\r\n"
    assert replies.fields(pairs, 3) == b"%1\r\n$1\r\na\r\n:1\r\n"
    assert (replies.null(2), replies.null_array(2), replies.null(3)) == (b"$-1\r\n", b"*-1\r\n", b"_\r\n")
    assert replies.verbatim("x\n", 3) == b"=6\r\ntxt:x\n\r\n"
    assert replies.verbatim("x\n", 2) == b"$2\r\nx\n\r\n"
    assert replies.streams([(b"k", 0, [])], 2) == b"*1\r\n*2\r\n$1\r\nk\r\n*0\r\n"
    assert replies.streams([(b"k", 0, [])], 3) == b"%1\r\n$1\r\nk\r\n*0\r\n"
    assert replies.streams([], 2) == b"*-1\r\n"


def test_an_error_stays_on_its_line():
    assert replies.error(ErrorReply("ERR a\r\nb \xff")) == b"-ERR a  b \xff\r\n"
