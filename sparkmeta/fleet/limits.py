"""The limits of a run: how much it does at once and in total, and when."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from datetime import time as clock_time
from typing import Final

_DAY: Final = timedelta(days=1)


@dataclass(frozen=True)
class Window:
    """A time of the day, in UTC, in which jobs may begin. It may end on the next day."""

    begin: clock_time
    end: clock_time

    @staticmethod
    def of(text: str) -> Window | None:
        """Return the window in a text such as `22:00-06:00`; None for other texts."""
        try:
            begin, end = map(clock_time.fromisoformat, map(str.strip, text.split("-")))
        except ValueError:
            return None
        return None if begin == end or begin.tzinfo or end.tzinfo else Window(begin, end)

    def has(self, moment: datetime) -> bool:
        """Return whether a time with a zone is in the window."""
        clock = moment.astimezone(UTC).time()
        if self.begin <= self.end:
            return self.begin <= clock < self.end
        return clock >= self.begin or clock < self.end

    def __str__(self) -> str:
        return f"{self.begin:%H:%M}-{self.end:%H:%M}"


@dataclass(frozen=True)
class RunLimits:
    """The limits of a run.

    Attributes:
        side_by_side: the number of tables that are maintained at once.
        max_bytes_in_flight: the bytes that jobs read at once to rewrite them. A larger job runs alone.
        max_bytes: the bytes that the run reads to rewrite them. A job that would exceed this limit is deferred, unless
            it is the first.
        max_time: no job begins later than this after all tables were examined.
        window: jobs begin only in this time of the day.
        lease: how long a lease on a table lasts; None to take none.
    """

    side_by_side: int = 1
    max_bytes_in_flight: int | None = None
    max_bytes: int | None = None
    max_time: timedelta | None = None
    window: Window | None = None
    lease: timedelta | None = None


@dataclass
class Budget:
    """What a run has used of its limits. Threads share it."""

    limits: RunLimits
    is_stopped: bool = field(default=False, init=False)
    _began: float = field(default_factory=time.monotonic, init=False)
    _used: int = field(default=0, init=False)
    _in_flight: int = field(default=0, init=False)
    _changed: threading.Condition = field(default_factory=threading.Condition, init=False)

    def begin(self) -> None:
        """Begin to count the time."""
        self._began = time.monotonic()

    def stop(self) -> None:
        """Let no further job begin."""
        with self._changed:
            self.is_stopped = True
            self._changed.notify_all()

    def refusal(self) -> str | None:
        """Return why no job may begin now; None if one may."""
        limits = self.limits
        if self.is_stopped:
            return "the run was stopped"
        if limits.max_time is not None and time.monotonic() - self._began > limits.max_time.total_seconds():
            return f"the run has passed its max_time of {limits.max_time}"
        if limits.window is not None and not limits.window.has(datetime.now(UTC)):
            return f"it is not in the window {limits.window} (UTC)"
        return None

    @contextmanager
    def reading(self, size: int) -> Iterator[str | None]:
        """Wait until a job may read so many bytes; yield why it may not begin, or None if it may.

        The first job may exceed `max_bytes`. The bytes of a job that fails don't count.
        """
        with self._changed:
            self._changed.wait_for(lambda: self.is_stopped or self._fits(size))
            refusal = self.refusal()
            if self.limits.max_bytes is not None and self._used and self._used + size > self.limits.max_bytes:
                used = f"{self._used} of {self.limits.max_bytes} (max_bytes)"
                refusal = refusal or f"it reads {size} bytes, and the run has used {used}"
            counted = 0 if refusal else size
            self._used += counted
            self._in_flight += counted
        is_done = False
        try:
            yield refusal
            is_done = True
        finally:
            with self._changed:
                self._in_flight -= counted
                self._used -= 0 if is_done else counted
                self._changed.notify_all()

    def _fits(self, size: int) -> bool:
        limit = self.limits.max_bytes_in_flight
        return limit is None or not self._in_flight or self._in_flight + size <= limit
