"""What can be seen to be wrong with a query before Spark starts."""

import pytest

from lapwing.errors import ConfigError
from lapwing.tools.sql_check import check


@pytest.mark.parametrize(
    "sql",
    [
        "select 1",
        " SELECT * FROM `a.b` WHERE x = 'it''s' AND y = \"say \\\"hi\\\"\" ;",
        "with a as (select 1) select * from a",
        "(select 1) union (select 2)",
        "-- a comment ' with a quote\nselect r'\\' /* and ( another */",
        "from orders select count(*)",
        "select array(1)[0], map('a', 1)['a'], '(', `)`, trim(both from x), x::int, a -> a + 1",
        "select '\\'' as quote",
        "values (1), (2);;",
        "explain select `a``b`",
        "/* one /* in another */ still */ select /*+ broadcast(a) */ 1",
        "begin select 1; select 2; end",
    ],
)
def test_what_spark_may_understand_passes(sql: str) -> None:
    check(sql)


@pytest.mark.parametrize(
    ("sql", "what"),
    [
        ("", "the query is empty"),
        (" ; -- nothing", "the query is empty"),
        ("selct 1", "line 1: selct is no statement of SQL; did you mean select?"),
        ("orders", "line 1: orders is no statement of SQL; a query begins with select"),
        ("5", "5 is no statement of SQL"),
        ("select 'a", "the quote ' is not closed"),
        ('select "a', 'the quote " is not closed'),
        ("select `a", "the quote ` is not closed"),
        ("select 1 /* a", "the comment /* is not closed"),
        ("select (1", "the ( is not closed"),
        ("select 1)", "the ) closes nothing"),
        ("select (1]", "the ( is closed by a ]"),
        ("select 1; select 2", "one query expected, and here begins another"),
    ],
)
def test_a_mistake_is_named(sql: str, what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check(sql)

    assert what in str(caught.value)


def test_the_place_of_a_mistake_is_shown() -> None:
    with pytest.raises(ConfigError) as caught:
        check("select a,\n       count(b\nfrom orders")

    assert str(caught.value) == "sql: line 2: the ( is not closed\n         count(b\n              ^"
