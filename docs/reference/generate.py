"""Write the reference pages that come from code: `mkdocs` runs this script for each build.

A page is text, and the code is the only place where its facts are written down.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import mkdocs_gen_files
import pyiceberg.exceptions

import sparkmeta
from sparkmeta import errors
from sparkmeta.checks import about_option, option_fields, rule_of, rule_of_option, usual_value
from sparkmeta.cli import main
from sparkmeta.inspect.inspect_table import MetadataTables
from sparkmeta.maintain.maintenance import Maintenance
from sparkmeta.maintain.plans import Plan, RewritePlan
from sparkmeta.service.app import ENDPOINTS
from sparkmeta.settings import PREFIX, Settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
# What a table property's name begins with.
_NAME = r"((?:write|read|commit|history|gc|schema\.name-mapping)\.[a-z0-9.*-]*[a-z*])"
_PROPERTY, _DESCRIBED = re.compile(f'"{_NAME}"'), re.compile(f"`{_NAME}`")


def page(name: str, title: str, about: str, body: Iterable[str]) -> None:
    """Write a page of the reference."""
    with mkdocs_gen_files.open(f"reference/{name}.md", "w") as file:
        file.write("\n".join([f"# {title}", "", about, "", *body, ""]))


def table(heads: Iterable[str], rows: Iterable[Iterable[Any]]) -> list[str]:
    """Return the lines of a table."""
    heads = list(heads)
    cells = ([str(cell).replace("|", "&#124;").replace("\n", " ") for cell in row] for row in rows)
    return [f"| {' | '.join(heads)} |", "|" + " --- |" * len(heads), *(f"| {' | '.join(row)} |" for row in cells), ""]


def code(value: Any) -> str:
    return f"`{value}`" if "|" not in str(value) else f"<code>{escape(str(value)).replace('|', '&#124;')}</code>"


def sections(docstring: str | None) -> tuple[str, dict[str, str]]:
    """Return the text of a docstring, and its sections by their heads."""
    text = inspect.cleandoc(docstring or "")
    parts = re.split(r"\n\n(Args|Returns|Raises|Attributes|Yields):\n", "\n" + text)
    return parts[0].strip(), dict(zip(parts[1::2], map(inspect.cleandoc, parts[2::2]), strict=True))


def markdown(text: str) -> str:
    """Return a docstring's text as Markdown: double backquotes are single ones, and `<` is no tag outside of code."""
    parts = text.replace("``", "`").split("`")
    return "`".join(part if place % 2 else part.replace("<", "&lt;") for place, part in enumerate(parts))


# -- The pages --------------------------------------------------------------------------------------------------------


def settings() -> Iterator[str]:
    rows = []
    for each in fields(Settings):
        default = each.default if each.default != "" else "none"
        if isinstance(default, int):
            default = f"{default >> 20}m"
        name = each.name.replace("_", "-")
        rows.append((code(PREFIX + name), code(f"SPARKMETA_{each.name.upper()}"), code(default), each.metadata["doc"]))
    yield from table(("setting", "variable of the environment", "default", "meaning"), rows)


def metadata_tables() -> Iterator[str]:
    for name, method in vars(MetadataTables).items():
        if name.startswith("_"):
            continue
        text, parts = sections(method.__doc__)
        about, _, columns = text.partition("Columns: ")
        yield from (f"## {name}", "", markdown(about.strip()), "")
        if choices := [each for each in inspect.signature(method).parameters if each != "self"]:
            yield from (f"Arguments: {', '.join(map(code, choices))}.", "")
        if columns:
            yield from table(("column", "type", "meaning"), columns_of(columns))
        if "Raises" in parts:
            yield from ("Raises:", "", *raised(parts["Raises"]), "")


