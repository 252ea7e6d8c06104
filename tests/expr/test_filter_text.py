"""Filter text means what pyiceberg's own parser says, also where this package reads it faster."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any
from unittest import mock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyiceberg.expressions import (
    And,
    BooleanExpression,
    EqualTo,
    GreaterThanOrEqual,
    In,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    NotIn,
    Or,
)
from pyiceberg.expressions.literals import DecimalLiteral, LongLiteral
from pyiceberg.expressions.parser import boolean_expression
from pyparsing import ParseException

from sparkmeta.errors import InvalidArgumentError, InvalidFilterError
from sparkmeta.expr import filter_text
from sparkmeta.expr.filter_text import as_text, listed_names, parse_text

COLUMNS = ("id", "_a$1", "st.x", "st . x", '"odd name"', '"a (1, 2)"', "not", "in", "true", "1a", "ü")
OPERATORS = ("<", "<=", ">", ">=", "=", "==", "!=", "<>", " like ", "=<", "")
INTEGERS = st.integers(-5, 5).map(str) | st.sampled_from(["+7", "007", "-0", "٣", "9" * 40])
DECIMALS = st.sampled_from(["1.5", "-.5", "2.", "+0.10", "1e3", "1.5e3", "."])
STRINGS = st.sampled_from(["'a'", "''", "'it''s'", "'(1, 2)'", "' and '", r"'a\%'", r"'\''", "'ü%'", "'a\nb'", "'"])
OTHERS = st.sampled_from(["true", "FALSE", "null", "x"])
LITERALS = INTEGERS | DECIMALS | STRINGS | OTHERS
SPACES = st.sampled_from(["", " ", "\n", "\t ", "\f", "\u2003"])


# pyiceberg's own function turns tabs into spaces before its grammar reads them, also in quotes.
GRAMMAR = boolean_expression.copy().parse_with_tabs()


def parse_by_pyiceberg(text: str) -> BooleanExpression:
    parsed: BooleanExpression = GRAMMAR.parse_string(text, parse_all=True)[0]
    return parsed


# Numbers with exponents, and text with line breaks, which pyiceberg does not read.
SPELLED = re.compile(r"\d[eE][+-]?\d|'[^']*[\n\r][^']*'")


@st.composite
def comparisons(draw: st.DrawFn) -> str:
    parts = [draw(st.sampled_from(COLUMNS)), draw(st.sampled_from(OPERATORS)), draw(LITERALS)]
    if draw(st.booleans()):
        parts.reverse()
    return draw(SPACES).join(parts)


@st.composite
def lists(draw: st.DrawFn) -> str:
    """Draw a list, mostly with literals of one kind, which pyiceberg expects."""
    kind = draw(st.sampled_from([INTEGERS, DECIMALS, STRINGS, OTHERS, LITERALS]))
    separator = f"{draw(SPACES)},{draw(SPACES)}"
    listed = separator.join(draw(st.lists(kind, max_size=5)))
    operator = draw(st.sampled_from([" in ", " NOT IN ", " In\n", " = ", " ", " between 1 and "]))
    column, end = draw(st.sampled_from(COLUMNS)), draw(st.sampled_from(["", "", "", ",", " 1", " in (1, 2)"]))
    return f"{column}{operator}({draw(SPACES)}{listed}{draw(SPACES)}){end}"


@example("id in (',\t ')")
@given(comparisons() | lists())
def test_predicates_are_those_of_pyiceberg(text: str) -> None:
    try:
        expected = parse_by_pyiceberg(text)
    except (ParseException, ValueError, TypeError, ArithmeticError):
        try:
            parsed = parse_text(text)
        except InvalidFilterError:
            return
        assert SPELLED.search(text) or is_of_mixed_numbers(parsed, text)
    else:
        assert with_kinds(parse_text(text)) == with_kinds(expected)


def is_of_mixed_numbers(parsed: BooleanExpression, text: str) -> bool:
    """Return whether one list of the filter contains both integers and decimals, which pyiceberg does not read."""
    literals = getattr(parsed, "literals", None) or [parsed.literal]  # type: ignore[attr-defined]
    numbers = [number.strip() for number in text[text.index("(", text.lower().index("in")) + 1 : -1].split(",")]
    return {type(literal) for literal in literals} <= {LongLiteral, DecimalLiteral} and (
        len({"." in number for number in numbers}) == 2
    )


@given(st.text(st.characters(exclude_characters="\\", exclude_categories=["Cs"])))
@example("a\nb")
@example("\r\n")
@example("\ue000\n\ue001")
@example('it\'s. "1e5"')
def test_every_text_is_a_literal(text: str) -> None:
    literal = "'{}'".format(text.replace("'", "''"))
    assert parse_text(f"x = {literal}") == EqualTo("x", text)
    assert parse_text(f"x between {literal} and 'z'") == And(GreaterThanOrEqual("x", text), LessThanOrEqual("x", "z"))
    assert parse_text(f"x not in ({literal}, 'other') and y < 1e0") == And(
        NotIn("x", {text, "other"}), LessThan("y", Decimal("1.0"))
    )


@given(st.floats(allow_nan=False, allow_infinity=False), st.sampled_from(["repr", "e", "E"]))
@example(5e-324, "repr")
@example(1e39, "repr")
def test_every_number_is_a_literal(number: float, spelling: str) -> None:
    text = repr(number) if spelling == "repr" else f"{number:.17{spelling}}"
    for predicate in (f"x = {text}", f"{text} = x", f"x in ({text})"):
        assert float(parse_text(predicate).literal.value) == number  # type: ignore[attr-defined]
    between = parse_text(f"x between {text} and {text}")
    assert float(between.left.literal.value) == number  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ['s."b.c"', '"s"."b.c"', '"s.b.c"', "s.b.c"])
def test_quoted_names_may_have_dots(name: str) -> None:
    assert parse_text(f"{name} = 1 or {name} is null") == Or(EqualTo("s.b.c", 1), IsNull("s.b.c"))


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1, max_size=3))
@example(["a.b", "c, d", ' "e" ', "f\\", "\n", "\ue000", ""])
def test_every_name_can_be_quoted(names: list[str]) -> None:
    quoted = ['"{}"'.format(name.replace("\\", "\\\\").replace('"', '\\"')) for name in names]
    assert listed_names(" , ".join(quoted)) == names
    assert parse_text(f"{quoted[0]} = 1 and {quoted[-1]} in (2, 3)") == And(EqualTo(names[0], 1), In(names[-1], {2, 3}))


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a, b.c ,*", ["a", "b.c", "*"]),
        ('s."a, b".c,it\'s', ["s.a, b.c", "it's"]),
        ("a,", ["a", ""]),
        ('"a"", "', ["a, "]),
    ],
)
def test_lists_of_names(text: str, names: list[str]) -> None:
    assert listed_names(text) == names


@pytest.mark.parametrize("text", ['"', 'a, "b', '"a\\"', 'a"b, c'])
def test_lists_of_names_without_the_end_of_a_quote(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="has a quote without its end"):
        listed_names(text)


@pytest.mark.parametrize("listed", ["1, 2.5", "2.5, 1", "-1 ,+2., 3", "1, 1.0"])
def test_lists_of_integers_and_decimals(listed: str) -> None:
    numbers = {LongLiteral(int(n)) if "." not in n else DecimalLiteral(Decimal(n)) for n in listed.split(",")}
    assert with_kinds(parse_text(f"x in ({listed})")) == with_kinds(In("x", numbers))
    assert with_kinds(parse_text(f"x not in ({listed}) or y = 1").left) == with_kinds(NotIn("x", numbers))  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "text",
    [
        "x < 1",
        "x IS NULL AND (y IS NOT NAN OR z LIKE 'it''s%')",
        "a.b IN (1, 2.5) OR x NOT IN ('a', 'b')",
        "(x = 1 OR y != 2) AND z >= 'a'",
    ],
)
def test_filters_are_shown_as_they_are_written(text: str) -> None:
    assert as_text(parse_text(text)) == text
    assert as_text(And(EqualTo("x", 1), Not(EqualTo("y", True)))) == "x = 1 AND y != true"


@pytest.mark.parametrize("operator", OPERATORS[:8])
@pytest.mark.parametrize("literal", ["1", "1.5", "'a'"])
def test_each_operator_is_that_of_pyiceberg(operator: str, literal: str) -> None:
    for text in (f"id {operator} {literal}", f"{literal} {operator} id"):
        assert with_kinds(parse_text(text)) == with_kinds(parse_by_pyiceberg(text))


def with_kinds(expression: BooleanExpression) -> Any:
    """Return an expression with the types of its literals, since literals of equal values are equal in pyiceberg."""
    if isinstance(expression, And | Or):
        return type(expression), with_kinds(expression.left), with_kinds(expression.right)
    if isinstance(expression, Not):
        return Not, with_kinds(expression.child)
    literals = getattr(expression, "literals", [getattr(expression, "literal", None)])
    kinds = sorted((type(literal).__name__, str(getattr(literal, "value", literal))) for literal in literals)
    return type(expression), str(getattr(expression, "term", "")), kinds


@pytest.mark.parametrize("listed", ["1, 2, 3", "1.5, 2.5", "'a', 'it''s'", "-1,+2"])
@pytest.mark.parametrize(("operator", "kind"), [("in", In), ("not in", NotIn)])
def test_pyiceberg_reads_one_literal_of_a_list(operator: str, kind: type[BooleanExpression], listed: str) -> None:
    with mock.patch.object(filter_text, "predicate_syntax", wraps=filter_text.predicate_syntax) as syntax:
        assert type(parse_text(f"x {operator} ({listed})")) is kind
    (read,) = (call.args[0] for call in syntax.parse_string.call_args_list)
    assert read == f"x {operator} ({listed.partition(',')[0]})"


def test_a_chain_of_comparisons_needs_no_grammar() -> None:
    with mock.patch.object(filter_text, "predicate_syntax") as syntax:
        parsed = parse_text(" or ".join(f"id = {number}" for number in range(1000)))
    syntax.parse_string.assert_not_called()
    assert isinstance(parsed, Or)


def test_equal_literals_of_a_list_are_one() -> None:
    assert parse_text("id in (1, 1, 01)") == EqualTo("id", 1)


HINTS = {
    'country = "NO"': "text has single quotes, 'NO'",
    'country in ("NO", "SE")': "text has single quotes, 'NO'",
    "country = \u2018NO\u2019": "straight single quotes",
    "country = NO": "it compares with a name: text has single quotes, 'NO'",
    "n = NULL": "no value equals NULL; use IS NULL or IS NOT NULL",
    "null != n": "no value equals NULL",
    "n in (1, NULL)": "no value equals NULL",
    "day = 2026-01-31": "dates and times are text in single quotes, without a keyword: '2026-01-31'",
    "day > date '2026-01-31'": "dates and times are text",
    "year(day) = 2026": "filters have no functions but lower, upper, variant_get, and no arithmetic or subqueries: ",
    "n + 1 = 5": "filters have no functions but lower, upper, variant_get, and no arithmetic",
    "day > current_date": "filters have no functions but",
    "not flag": "a condition on a boolean column compares it: column = true",
    "`n` = 5": "names of columns have double quotes, or none",
    "country = 'O'Brien'": "a quote in text is written twice: 'it''s'",
    "name = 'a \"b\" = null (2026-01-31)' x": "expected one of: column < literal",
}


@pytest.mark.parametrize("text", HINTS)
def test_hints_for_common_mistakes(text: str) -> None:
    with pytest.raises(InvalidFilterError) as refused:
        parse_text(text)
    assert HINTS[text] in str(refused.value)
    assert refused.value.__suppress_context__ or refused.value.__context__ is None
