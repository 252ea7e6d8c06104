"""The plans that a service knows, by a clock that the tests move."""

from __future__ import annotations

from typing import Any

import pytest

from sparkmeta import ServeOptions
from sparkmeta.service import planning as module
from sparkmeta.service.planning import Run, Runs
from sparkmeta.service.plans import Pages
from sparkmeta.service.requests import ApiError, busy

KEEP = 100.0


class Clock:
    """A clock that stands still."""

    now = 1_000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def runs_with(**options: Any) -> Runs:
    return Runs(ServeOptions(**{"keep_seconds": KEEP, "slots": 1, "queued": 1} | options))


def submitted(runs: Runs, name: str, request: str = "r", key: Any = None) -> Run:
    run, is_new = runs.join(key or name, name, request)
    assert is_new
    assert runs.begin_work(run)
    return run


def pages(name: str, spooled: int = 0, first: bytes | None = b"") -> Pages:
    return Pages(name, first, ("page",) if spooled else (), 1, spooled)


def finished(runs: Runs, name: str, spooled: int = 1, key: Any = None) -> list[str]:
    """Run a plan to its end. Return the names of the plans that are forgotten for it."""
    run = submitted(runs, name, key=key)
    runs.finish(run, pages(name, spooled))
    runs.end_work(run)
    return runs.forgotten()


def forgotten(runs: Runs) -> list[str]:
    """The plans that are forgotten because they are old."""
    runs.forget_old()
    return runs.forgotten()


@pytest.mark.usefixtures("clock")
def test_requests_join_a_plan_until_it_fails():
    runs = runs_with()
    run = submitted(runs, "a")
    assert runs.join("a", "b", "s") == (run, False)
    assert runs.fail(run, busy("no room"))
    assert not runs.fail(run, busy("again"))
    runs.end_work(run)
    again, is_new = runs.join("a", "c", "t")
    assert is_new
    assert again is not run
    with pytest.raises(ApiError, match="no room"):
        run.future.result()


@pytest.mark.usefixtures("clock")
def test_cancelled_plans_hold_their_slot_until_their_threads_have_left():
    runs = runs_with(queued=0)
    run = submitted(runs, "a", "first")
    runs.join("a", "", "second")
    assert runs.release("a", "first") is runs.release("a", "first") is runs.release("x", "second") is None
    assert not run.has_ended
    assert runs.release("a", "second") is run
    assert run.has_ended
    with pytest.raises(ApiError, match="the plan was cancelled"):
        runs.finish(run, pages("a"))
    with pytest.raises(ApiError, match="1 plans are running or waiting"):
        runs.join("b", "b", "r")
    assert runs.unfinished == [run]
    runs.end_work(run)
    assert runs.known == len(runs.unfinished) == 0
    assert submitted(runs, "b")


def test_finished_plans_answer_for_a_while(clock: Clock):
    runs = runs_with()
    finished(runs, "a", spooled=7)
    clock.now += KEEP
    run, is_new = runs.join("a", "b", "late")
    assert not is_new
    assert run.requests == {"r", "late"}
    assert forgotten(runs) == []
    clock.now += 1
    assert runs.get("a") is None
    assert runs.join("a", "c", "r")[1]
    # Its tokens last as long again.
    assert forgotten(runs) == []
    clock.now += KEEP - 2
    assert forgotten(runs) == []
    clock.now += 2
    assert forgotten(runs) == ["a"]


def test_released_plans_are_forgotten_when_they_answer_no_more(clock: Clock):
    runs = runs_with()
    finished(runs, "a", spooled=7)
    assert runs.release("a", "r") is None
    assert not runs.join("a", "b", "r")[1]
    assert runs.release("a", "r") is None
    clock.now += KEEP + 1
    assert forgotten(runs) == ["a"]
    assert runs.known == 0


def test_clients_that_poll_learn_of_failures(clock: Clock):
    runs = runs_with()
    run = submitted(runs, "a")
    assert not runs.poll(run)
    assert runs.release("a", "r") is run
    runs.end_work(run)
    assert runs.get("a") is run
    clock.now += KEEP + 1
    assert forgotten(runs) == ["a"]


@pytest.mark.usefixtures("clock")
def test_room_in_memory():
    runs = runs_with(cached_bytes=10_000)
    assert finished(runs, "a") == finished(runs, "b") == []
    assert not runs.join("a", "", "s")[1]
    # `a` is used later than `b`, but a request holds it: it answers no more.
    for name in ("b", "a"):
        runs.release(name, "r")
    assert finished(runs, "c") == ["b"]
    assert finished(runs, "d") == []
    assert runs.get("a") is not None
    assert runs.join("a", "e", "t")[1]
    assert finished(runs, "f") == []
    assert [runs.join(name, name, "u")[1] for name in "dfc"] == [False, False, True]


@pytest.mark.usefixtures("clock")
def test_no_plan_is_kept_without_memory():
    runs = runs_with(cached_bytes=0)
    assert finished(runs, "a", key="k") == finished(runs, "b", key="k") == []
    assert [runs.release(name, "r") for name in "ab"] == [None, None]
    assert runs.forgotten() == ["a", "b"]


@pytest.mark.usefixtures("clock")
def test_plans_that_answer_no_more_take_no_memory():
    """Clients may keep the tokens of their further pages for hours. An answer that is on its way has its page."""
    runs = runs_with(cached_bytes=10_000)
    first, others = submitted(runs, "a", "r"), runs.join("a", "", "s")[0]
    waiting = first.future
    runs.finish(first, pages("a", 1, b"x" * 20_000))
    runs.end_work(first)
    assert (first is others, first.pages) == (True, waiting.result())
    runs.answered(first)
    assert first.pages == waiting.result()
    runs.answered(first)
    assert first.pages == pages("a", 1, None)
    assert waiting.result().first == b"x" * 20_000
    assert runs.get("a") is first

    small = submitted(runs, "b")
    runs.finish(small, pages("b", 1, b"x" * 1_000))
    runs.answered(small)
    runs.end_work(small)
    assert small.pages == pages("b", 1, b"x" * 1_000)
    finished(runs, "c")
    finished(runs, "d")
    assert small.pages == pages("b", 1, None)


@pytest.mark.usefixtures("clock")
def test_room_in_the_spool():
    runs = runs_with(max_spool_bytes=10)
    finished(runs, "a", spooled=6)
    finished(runs, "b", spooled=4)
    with pytest.raises(ApiError, match="the spool has no room for the 5 bytes"):
        finished(runs, "c", spooled=5)
    runs.release("b", "r")
    runs.release("a", "r")
    assert runs.forgotten() == ["b", "a"]
    assert finished(runs, "d", spooled=9) == finished(runs, "e", spooled=1) == []
    with pytest.raises(ApiError, match="have 11 bytes, and 10 are the limit: use a more selective filter"):
        finished(runs, "f", spooled=11)
