"""What cells show, compared with what is stored in `tests/pictures` (`python -m tests.pictures`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.pictures import SIZES, STORED, THEMES, browser, cells, difference, html_of, photograph

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("name", SIZES)
def test_a_cell_shows_what_is_stored(name: str, tmp_path: Path) -> None:
    assert f"{html_of(cells(tmp_path)[name])}\n" == (STORED / f"{name}.html").read_text()


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("name", SIZES)
def test_a_browser_shows_the_stored_picture(name: str, theme: str, tmp_path: Path) -> None:
    program = browser()
    if program is None:
        pytest.skip("no Chromium: install the package chromium-headless-shell or chromium")
    photograph(program, cells(tmp_path)[name]._repr_html_(), theme, SIZES[name], tmp_path / "cell.png")
    assert difference(program, tmp_path / "cell.png", STORED / f"{name}-{theme}.png") < 0.01
