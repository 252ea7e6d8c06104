"""Where the tables of the corpus are kept: in build/, for every process and run, until what makes them changes."""

from __future__ import annotations

import fcntl
import shutil
from contextlib import contextmanager
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BUILD = Path(__file__).parents[2] / "build" / "corpus"


def corpus_folder(jar: Path) -> Path:
    """The folder of the tables made by this Iceberg runtime, these libraries and the current recipes.

    Tables name their files by absolute paths, so a checkout that moved has another folder.
    """
    folder = Path(__file__).parent
    digest = sha256(f"{BUILD} {jar.name} {version('pyspark')} {version('pyiceberg')}".encode())
    for source in sorted([*folder.glob("tables_*.py"), folder / "workshop.py", folder / "file_maker.py"]):
        digest.update(source.read_bytes())
    return BUILD / digest.hexdigest()[:16]


def make_once(folder: Path, name: str, parts: list[Path], make: Callable[[], str]) -> str:
    """The metadata location of a table, which is made unless a process has made it already.

    Args:
        folder: of the corpus.
        name: of the table.
        parts: the folders that `make` writes to; what an interrupted process left in them is removed.
        make: makes the table and returns the location.
    """
    note = folder / "finished" / quote(name, safe="")
    with _locked(note.with_suffix(note.suffix + ".lock")):
        if not note.exists():
            for part in parts:
                shutil.rmtree(part, ignore_errors=True)
            unfinished = note.with_suffix(note.suffix + ".new")
            unfinished.write_text(make())
            unfinished.rename(note)
        return note.read_text()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
