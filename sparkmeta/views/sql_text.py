"""Find and replace the names of tables in SQL text, and translate SQL between dialects, with sqlglot.

Only names are replaced, so that Spark runs the rest of the query unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sparkmeta.errors import UnsupportedError, ValidationError, first_line, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

SPARK = "spark"

# Functions whose arguments are names that Spark would look up by itself.
_LOOKUPS = {"identifier", "stream", "table"}


@dataclass(frozen=True)
class TableName:
    """A table in a query. Its name is not the name of a common table expression.

    Attributes:
        names: the parts of the name.
        start: the index of the first character of the name in the query's text.
        end: the index after the last character.
        needs_alias: whether columns are qualified by the name, since there is no alias.
    """

    names: tuple[str, ...]
    start: int
    end: int
    needs_alias: bool


@dataclass(frozen=True)
class Query:
    """A query in Spark's SQL whose tables are known.

    Attributes:
        text: the SQL text.
        tables: the tables, in any order.
        columns: the columns qualified by more than a table's name: each part, and the start and end of its text.
    """

    text: str
    tables: tuple[TableName, ...]
    columns: tuple[tuple[tuple[str, int, int], ...], ...]

    def template(self, frames: Mapping[TableName, str], full_names: Mapping[TableName, tuple[str, ...]]) -> str:
        """Return the text for `spark.sql(text, **frames)`, which looks up no table by its name.

        Args:
            frames: the keyword argument for each table.
            full_names: the catalog, namespace and name of each table. They may qualify its columns.
        """
        if not frames:
            return self.text
        changes = [(table.start, table.end, _frame(table, frames[table])) for table in self.tables]
        unaliased = {full_names[table] for table in self.tables if table.needs_alias}
        for parts in self.columns:
            changes += _unqualified(parts, unaliased)
        pieces, end = [], 0
        for start, next_end, replacement in sorted(changes):
            pieces += [_escaped(self.text[end:start]), replacement]
            end = next_end
        return "".join([*pieces, _escaped(self.text[end:])])


def parse_query(text: str, view: str) -> Query:
    """Find the tables and qualified columns of a query in Spark's SQL.

    Args:
        text: the SQL text.
        view: the view, for error messages.

    Raises:
        ValidationError: the text is not one query.
        UnsupportedError: sqlglot is not installed, or a table is not given by a simple name.
    """
    sqlglot = _sqlglot()
    try:
        statements = sqlglot.parse(text, read=SPARK)
    except sqlglot.errors.SqlglotError as error:
        raise ValidationError(f"{view}: its query can't be parsed: {first_line(error)}: {shown(text)}") from error
    if len(statements) != 1 or not isinstance(statements[0], sqlglot.exp.Query | sqlglot.exp.Values):
        raise ValidationError(f"{view}: its SQL is not a query: {shown(text)}")
    for function in statements[0].find_all(sqlglot.exp.Anonymous):
        if function.name.casefold() in _LOOKUPS:
            raise UnsupportedError(f"{view}: a query of a view can't name tables by {function.sql(SPARK)}")
    tables = (_table_name(table, text, view) for table in statements[0].find_all(sqlglot.exp.Table))
    columns = (_column(column) for column in statements[0].find_all(sqlglot.exp.Column))
    return Query(text, tuple(filter(None, tables)), tuple(filter(None, columns)))


def translate_query(text: str, dialect: str, to_dialect: str, view: str) -> str:
    """Translate SQL text.

    Raises:
        UnsupportedError: sqlglot is not installed, does not know a dialect, or can't translate the text faithfully.
    """
    sqlglot = _sqlglot()
    try:
        statements: list[str] = sqlglot.transpile(
            text, read=dialect.casefold(), write=to_dialect.casefold(), unsupported_level=sqlglot.ErrorLevel.RAISE
        )
    except (sqlglot.errors.SqlglotError, ValueError) as error:
        raise UnsupportedError(
            f"{view}: its query in the dialect {shown(dialect)} can't be translated to {shown(to_dialect)}: "
            f"{first_line(error)}: {shown(text)}"
        ) from error
    return "; ".join(statements)


def _sqlglot() -> Any:
    try:
        import sqlglot
        import sqlglot.errors
    except ModuleNotFoundError as error:
        raise UnsupportedError("reading views needs sqlglot: pip install 'sparkmeta[views]'") from error
    return sqlglot


def _table_name(table: Any, text: str, view: str) -> TableName | None:
    """Return the name of a table; None for a table function or the name of a common table expression."""
    exp = _sqlglot().exp
    if isinstance(table.this, exp.Func):
        return None
    names = tuple(part.name for part in table.parts)
    if len(names) == 1 and names[0].casefold() in _expressions_in_reach(table):
        return None
    if table.args.get("version") or table.args.get("when"):
        raise UnsupportedError(f"{view}: time travel is not supported in the queries of views: {table.sql(SPARK)}")
    parts = _parts(table)
    if parts is None:
        raise UnsupportedError(
            f"{view}: table {'.'.join(names)} can't be located in the text of the query: {shown(text)}"
        )
    # An alias comes after a sample, if there is one; then the name itself has none.
    needs_alias = not table.alias and not table.args.get("sample")
    return TableName(names, parts[0][1], parts[-1][2], needs_alias)


def _expressions_in_reach(table: Any) -> Iterator[str]:
    """Return the names of the common table expressions that a table can refer to."""
    exp = _sqlglot().exp
    ancestors, node = {id(table)}, table.parent
    while node is not None:
        clause = node.args.get("with_")
        for expression in clause.expressions if isinstance(clause, exp.With) else ():
            is_inside = id(expression) in ancestors
            if not is_inside or clause.recursive:
                yield expression.alias.casefold()
            if is_inside:
                break
        ancestors.add(id(node))
        node = node.parent


def _column(column: Any) -> tuple[tuple[str, int, int], ...] | None:
    """Return the parts of a column that may begin with a table's name of several parts; else None."""
    exp = _sqlglot().exp
    name = column
    while isinstance(name.parent, exp.Dot):
        name = name.parent
    return _parts(name) if len(name.parts) > 2 else None


def _parts(node: Any) -> tuple[tuple[str, int, int], ...] | None:
    """Return the parts of a name with the starts and ends of their text, or None if these are unknown."""
    parts = [(part.name, part.meta.get("start"), part.meta.get("end")) for part in node.parts]
    if any(start is None or end is None for _, start, end in parts):
        return None
    return tuple((name, start, end + 1) for name, start, end in parts)


def _unqualified(
    parts: Sequence[tuple[str, int, int]], full_names: set[tuple[str, ...]]
) -> Iterator[tuple[int, int, str]]:
    """Yield the change that qualifies a column by the table's alias instead of a full name."""
    folded = [name.casefold() for name, _, _ in parts]
    for length in range(len(parts) - 1, 1, -1):
        for full_name in full_names:
            if folded[:length] == [name.casefold() for name in full_name[-length:]]:
                yield parts[0][1], parts[length - 1][2], _escaped(_quoted(full_name[-1]))
                return


def _frame(table: TableName, frame: str) -> str:
    return f"{{{frame}}}" + (f" AS {_escaped(_quoted(table.names[-1]))}" if table.needs_alias else "")


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _escaped(text: str) -> str:
    """Escape braces for `str.format`."""
    return text.replace("{", "{{").replace("}", "}}")
