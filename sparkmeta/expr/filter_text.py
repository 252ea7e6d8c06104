"""Parse filter strings in pyiceberg's syntax, without recursion, so that long and deep filters work."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, cast

from pyiceberg.expressions import (
    AlwaysFalse,
    AlwaysTrue,
    And,
    BooleanExpression,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNaN,
    IsNull,
    LessThan,
    LessThanOrEqual,
    LiteralPredicate,
    Not,
    NotEqualTo,
    NotIn,
    NotNaN,
    NotNull,
    NotStartsWith,
    Or,
    Reference,
    SetPredicate,
    StartsWith,
    UnaryPredicate,
    UnboundPredicate,
)
from pyiceberg.expressions.literals import BooleanLiteral, DecimalLiteral, LongLiteral, StringLiteral
from pyiceberg.expressions.parser import predicate as predicate_syntax
from pyparsing import ParseException

from sparkmeta.errors import InvalidArgumentError, InvalidFilterError, shown
from sparkmeta.expr.conditions import Junction, balanced, fold
from sparkmeta.expr.predicate_terms import TransformedColumn
from sparkmeta.spec.functions import CALL, NAMES, call_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyiceberg.expressions import UnboundTerm
    from pyiceberg.expressions.literals import Literal

# Literals of pyiceberg's grammar, except truth values and strings with backslashes, and their conversions. Kinds are
# tried in order. Lists contain literals of one kind, or integers and decimals, which pyiceberg does not mix.
_SPACE: Final = r"[ \t\n\r]*+"
_LITERALS: Final[dict[str, Callable[[str], Literal[Any]]]] = {
    r"'(?:[^'\n\r\\]|'')*+'": lambda text: StringLiteral(text[1:-1].replace("''", "'")),
    r"[+-]?(?:\d+\.\d*+|\.\d++)": lambda text: DecimalLiteral(Decimal(text)),
    r"[+-]?\d++": lambda text: LongLiteral(int(text)),
}
_LISTED: Final = (*_LITERALS, f"(?:{'|'.join([*_LITERALS][1:])})")
_LIST: Final = "|".join(f"{literal}(?:{_SPACE},{_SPACE}{literal})++" for literal in _LISTED)
_QUOTED_TEXT: Final = r"'(?:[^'\\]|''|\\.)*'"
_QUOTED_NAME: Final = r'"(?:[^"\\]|\\.)*"'
_TOKEN: Final = re.compile(
    rf"""\s*(?:(?P<list>\({_SPACE}(?:{_LIST}){_SPACE}\))"""
    rf"""|(?P<quoted>{_QUOTED_TEXT}|{_QUOTED_NAME})|(?P<word>[\w$.]+)|(?P<other>[^\s'"]))""",
    re.DOTALL,
)
# Quoted texts, numbers with exponents, and calls of functions.
_SPELLED: Final = re.compile(
    rf"{_QUOTED_TEXT}|{_QUOTED_NAME}|(?<![\w.$])(?P<number>[+-]?(?:\d+\.?\d*|\.\d+)[eE][+-]?\d+)(?![\w.])"
    rf"|(?<![\w.$]){CALL}",
    re.DOTALL,
)
_LISTED_NAME: Final = re.compile(rf'((?:{_QUOTED_NAME}|[^",])*),', re.DOTALL)
# Largest exponent of a number that is written out, since the grammar accepts no exponents. Doubles end at 308.
_MAX_EXPONENT: Final = 400
# pyiceberg's grammar accepts no line breaks in texts, turns tabs into spaces, and accepts none of the other characters
# in quoted names. While it parses, characters for private use that the filter lacks replace them all.
_NOT_IN_TEXTS: Final = "\n\r\t"
_NOT_IN_NAMES: Final = f'{_NOT_IN_TEXTS}."\\'
_PRIVATE: Final = range(0xE000, 0xF900)
_OPERATORS: Final = {
    "<": LessThan,
    "<=": LessThanOrEqual,
    ">": GreaterThan,
    ">=": GreaterThanOrEqual,
    "=": EqualTo,
    "==": EqualTo,
    "!=": NotEqualTo,
    "<>": NotEqualTo,
}
_SYMBOLS: Final = {kind: symbol for symbol, kind in reversed(_OPERATORS.items())}
_COMPARISON: Final = re.compile(
    rf"(?P<column>[A-Za-z_][A-Za-z0-9_$]*+){_SPACE}(?P<operator>[<>]=|==|!=|<>|[<>=]){_SPACE}(?P<literal>"
    + "|".join(_LITERALS)
    + ")"
)
_UNARY: Final = {IsNull: "IS NULL", NotNull: "IS NOT NULL", IsNaN: "IS NAN", NotNaN: "IS NOT NAN"}
_PREFIXES: Final = {StartsWith: "LIKE", NotStartsWith: "NOT LIKE"}
_SETS: Final = {In: "IN", NotIn: "NOT IN"}
# Maximum number of literals of a list, and of characters of a literal, in an error message.
_SHOWN_LITERALS: Final = 10
_SHOWN_CHARS: Final = 100
_JUNCTIONS: Final = {"and": And, "or": Or}
_BINDING: Final = {"(": 0, "or": 1, "and": 2, "not": 3}
_EXPECTED: Final = (
    "expected one of: column < literal (also <= > >= = !=), column [NOT] IN (literals), column IS [NOT] NULL, "
    "column IS [NOT] NAN, column [NOT] LIKE 'prefix%', column BETWEEN literal AND literal, TRUE, FALSE"
)

# Patterns that people write and the syntax lacks, in text without the content of its strings, and their replacements.
_OPERATOR: Final = r"(?:[<>]=?|[=!]=?=|<>|=)"
_HINTS: Final = {
    rf'{_OPERATOR}\s*"|\(\s*"|["\']\s*,\s*"|\blike\s+"': (
        "text has single quotes, 'NO'; double quotes are for names of columns"
    ),
    "[\u2018\u2019\u201c\u201d]": "text has straight single quotes, 'NO'",
    rf"{_OPERATOR}\s*null\b|\bnull\s*{_OPERATOR}|[(,]\s*null\b|\b(?:between|and)\s+null\b": (
        "no value equals NULL; use IS NULL or IS NOT NULL"
    ),
    r"\b\d{4}-\d\d?-\d\d?|\b(?:date|timestamp(?:_\w+)?|time)\s*\(?\s*'": (
        "dates and times are text in single quotes, without a keyword: '2026-01-31', '2026-01-31T12:00:00', and with "
        "the offset from UTC for timestamptz, '2026-01-31T12:00:00+00:00'"
    ),
    r"`": 'names of columns have double quotes, or none: "column" = 5',
    r"^(?:not\s+)?[A-Za-z_][\w.]*(?:\s+is(?:\s+not)?\s+(?:true|false))?$": (
        "a condition on a boolean column compares it: column = true"
    ),
    r"\b(?!(?:in|not|and|or)\b)[A-Za-z_]\w*\s*\(|\b(?:current_\w+|now|today)\b|\w\s*[-+*/%|&^]{1,2}\s*\w": (
        f"filters have no functions but {', '.join(NAMES)}, and no arithmetic or subqueries: compare the column itself "
        "with a literal, such as day >= '2026-01-01', or filter the rows that are read, in Spark"
    ),
    rf"{_OPERATOR}\s*[A-Za-z_][\w.]*$": (
        "it compares with a name: text has single quotes, 'NO'; columns can't be compared with each other"
    ),
}


def _hint(predicate: str) -> str | None:
    """Return what is wrong in a text that is not a predicate, and what to write instead; None if unknown."""
    text = re.sub(r"'(?:[^']|'')*'", "''", predicate)
    return next((hint for pattern, hint in _HINTS.items() if re.search(pattern, text, re.IGNORECASE)), None)


def parse_text(text: str) -> BooleanExpression:
    """Parse a filter string. Raises InvalidFilterError, which names the text."""
    return _Parser(text).parse()


def listed_names(text: str) -> list[str]:
    """Return the names of columns in a list with commas, in which names are quoted as in filters.

    Raises:
        InvalidArgumentError: a quote has no end.
    """
    names = _LISTED_NAME.findall(f"{text},")
    if ",".join(names) != text:
        raise InvalidArgumentError(f'{shown(text)} has a quote without its end; a quote in a quoted name is \\"')
    return [re.sub(_QUOTED_NAME, _unquoted, name.strip(), flags=re.DOTALL) for name in names]


def _unquoted(name: re.Match[str]) -> str:
    return re.sub(r"\\(.)", r"\1", name[0][1:-1], flags=re.DOTALL)


def as_text(expression: BooleanExpression) -> str:
    """Return an unbound filter as a filter string, with NOT pushed to the predicates, for error messages."""
    return fold(expression, lambda leaf, negated: _predicate_text(~leaf if negated else leaf), _junction_text).text


class _Shown(NamedTuple):
    """The text of an expression.

    Attributes:
        is_or: whether the text needs parentheses in an AND.
    """

    text: str
    is_or: bool = False


def _junction_text(junction: Junction, operands: Sequence[_Shown]) -> _Shown:
    if junction is Or:
        return _Shown(" OR ".join(operand.text for operand in operands), is_or=True)
    return _Shown(" AND ".join(f"({operand.text})" if operand.is_or else operand.text for operand in operands))


def _predicate_text(predicate: BooleanExpression) -> _Shown:
    kind: Any = type(predicate)
    if isinstance(predicate, AlwaysTrue | AlwaysFalse):
        return _Shown("TRUE" if isinstance(predicate, AlwaysTrue) else "FALSE")
    if not isinstance(predicate, UnboundPredicate):
        return _Shown(shown(predicate))
    name = predicate.term.name if isinstance(predicate.term, Reference) else predicate.term
    match predicate:
        case UnaryPredicate() if kind in _UNARY:
            return _Shown(f"{name} {_UNARY[kind]}")
        case SetPredicate() if kind in _SETS:
            return _Shown(f"{name} {_SETS[kind]} ({_list_text(predicate)})")
        case LiteralPredicate() if kind in _PREFIXES:
            return _Shown(f"{name} {_PREFIXES[kind]} {_literal_text(f'{predicate.literal.value}%')}")
        case LiteralPredicate() if kind in _SYMBOLS:
            return _Shown(f"{name} {_SYMBOLS[kind]} {_literal_text(predicate.literal.value)}")
    return _Shown(shown(predicate))


def _list_text(predicate: SetPredicate) -> str:
    values = [literal.value for literal in predicate.literals]
    try:
        values.sort()
    except TypeError:  # of several types
        values.sort(key=str)
    texts = [_literal_text(value) for value in values[:_SHOWN_LITERALS]]
    return ", ".join([*texts, "..."] if len(values) > _SHOWN_LITERALS else texts)


def _literal_text(value: Any) -> str:
    if isinstance(value, bool | Decimal):
        return str(value).lower()
    quoted = isinstance(value, str) and len(value) <= _SHOWN_CHARS
    return "'{}'".format(value.replace("'", "''")) if quoted else shown(value)


class _Parser:
    """An operator-precedence parser: operators stay on a stack until one with lower precedence follows."""

    def __init__(self, text: str) -> None:
        self.given = text
        unused = (chr(code) for code in _PRIVATE if chr(code) not in text)
        self.replaced = dict(zip(_NOT_IN_NAMES, unused, strict=False))
        # The name that stands for a call of a function -> the function, and its text.
        self.calls: dict[str, tuple[TransformedColumn, str]] = {}
        self._call_name = next(unused)
        self.text = _SPELLED.sub(self._respelled, text)
        self.operands: list[BooleanExpression] = []
        self.operators: list[str] = []

    def parse(self) -> BooleanExpression:
        tokens = _Tokens(self)
        while True:
            self._operand(tokens)
            while (token := tokens.next()) == ")":
                self._close()
            if token is None:
                return self._finish()
            if token not in _JUNCTIONS:
                self.fail(f"expected AND or OR before {shown(token)}")
            self._reduce(_BINDING[token])
            self.operators.append(token)

    def _operand(self, tokens: _Tokens) -> None:
        while (token := tokens.peek()) in ("not", "("):
            self.operators.append(tokens.next() or "")
        if token is None or token in (")", *_JUNCTIONS):
            self.fail(f"expected a predicate {'at its end' if token is None else f'before {token.upper()}'}")
        self.operands.append(self._predicate(*tokens.predicate()))

    def _predicate(self, text: str, literals: str | None) -> BooleanExpression:
        try:
            parsed = _comparison(text) if literals is None else _in_list(text, literals)
            parsed = parsed or predicate_syntax.parse_string(text, parse_all=True)[0]
        except ParseException:
            raise self.error(f"{shown(self._as_given(text))} is not a predicate: {self._hint(text)}") from None
        except (ValueError, TypeError, ArithmeticError) as problem:
            raise self.error(f"{shown(self._as_given(text))}: {problem}") from None
        if isinstance(parsed, BooleanLiteral):
            return AlwaysTrue() if parsed.value else AlwaysFalse()
        assert isinstance(parsed, BooleanExpression)
        return parsed if self.text == self.given else fold(parsed, self._restored, _joined)

    def _hint(self, text: str) -> str:
        """Return what to write instead of a text that is not a predicate."""
        return _hint(re.sub(rf'"{self._call_name}\d+"', "c", text)) or _EXPECTED

    def _respelled(self, match: re.Match[str]) -> str:
        """Return a quoted text, a number, or the call of a function as pyiceberg's grammar accepts it."""
        number = match["number"]
        if match["function"] is not None:
            return f'"{self._named_call(match)}"'
        if number is None and match[0][0] == '"':
            return f'"{self._replaced(_unquoted(match), _NOT_IN_NAMES)}"'
        if number is None:
            return self._replaced(match[0], _NOT_IN_TEXTS)
        value = Decimal(number)
        if abs(value.adjusted()) > _MAX_EXPONENT:
            return number
        text = f"{value:f}"
        return text if "." in text else f"{text}.0"

    def _named_call(self, match: re.Match[str]) -> str:
        """Return a name that stands for the call of a function."""
        try:
            function, column = call_of(match[0])
        except ValueError as problem:
            raise self.error(str(problem)) from None
        name = f"{self._call_name}{len(self.calls)}"
        self.calls[name] = TransformedColumn(function, column), match[0]
        return name

    def _replaced(self, text: str, characters: str) -> str:
        return text.translate({ord(each): self.replaced.get(each, each) for each in characters})

    def _as_given(self, text: str) -> str:
        """Return a text with the characters and calls that were replaced."""
        if self._call_name in text:
            text = re.sub(rf'"({self._call_name}\d+)"', lambda name: self.calls[name[1]][1], text)
        return text.translate({ord(character): given for given, character in self.replaced.items()})

    def _restored(self, leaf: BooleanExpression, _negated: bool) -> BooleanExpression:
        """Return a predicate in which the replaced calls, and characters of texts and names, are put back."""

        def restored(literal: Literal[Any]) -> Literal[Any]:
            return StringLiteral(self._as_given(literal.value)) if isinstance(literal, StringLiteral) else literal

        kind: Any = type(leaf)
        if not isinstance(leaf, UnboundPredicate) or not isinstance(leaf.term, Reference):
            return leaf
        name = leaf.term.name
        term: UnboundTerm = self.calls[name][0] if name in self.calls else Reference(self._as_given(name))
        if isinstance(leaf, SetPredicate):
            return cast("BooleanExpression", kind(term, {*map(restored, leaf.literals)}))
        if isinstance(leaf, LiteralPredicate):
            return cast("BooleanExpression", kind(term, restored(leaf.literal)))
        return cast("BooleanExpression", kind(term))

    def _reduce(self, binding: int) -> None:
        """Apply operators on the stack that have a higher precedence than the next one."""
        while self.operators and _BINDING[self.operators[-1]] > binding:
            operator = self.operators.pop()
            if operator == "not":
                self.operands.append(Not(self.operands.pop()))
            else:
                count = 2
                while self.operators and self.operators[-1] == operator:
                    self.operators.pop()
                    count += 1
                self.operands[-count:] = [balanced(self.operands[-count:], _JUNCTIONS[operator])]

    def _close(self) -> None:
        self._reduce(0)
        if not self.operators:
            self.fail("a ) without its (")
        self.operators.pop()

    def _finish(self) -> BooleanExpression:
        self._reduce(0)
        if self.operators:
            self.fail("a ( without its )")
        return self.operands[0]

    def fail(self, problem: str) -> NoReturn:
        raise self.error(problem)

    def error(self, problem: str) -> InvalidFilterError:
        return InvalidFilterError(f"can't read the filter {shown(self.given)}: {problem}")


def _joined(junction: Junction, operands: Sequence[BooleanExpression]) -> BooleanExpression:
    return balanced(operands, junction)


def _comparison(text: str) -> BooleanExpression | None:
    """Parse a column's comparison with a literal ten times as fast as pyiceberg's grammar; None for others."""
    if not (match := _COMPARISON.fullmatch(text)):
        return None
    comparison: BooleanExpression = _OPERATORS[match["operator"]](
        Reference(match["column"]), _literal(match["literal"])
    )
    return comparison


def _literal(text: str) -> Literal[Any]:
    return next(convert(text) for kind, convert in _LITERALS.items() if re.fullmatch(kind, text))


def _in_list(text: str, literals: str) -> BooleanExpression | None:
    """Parse a predicate with a list of literals. Only the first literal goes through pyiceberg's slow grammar."""
    kind = next(
        kind for kind in _LISTED if re.fullmatch(rf"\({_SPACE}{kind}(?:{_SPACE},{_SPACE}{kind})++{_SPACE}\)", literals)
    )
    values, convert = re.findall(kind, literals), _LITERALS.get(kind, _literal)
    comparison = predicate_syntax.parse_string(f"{text.removesuffix(literals)}({values[0]})", parse_all=True)[0]
    if not isinstance(comparison, EqualTo | NotEqualTo):
        return None
    set_predicate: Any = In if isinstance(comparison, EqualTo) else NotIn
    predicate: BooleanExpression = set_predicate(comparison.term, {*map(convert, values)})
    return predicate


class _Tokens:
    """A stream of keywords and parentheses in lower case, and of the texts of predicates."""

    def __init__(self, parser: _Parser) -> None:
        self.parser = parser
        self.tokens = list(self._scan())
        self.index = 0

    def _scan(self) -> Iterator[re.Match[str]]:
        text, end = self.parser.text.rstrip(), 0
        while end < len(text):
            if not (match := _TOKEN.match(text, end)):
                self.parser.fail(
                    f"a quote without its end at character {end}; a quote in text is written twice: 'it''s'"
                )
            yield match
            end = match.end()

    def peek(self) -> str | None:
        if self.index == len(self.tokens):
            return None
        return self.tokens[self.index][0].strip().lower()

    def next(self) -> str | None:
        token = self.peek()
        self.index += 1
        return token

    def predicate(self) -> tuple[str, str | None]:
        """Return the text of a predicate, up to an AND, OR or closing parenthesis, and the list at its end, if any."""
        start = self.index
        depth, between = 0, False
        while (token := self.peek()) is not None:
            if depth == 0 and (token in (")", "or") or (token == "and" and not between)):
                break
            depth += {"(": 1, ")": -1}.get(token, 0)
            between = token == "between" or (between and token != "and")
            self.index += 1
        last_token = self.tokens[self.index - 1]
        return self.parser.text[self.tokens[start].start() : last_token.end()].strip(), last_token["list"]
