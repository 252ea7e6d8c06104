"""The page of many tables: a ranking, and the page of each table behind it.

It is one HTML document without scripts, links or other files. Radio buttons choose the column that sorts the ranking:
for each column, a row has its rank as a custom property of CSS, and the chosen property becomes its `order`.
"""

from __future__ import annotations

import zlib
from html import escape
from typing import TYPE_CHECKING, Any

from sparkmeta.charts import sparkline
from sparkmeta.fleet.examined import TREND
from sparkmeta.maintain.health import STYLE
from sparkmeta.text import byte_size, counted, middle_out, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sparkmeta.fleet.examined import Examined, TableHealth

# A browser opens a page of this many tables in seconds. The pages of other tables are left out.
_MOST_PAGES = 1_000
_MOST_CHANGES = 100
_LONGEST, _ERROR = 300, 150


def _count(value: float) -> str:
    return f"{value:,}"


# Key -> its heading, and how a figure is shown. The columns of texts come first.
_TEXTS = {"severity": "severity", "table": "table", "line": "findings"}
_NUMBERS: dict[str, tuple[str, Callable[[float], str]]] = {
    "data_files": ("files", _count),
    "data_bytes": ("data", byte_size),
    "manifests": ("manifests", _count),
    "plan_bytes": ("plan reads", byte_size),
    "deletes": ("deletes", _count),
    "equality_delete_files": ("equality", _count),
    "overlap": ("overlap", lambda value: f"{value:,.1f}"),
    "snapshots": ("snapshots", _count),
    "unneeded_bytes": ("unneeded", byte_size),
}
_STYLE = """
.sm-fleet main { max-width: 1500px; }
.sm-fleet .ranking { display: flex; flex-direction: column; overflow-x: auto; margin-top: 14px; }
.sm-fleet .row { display: grid; gap: 0 14px; min-width: 1240px; padding: 5px 8px; font-variant-numeric: tabular-nums;
  grid-template-columns: 74px minmax(150px, 2fr) minmax(170px, 3fr) repeat(9, minmax(74px, .6fr));
  border-bottom: 1px solid var(--rule); }
.sm-fleet .row > * { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.sm-fleet .row > .n { text-align: right; }
.sm-fleet .head { color: var(--soft); font-size: 12.5px; order: -1; }
.sm-fleet .head label { cursor: pointer; display: block; }
.sm-fleet .head input { position: absolute; opacity: 0; }
.sm-fleet .head label:has(:checked) { color: currentColor; font-weight: 600; }
.sm-fleet .head label:has(:focus-visible) { outline: 2px solid; }
.sm-fleet summary { cursor: pointer; list-style: none; }
.sm-fleet summary:hover, .sm-fleet details[open] > summary { background: var(--panel); }
.sm-fleet details > div { padding: 14px 0 26px; max-width: 1240px; }
.sm-fleet .trends { display: flex; flex-wrap: wrap; gap: 10px 22px; margin-bottom: 14px; }
.sm-fleet .trends span { display: block; color: var(--soft); font-size: 12.5px; }
.sm-fleet .is-error > :last-child { grid-column: 3 / -1; }
.sm-fleet .row b { color: var(--soft); font-weight: 600; }
.sm-fleet .is-error b, .sm-fleet .is-high b { color: #d0503f; }
.sm-fleet .is-medium b { color: #d07b22; }
"""


