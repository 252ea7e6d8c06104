"""Rules that the code and its tests cite are rules of docs/semantics.md."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
CITATION = re.compile(r"\bsemantics ([A-Z]?\d[\w.-]*(?:(?:,| to| and)\s+[A-Z]?\d[\w.-]*)*)")


def rules(text: str) -> list[str]:
    """The numbers of the rules of a page, as `section.rule`, in their order."""
    numbers, section = [], ""
    for line in text.splitlines():
        if heading := re.match(r"## (\d+)\. ", line):
            section = heading[1]
        elif rule := re.match(r"(\d+)\. ", line):
            numbers.append(f"{section}.{rule[1]}")
    return numbers


def cited(text: str) -> set[str]:
    """The numbers of the rules that a text cites."""
    lists = [re.split(r",| to| and", match[1]) for match in CITATION.finditer(text)]
    return {number.strip().rstrip(".") for numbers in lists for number in numbers}


def test_every_citation_names_a_rule() -> None:
    known = set(rules((ROOT / "docs" / "semantics.md").read_text()))
    sources = [*(ROOT / "sparkmeta").rglob("*.py"), *(ROOT / "tests").rglob("*.py"), *(ROOT / "docs").glob("*.md")]
    texts = {path: path.read_text() for path in sources if path != Path(__file__)}
    unknown = {str(path.relative_to(ROOT)): cited(text) - known for path, text in texts.items()}
    assert not {path: numbers for path, numbers in unknown.items() if numbers}


def test_rules_are_numbered_in_order() -> None:
    numbers = [tuple(map(int, number.split("."))) for number in rules((ROOT / "docs" / "semantics.md").read_text())]
    sections = [section for section, _ in numbers]
    assert numbers == [(s, n) for s in range(1, max(sections) + 1) for n in range(1, sections.count(s) + 1)]


def test_what_is_a_citation() -> None:
    assert cited("as in semantics 6.4, 12.3 to 12.5 and 9.1.") == {"6.4", "12.3", "12.5", "9.1"}
    assert cited("(semantics C40), but semantics of SQL, (semantics 8.2-18)") == {"C40", "8.2-18"}
    assert rules("## 2. X\n\n1. a\n   b\n2. c\n") == ["2.1", "2.2"]
