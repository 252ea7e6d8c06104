"""Tables in SQL text: found by their names, and replaced without a change of anything else."""

from __future__ import annotations

import pytest

from sparkmeta.errors import UnsupportedError, ValidationError
from sparkmeta.views.sql_text import parse_query, translate_query

pytest.importorskip("sqlglot")


def template(text: str, *default: str) -> str:
    """The text with `{names}` in the place of each table, and columns qualified by its last name only."""
    query = parse_query(text, "v")
    names = {table: table.names if len(table.names) > 1 else (*default, *table.names) for table in query.tables}
    return query.template({table: ".".join(table.names) for table in query.tables}, names)


@pytest.mark.parametrize(
    ("text", "expected"),
    {
        "SELECT * FROM t": "SELECT * FROM {t} AS `t`",
        "select  1, '{t}' -- from t\nfrom  db . t  as x": "select  1, '{{t}}' -- from t\nfrom  {db.t}  as x",
        "SELECT t.id, db.t.*, c.db.t.a.b, x.db.t FROM c.db.t, db.x": (
            "SELECT t.id, `t`.*, `t`.a.b, x.db.t FROM {c.db.t} AS `t`, {db.x} AS `x`"
        ),
        "SELECT DB.T.id FROM db.t WHERE db.t.id > (SELECT max(id) FROM `d.b`.`a``b`)": (
            "SELECT `t`.id FROM {db.t} AS `t` WHERE `t`.id > (SELECT max(id) FROM {d.b.a`b} AS `a``b`)"
        ),
        "SELECT db.u.s FROM db.t u": "SELECT db.u.s FROM {db.t} u",
        "WITH t AS (SELECT * FROM t), u AS (SELECT * FROM t, u) SELECT * FROM T JOIN u JOIN w": (
            "WITH t AS (SELECT * FROM {t} AS `t`), u AS (SELECT * FROM t, {u} AS `u`) "
            "SELECT * FROM T JOIN u JOIN {w} AS `w`"
        ),
        "WITH t AS (SELECT * FROM u), u AS (SELECT 1) SELECT * FROM t, u": (
            "WITH t AS (SELECT * FROM {u} AS `u`), u AS (SELECT 1) SELECT * FROM t, u"
        ),
        "SELECT a.b.c FROM a.b.c": "SELECT a.b.c FROM {a.b.c} AS `c`",
        "WITH t AS (SELECT 1) SELECT (SELECT max(a) FROM t), * FROM (WITH u AS (SELECT 2) SELECT * FROM u), u, db.t": (
            "WITH t AS (SELECT 1) SELECT (SELECT max(a) FROM t), * FROM (WITH u AS (SELECT 2) SELECT * FROM u), "
            "{u} AS `u`, {db.t} AS `t`"
        ),
        "SELECT * FROM range(3), t TABLESAMPLE (10 PERCENT), u PIVOT (sum(x) FOR y IN (1, 2))": (
            "SELECT * FROM range(3), {t} TABLESAMPLE (10 PERCENT), {u} AS `u` PIVOT (sum(x) FOR y IN (1, 2))"
        ),
        "SELECT a FROM t UNION (SELECT a FROM db.t EXCEPT SELECT a FROM t x)": (
            "SELECT a FROM {t} AS `t` UNION (SELECT a FROM {db.t} AS `t` EXCEPT SELECT a FROM {t} x)"
        ),
        "SELECT e.id AS `ü{` FROM `ü`.`{e}` e": "SELECT e.id AS `ü{{` FROM {ü.{e}} e",
        "VALUES (1, '{'), (2, 'b')": "VALUES (1, '{'), (2, 'b')",
        "SELECT s.a.b.c.d.e FROM a.b.c.d.e": "SELECT s.a.b.c.d.e FROM {a.b.c.d.e} AS `e`",
        "SELECT a.b.c.d.e.x FROM a.b.c.d": "SELECT `d`.e.x FROM {a.b.c.d} AS `d`",
    }.items(),
)
def test_tables_are_replaced_in_place(text: str, expected: str) -> None:
    assert template(text) == expected


def test_recursion_and_lateral_views() -> None:
    text = "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r WHERE n < 3) SELECT * FROM r"
    assert template(text) == text
    text = "FROM t SELECT a LATERAL VIEW explode(b) e AS c"
    assert template(text) == text.replace("FROM t", "FROM {t} AS `t`")


def test_columns_by_the_full_name_of_a_table() -> None:
    text = "SELECT db.t.id, prod.db.t.id, other.t.id FROM t"
    assert template(text, "prod", "db") == "SELECT `t`.id, `t`.id, other.t.id FROM {t} AS `t`"


@pytest.mark.parametrize(
    "text", ["", "SELECT 1; SELECT 2", "DROP TABLE t", "INSERT INTO t SELECT 1", "CACHE TABLE t", "SELECT (1"]
)
def test_what_is_no_query(text: str) -> None:
    with pytest.raises(ValidationError, match=r"^v: its (SQL is not a query|query can't be parsed)"):
        parse_query(text, "v")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SELECT * FROM IDENTIFIER('db.t')", r"can't name tables by IDENTIFIER\('db.t'\)"),
        ("SELECT * FROM STREAM(db.t)", r"can't name tables by STREAM\(db.t\)"),
        ("SELECT * FROM f(table(db.t))", r"can't name tables by TABLE\(db.t\)"),
        (
            "SELECT * FROM db.t VERSION AS OF 5",
            "time travel is not supported .*: db.t VERSION AS OF 5",
        ),
        ("SELECT * FROM db.t TIMESTAMP AS OF '2026-01-01'", "time travel is not supported"),
    ],
)
def test_what_is_refused(text: str, message: str) -> None:
    with pytest.raises(UnsupportedError, match=f"^v: .*{message}"):
        parse_query(text, "v")


def test_translation() -> None:
    text = translate_query("SELECT \"a b\", d[1], date_add('day', 1, x) FROM t", "Trino", "spark", "v")
    assert text == "SELECT `a b`, d[0], DATE_ADD(x, 1) FROM t"
    with pytest.raises(UnsupportedError, match="v: its query in the dialect 'nothing' can't be translated to 'spark'"):
        translate_query("SELECT 1", "nothing", "spark", "v")
    with pytest.raises(UnsupportedError, match="can't be translated"):
        translate_query("SELECT (1", "trino", "spark", "v")