def page(health: Examined) -> str:
    """Return the whole document."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        'content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">'
        f'<title>{_text(health.headline)}</title></head><body style="margin: 0">{_body(health, True)}</body></html>\n'
    )


def ranking(health: Examined) -> str:
    """Return the ranking as an element for a notebook, without the pages of tables."""
    return _body(health, False)


def _body(health: Examined, has_pages: bool) -> str:
    when = health.examined_at.strftime("%Y-%m-%d %H:%M UTC")
    counts = {table.severity: 0 for table in health.tables}
    for table in health.tables:
        counts[table.severity] += 1
    facts = {severity or "healthy": f"{count:,}" for severity, count in counts.items()}
    facts |= {name: show(sum(figure(table, name) or 0 for table in health.tables))
              for name, (_, show) in _NUMBERS.items() if name in _SUMS}  # fmt: skip
    titles = {name: heading for name, (heading, _) in _NUMBERS.items()} | {"error": "can't be examined"}
    cells = "".join(f"<div><b>{value}</b><span>{titles.get(name, name)}</span></div>" for name, value in facts.items())
    name = f"sort-{health.examined_at.timestamp():.6f}"
    return "".join(
        [
            f'<div class="sm-health sm-fleet"><style>{STYLE}{_STYLE}{"".join(_orders())}</style><main>',
            f"<h1>{_text(health.headline)}</h1>",
            f"<p>tables {_text(health.pattern)}, examined {when} in {health.seconds:.1f} s</p>",
            f'<div class="facts">{cells}</div>',
            *_worse(health),
            '<p>A heading sorts the ranking, a row opens the page of its table.</p><div class="ranking">',
            f'<div class="row head">{"".join(_headings(name))}</div>',
            *_rows(health, has_pages),
            "</div></main></div>",
        ]
    )


_SUMS = ("data_files", "data_bytes", "plan_bytes", "deletes", "unneeded_bytes")
_SORTABLE = ("severity", "table", *_NUMBERS)


def _orders() -> Iterator[str]:
    """Yield the rules that sort the rows by the checked button. The ranking itself is the order of the document."""
    for key in _SORTABLE[1:]:
        yield f".sm-fleet:has(input[value={key}]:checked) details {{ order: var(--{key}) }}\n"


def _headings(name: str) -> Iterator[str]:
    for key, heading in (*_TEXTS.items(), *((key, heading) for key, (heading, _) in _NUMBERS.items())):
        if key not in _SORTABLE:
            yield f"<span>{heading}</span>"
            continue
        checked = " checked" if key == _SORTABLE[0] else ""
        kind = ' class="n"' if key in _NUMBERS else ""
        yield f'<label{kind}><input type="radio" name="{name}" value="{key}"{checked}>{heading}</label>'


def figure(table: TableHealth, key: str) -> float | None:
    """Return a figure of a table by its key on the page."""
    if key != "deletes":
        return table.figures.get(key)
    kinds = ("deletion_vectors", "position_delete_files", "equality_delete_files")
    return sum(table.figures.get(kind) or 0 for kind in kinds) if table.figures else None


def _rows(health: Examined, has_pages: bool) -> Iterator[str]:
    orders_by_table: list[dict[str, int]] = [{} for _ in health.tables]
    for key in _SORTABLE[1:]:

        def rank(index: int, key: str = key) -> Any:
            table = health.tables[index]
            return table.table if key == "table" else -(figure(table, key) or 0)

        for order, index in enumerate(sorted(range(len(orders_by_table)), key=rank)):
            orders_by_table[index][key] = order
    for number, (table, orders) in enumerate(zip(health.tables, orders_by_table, strict=True)):
        style = ";".join(f"--{key}:{order}" for key, order in orders.items())
        values = [(figure(table, key), show) for key, (_, show) in _NUMBERS.items()] if table.error is None else []
        cells = "".join(f'<span class="n">{"" if value is None else show(value)}</span>' for value, show in values)
        title, severity = _text(table.line), table.severity or ""
        line = title if table.error is None else _text(middle_out(table.error, _ERROR))
        trends = "".join(_trends(table, health)) if has_pages else ""
        yield (
            f'<details style="{style}"><summary class="row is-{severity}"><b>{severity}</b>'
            f'<span title="{_text(table.table)}">{_text(table.table)}</span><span title="{title}">{line}</span>{cells}'
            f"</summary><div>{trends}{''.join(_behind(table, has_pages and number < _MOST_PAGES))}</div></details>"
        )


def _worse(health: Examined) -> Iterator[str]:
    """Yield a section on what got worse since the last run."""
    changes = [(name, change) for name, lines in health.worse().items() for change in lines]
    if health.past is None or health.past.run_at is None:
        return
    rows = "".join(f"<dt>{_text(name)}</dt><dd>{_text(change)}</dd>" for name, change in changes[:_MOST_CHANGES])
    more = len(changes) - _MOST_CHANGES
    rows += f"<dt></dt><dd>and {more:,} more</dd>" if more > 0 else ""
    when = health.past.run_at.strftime("%Y-%m-%d %H:%M UTC")
    nothing = "" if changes else "<p>Nothing.</p>"
    kind = "finding" if changes else "healthy"
    yield f'<section class="{kind}"><h2>Worse since {when}</h2>{nothing}<dl>{rows}</dl></section>'


def _trends(table: TableHealth, health: Examined) -> Iterator[str]:
    """Yield the figures of a table over the last runs, without figures that were always 0."""
    if health.past is None or not (rows := health.past.trends.get(table.table)):
        return
    runs = [*rows, table.row()]
    yield '<div class="trends">'
    for key, title in TREND.items():
        values = [row[key] if row["error"] is None else None for row in runs]
        if any(values):
            show = byte_size if key.endswith("_bytes") else _count
            ends = " to ".join("unknown" if value is None else show(value) for value in (values[0], values[-1]))
            yield f"<div><span>{title}, {len(runs)} runs: {ends}</span>{sparkline(values, title)}</div>"
    yield "</div>"


def _behind(table: TableHealth, has_page: bool) -> Iterator[str]:
    """Yield what a click on the row of a table shows."""
    if table.error is not None:
        yield f'<section class="finding"><h2>{_text(table.table)}</h2><p>{_text(table.error)}</p></section>'
    elif has_page:
        yield zlib.decompress(table.page).decode()
    else:
        yield f"<p>{_text(table.table)}: {counted(len(table.findings), 'finding')}</p>"
        yield from (f"<p>{_text(finding.problem)}</p>" for finding in table.findings)


def _text(text: str) -> str:
    return escape(printable(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"))
