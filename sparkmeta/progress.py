"""Show the progress of long work: bars in notebooks and on the standard error of commands, nothing in scripts.

Work in several parts shows how many parts are done. On Spark Connect, which reports tasks to clients, other work shows
the tasks of its jobs. Elsewhere, its bar moves without showing progress.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial, wraps
from threading import Event, Thread, current_thread, main_thread
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

from sparkmeta.errors import SessionError
from sparkmeta.session import is_connect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from rich.table import Table

    from sparkmeta.session import SessionSource

T = TypeVar("T")
P = ParamSpec("P")
ResultT = TypeVar("ResultT")
WorkT = TypeVar("WorkT", bound="Work")

# Shorter work shows nothing.
_QUIET_SECONDS: Final = 0.5
_SECONDS_BETWEEN: Final = 0.2
_BAR_WIDTH: Final = 30


@contextmanager
def progress(doing: str, sessions: SessionSource | None = None, *, on_terminal: bool = False) -> Iterator[Line]:
    """Show a line while the block runs.

    Notebooks show lines, and so does a terminal if an outer block shows one there. Only the main thread shows lines,
    since other threads may work in the background.

    Args:
        doing: the text of the line, such as "Planning".
        sessions: the source of the session that runs the jobs.
        on_terminal: whether to show the line on standard error too, if that is a terminal.
    """
    display, line, is_new = _line(doing, on_terminal)
    try:
        with _recording_tasks(line, sessions) if display is not None else nullcontext():
            yield line
    finally:
        if display is not None and is_new:
            _remove(display, line)


def tracked(parts: Sequence[T], doing: str, sessions: SessionSource | None = None) -> Iterator[T]:
    """Yield the parts of some work, and show how many are done; see `progress`."""
    with progress(doing, sessions) as line:
        line.total = len(parts) if len(parts) > 1 else None
        for part in parts:
            yield part
            line.done += 1


class Work(Protocol):
    """Work on a table."""

    @property
    def table(self) -> Any: ...


def planning(method: Callable[Concatenate[WorkT, P], ResultT]) -> Callable[Concatenate[WorkT, P], ResultT]:
    """Return a method that shows a line while it plans."""

    @wraps(method)
    def shown(self: WorkT, /, *args: P.args, **kwargs: P.kwargs) -> ResultT:
        with progress("Planning", self.table.state.sessions):
            return method(self, *args, **kwargs)

    return shown


@dataclass(eq=False)
class Line:
    """A line of the display.

    Attributes:
        doing: its text.
        total: the number of parts; None if it is unknown.
        done: the number of parts that are done.
        tasks: the finished tasks and all tasks of the running job; None if they are unknown.
        started: the time when the work began, by `time.monotonic`.
    """

    doing: str
    total: int | None = None
    done: int = 0
    tasks: tuple[int, int] | None = None
    started: float = field(default_factory=time.monotonic)

    def __call__(self, stages: Iterable[Any] | None, done: bool, **_: Any) -> None:
        """Record the tasks of a job, as the client of Spark Connect reports them."""
        counts = [(stage.num_completed_tasks, stage.num_tasks) for stage in stages or ()]
        finished, total = sum(count for count, _ in counts), sum(count for _, count in counts)
        self.tasks = None if done or not total else (finished, total)


@contextmanager
def _recording_tasks(line: Line, sessions: SessionSource | None) -> Iterator[None]:
    session = None
    with suppress(SessionError):
        session = None if sessions is None else sessions.running()
    if session is None or not is_connect(session):
        yield
        return
    session.registerProgressHandler(line)
    try:
        yield
    finally:
        session.removeProgressHandler(line)


# -- The display ------------------------------------------------------------------------------------------------------


class _Display:
    """The lines of running work. A thread shows them until the work ends."""

    def __init__(self, show: Callable[[Iterator[Table]], None]) -> None:
        self.lines: list[Line] = []
        self._show, self._ended = show, Event()
        self._thread = Thread(target=self._run, name="sparkmeta-progress", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stop showing the lines."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        self._ended.wait(_QUIET_SECONDS)
        with suppress(OSError):  # the terminal is gone
            self._show(self._pictures())

    def _pictures(self) -> Iterator[Table]:
        """Yield a picture of the lines at intervals, until the work ends."""
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        while not self._ended.is_set():
            grid, lines = Table.grid(padding=(0, 1)), [*self.lines]
            for line in lines:
                # Each line records all tasks, but they belong to the innermost line.
                tasks = line.tasks if line is lines[-1] else None
                done, total = (line.done, line.total) if line.total is not None or tasks is None else tasks
                counts = "" if total is None else f"{done:,} of {total:,}{'' if line.total is not None else ' tasks'}"
                seconds = int(time.monotonic() - line.started)
                bar = ProgressBar(total, done, _BAR_WIDTH, pulse=total is None)
                grid.add_row(line.doing, bar, f"{seconds // 60}:{seconds % 60:02}", counts)
            yield grid
            self._ended.wait(_SECONDS_BETWEEN)


_displays: list[_Display] = []
"""The display of this process, if it shows work."""


def _line(doing: str, on_terminal: bool) -> tuple[_Display | None, Line, bool]:
    """Return the display or None, its line with this text, and whether the line is new."""
    if current_thread() is main_thread():
        if not _displays and (show := _output(on_terminal)) is not None:
            _displays.append(_Display(show))
        for display in _displays:
            for line in display.lines:
                if line.doing == doing:
                    return display, line, False
            display.lines.append(Line(doing))
            return display, display.lines[-1], True
    return None, Line(doing), False


def _remove(display: _Display, line: Line) -> None:
    display.lines.remove(line)
    if not display.lines:
        _displays.remove(display)
        display.end()


def _output(on_terminal: bool) -> Callable[[Iterator[Table]], None] | None:
    """Return the function that shows pictures; None in a script."""
    if on_terminal and sys.stderr.isatty():
        # A duplicate descriptor, since stderr is redirected while a session starts.
        return partial(_show_on_terminal, os.dup(sys.stderr.fileno()))
    if "IPython" in sys.modules:
        from IPython import get_ipython

        # Only the shell of a notebook has a kernel.
        if getattr(get_ipython(), "kernel", None) is not None:
            return _show_in_notebook
    return None


def _show_on_terminal(descriptor: int, pictures: Iterator[Table]) -> None:
    from rich.console import Console
    from rich.live import Live

    with os.fdopen(descriptor, "w") as terminal:
        if (first := next(pictures, None)) is None:
            return
        options: dict[str, Any] = {"auto_refresh": False, "redirect_stdout": False, "redirect_stderr": False}
        with Live(first, console=Console(file=terminal), transient=True, **options) as live:
            for picture in pictures:
                live.update(picture, refresh=True)


# The number of the last cell that showed progress, and its output.
_cell_outputs: dict[int, Any] = {}


def _show_in_notebook(pictures: Iterator[Table]) -> None:
    from IPython import get_ipython
    from IPython.display import display

    cell, is_shown = get_ipython().execution_count, False
    for picture in pictures:
        if cell in _cell_outputs:
            _cell_outputs[cell].update(picture)
        else:
            _cell_outputs.clear()
            _cell_outputs[cell] = display(picture, display_id=True)  # type: ignore[no-untyped-call]
        is_shown = True
    if is_shown:
        _cell_outputs[cell].update({"text/plain": ""}, raw=True)