def columns_of(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield the names, type and meaning of columns that a docstring lists, as in `a, b long (meaning), c string.`"""
    names = []
    for part in re.split(r",\s+(?![^(<]*[)>])", " ".join(text.split()).removesuffix(".")):
        if (column := re.fullmatch(r"(\w+)(?: (\w+(?:<.*>)?))?(?: \((.*)\))?", part)) is None:
            raise ValueError(f"{part!r} in {text!r}: expected a column, as in 'name type (meaning)'")
        names.append(code(column[1]))
        if column[2]:
            yield ", ".join(names), code(column[2]), markdown(column[3] or "")
            names = []


def raised(section: str) -> Iterator[str]:
    """Yield a line for each error of a section."""
    for name, problem in re.findall(r"^(\w+): (.*(?:\n +.*)*)", section, re.MULTILINE):
        yield f"- `{name}`: {markdown(' '.join(problem.split()))}"


def maintenance() -> Iterator[str]:
    for name, method in vars(Maintenance).items():
        if name.startswith("_") or not callable(method):
            continue
        kind = getattr(method, "options", None)
        text, parts = sections(inspect.unwrap(method).__doc__)
        yield from (f"## {name}", "", markdown(text), "")
        if kind is not None:
            yield from table(("option", "default", "meaning"), (_option(each) for each in option_fields(kind)))
        elif "Args" in parts:
            yield from ("Arguments:", "", *raised(parts["Args"]), "")
        if "Raises" in parts:
            yield from ("Raises:", "", *raised(parts["Raises"]), "")
        yield from plan_members(inspect.unwrap(method))
    yield from ("::: sparkmeta.Plan", "")


def plan_members(method: Any) -> Iterator[str]:
    """Yield lines about the plan that a method returns: its rows, its summary, and what other plans do not have."""
    kind = _returned(method)
    if not issubclass(kind, Plan):
        return
    yield from (f"`to_df()`: {markdown(sections(kind.to_df.__doc__)[0])}", "")
    names = [each.name for each in fields(_returned(kind.summary))]
    yield from (f"`summary()` has the fields {', '.join(map(code, names))}.", "")
    # The other members of the class are for commits.
    further = {name: each for name, each in vars(kind).items() if name not in {*dir(RewritePlan), "apply"}}
    for name, each in further.items():
        member = getattr(each, "func", each)
        if not name.startswith("_") and inspect.isfunction(member):
            yield from (f"`{name}`: {markdown(sections(member.__doc__)[0])}", "")


def _returned(function: Any) -> type:
    """Return the class of what a function of a plan's module returns."""
    function = inspect.unwrap(function)
    kind: type = function.__globals__[function.__annotations__["return"].partition("[")[0]]
    return kind


def _option(each: Any) -> tuple[str, str, str]:
    rule = rule_of_option(each) or rule_of(str(each.type))
    values = rule.expected if rule is not None else code(str(each.type).removesuffix(" | None"))
    return code(each.name), code(usual_value(each)), f"{markdown(about_option(each)).rstrip('.')}. Values: {values}."


def command_line() -> Iterator[str]:
    yield from ("```text", main.get_help(_context(main)), "```", "")
    for name in sorted(main.commands):
        command = main.commands[name]
        yield from (f"## {name}", "")
        yield from _help(command, f"sparkmeta {name}")
        for below, each in sorted(getattr(command, "commands", {}).items()):
            yield from (f"### {name} {below}", "", *_help(each, f"sparkmeta {name} {below}"))


def _help(command: click.Command, path: str) -> Iterator[str]:
    yield from ("```text", command.get_help(_context(command, path)), "```", "")


def _context(command: click.Command, path: str = "sparkmeta") -> click.Context:
    return click.Context(command, info_name=path, terminal_width=100, max_content_width=100)


def all_errors() -> Iterator[str]:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and kind.__module__ == errors.__name__]
    rows = []
    for kind in kinds:
        if kind.__name__.startswith("_") or not issubclass(kind, errors.SparkmetaError):
            continue
        bases = [base for base in kind.__bases__ if base is not Exception]
        text, _ = sections(kind.__doc__)
        rows.append(
            (code(f"{_module(kind)}.{kind.__name__}"), ", ".join(map(_base, bases)), markdown(" ".join(text.split())))
        )
    yield from table(("error", "also a", "when"), rows)


