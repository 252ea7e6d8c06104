"""Filter strings: pyiceberg's syntax, read without recursion so that long and deep filters work."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NoReturn

from pyiceberg.expressions import AlwaysFalse, AlwaysTrue, And, BooleanExpression, Not, Or
from pyiceberg.expressions.literals import BooleanLiteral
from pyiceberg.expressions.parser import predicate as predicate_syntax
from pyparsing import ParseException

from sparkmeta.columns.tree import balanced
from sparkmeta.errors import InvalidFilterError, shown

if TYPE_CHECKING:
    from collections.abc import Iterator

_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<quoted>'(?:[^'\\]|''|\\.)*'|"(?:[^"\\]|\\.)*")|(?P<word>[\w$.]+)|(?P<other>[^\s'"]))""", re.DOTALL
)
_JUNCTIONS: Final = {"and": And, "or": Or}
_BINDING: Final = {"(": 0, "or": 1, "and": 2, "not": 3}
_EXPECTED: Final = (
    "expected one of: column < literal (also <= > >= = !=), column [NOT] IN (literals), column IS [NOT] NULL, "
    "column IS [NOT] NAN, column [NOT] LIKE 'prefix%', column BETWEEN literal AND literal, TRUE, FALSE"
)


def parse_text(text: str) -> BooleanExpression:
    """The expression that a filter string means; raises InvalidFilterError that names the text."""
    return _Parser(text).parse()


class _Parser:
    """Operator precedence parsing: operators wait on a stack until one comes that binds less."""

    def __init__(self, text: str) -> None:
        self.text = text
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
        self.operands.append(self._predicate(tokens.predicate()))

    def _predicate(self, text: str) -> BooleanExpression:
        try:
            parsed = predicate_syntax.parse_string(text, parse_all=True)[0]
        except ParseException as problem:
            raise self.error(f"{shown(text)} is no predicate: {_EXPECTED}") from problem
        except (ValueError, TypeError, ArithmeticError) as problem:
            raise self.error(f"{shown(text)}: {problem}") from problem
        if isinstance(parsed, BooleanLiteral):
            return AlwaysTrue() if parsed.value else AlwaysFalse()
        assert isinstance(parsed, BooleanExpression)
        return parsed

    def _reduce(self, binding: int) -> None:
        """Apply the waiting operators that bind more than the next one."""
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
        return InvalidFilterError(f"can't read the filter {shown(self.text)}: {problem}")


class _Tokens:
    """Keywords and parentheses in lower case, and the text of whole predicates."""

    def __init__(self, parser: _Parser) -> None:
        self.parser = parser
        self.tokens = list(self._scan())
        self.place = 0

    def _scan(self) -> Iterator[re.Match[str]]:
        text, end = self.parser.text.rstrip(), 0
        while end < len(text):
            if not (match := _TOKEN.match(text, end)):
                self.parser.fail(f"a quote without its end at character {end}")
            yield match
            end = match.end()

    def peek(self) -> str | None:
        if self.place == len(self.tokens):
            return None
        return self.tokens[self.place][0].strip().lower()

    def next(self) -> str | None:
        token = self.peek()
        self.place += 1
        return token

    def predicate(self) -> str:
        """The text up to the AND, OR or closing parenthesis that ends a predicate."""
        start = self.place
        depth, between = 0, False
        while (token := self.peek()) is not None:
            if depth == 0 and (token in (")", "or") or (token == "and" and not between)):
                break
            depth += {"(": 1, ")": -1}.get(token, 0)
            between = token == "between" or (between and token != "and")
            self.place += 1
        return self.parser.text[self.tokens[start].start() : self.tokens[self.place - 1].end()].strip()