def _module(kind: type) -> str:
    return "sm" if kind.__name__ in sparkmeta.__all__ else "sparkmeta.errors"


def _base(kind: type) -> str:
    of_iceberg = kind.__module__ == pyiceberg.exceptions.__name__
    return code(f"pyiceberg's {kind.__name__}" if of_iceberg else kind.__name__)


def rest() -> Iterator[str]:
    yield from table(("method", "path"), (map(code, each.split(" ", 1)) for each in ("GET /v1/config", *ENDPOINTS)))
    yield from table(("for operators", "path"), [(code("GET"), code("/healthz")), (code("GET"), code("/metrics"))])


def table_properties() -> Iterator[str]:
    texts = {path.relative_to(DOCS): path.read_text(encoding="utf-8") for path in sorted(DOCS.rglob("*.md"))}
    # That page also has properties that are not honoured.
    others = (text for path, text in texts.items() if path.name != "properties.md")
    described = {name for text in others for name in _DESCRIBED.findall(text)}
    rows = []
    for name in sorted(described | read_properties()):
        pages = [path for path, text in texts.items() if code(name) in text]
        links = [f"[{_title(texts[path])}](../{path.as_posix()})" for path in pages]
        rows.append((code(name), ", ".join(links)))
    yield from table(("property", "described in"), rows)


def _title(text: str) -> str:
    return text.partition("\n")[0].removeprefix("# ")


def read_properties() -> set[str]:
    """Return the names of table properties in the source of the package."""
    # The names of modules in `sparkmeta/__init__.py` look like properties.
    sources = (path for path in (ROOT / "sparkmeta").rglob("*.py") if path.parent.name != "sparkmeta")
    return {name for path in sources for name in _PROPERTY.findall(path.read_text(encoding="utf-8"))}


def write_pages() -> None:
    page(
        "settings",
        "Settings",
        "Settings belong to the Spark session: `spark.conf.set(name, value)`. Sizes may have a unit, as in `64m`. "
        "Variables of the environment set them for tables without a session, and for sessions that sparkmeta starts. "
        "Other variables with this prefix are ignored.",
        settings(),
    )
    page("metadata-tables", "Metadata tables", sections(MetadataTables.__doc__)[0], metadata_tables())
    page(
        "api/maintenance",
        "Maintenance",
        "The methods of `table.maintenance`. Each returns a plan with `summary()`, `to_df()` and `commit()`, and "
        "changes nothing before the commit. `Plan`, at the end of the page, has what all plans share. `health` and "
        "`leaf_map` return no plan, but a report and a picture.",
        maintenance(),
    )
    page(
        "command-line",
        "Command line",
        "The help texts of all commands. [Use the command line](../guides/command-line.md) shows them at work.",
        command_line(),
    )
    page(
        "errors",
        "Errors",
        "All errors are subclasses of `sm.SparkmetaError`, and most are also subclasses of an exception of Python or "
        "pyiceberg. `sparkmeta.errors` has all of them; those that programs catch are in `sparkmeta` as well. Messages "
        "name the file, the field and the value.\n\n"
        "[Troubleshooting](../guides/troubleshooting.md) says what to do about the frequent ones.\n\n"
        "If a plan reads contradictory metadata, it raises an error and does not guess. Plans do not open pruned "
        "manifests. If the driver reads a manifest, the error is raised when the plan is made, otherwise when the plan "
        "runs. Spark wraps errors of tasks in its own exceptions. `sparkmeta.errors.from_spark(error)` unwraps them, "
        "and translates the errors of Spark's own readers.",
        all_errors(),
    )
    page(
        "rest",
        "REST endpoints",
        "`sparkmeta serve` answers these requests of Iceberg's REST catalog protocol. [Serve plans](../serve.md) "
        "describes clients, limits and security.",
        rest(),
    )
    page(
        "table-properties",
        "Table properties",
        "The table properties that sparkmeta knows, and the pages that describe them. Other properties change nothing. "
        "[Table properties of files](../properties.md) also lists Iceberg's properties that are not honoured.",
        table_properties(),
    )


write_pages()
