"""`conduit bench rllib`: the cells one after the other, with progress, Ctrl-C, and a report."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from conduit.rllib.measure import QUICK_PLAN, SIDES, Cell, Plan, Turns, choose
from conduit.rllib.records import machine, record
from conduit.rllib.session import Interrupts, Stopped, Ticker, ray_session, require
from conduit_store.errors import ConfigError

__all__ = ["run"]

BEFORE = {  # the measuring: share of a cell that is done when it begins
    "building stock": 0.0,
    "building conduit": 0.08,
    "warming up stock": 0.12,
    "warming up conduit": 0.2,
}
LINE_S = 10.0  # between two lines of progress where there is no terminal


class _Progress:
    """Which cell is at work, how much is left of all of them; and Ctrl-C on its way in."""

    def __init__(self, cells: Sequence[Cell], plan: Plan, ticker: Any, stop: Any) -> None:
        self.cells, self.plan, self.ticker, self.stop = cells, plan, ticker, stop
        self.at = 0
        self._within = 0.0  # share of the cell at hand that is done
        self._began = time.perf_counter()
        self._estimates = [cell.estimate_s(plan.steps) for cell in cells]

    def tell(self, what: str, done: int) -> None:
        """Show what is being done in the cell at hand, `done` of whose steps are behind it."""
        if self.stop.requested:
            raise Stopped
        self._within = 0.3 + 0.7 * done / self.plan.steps if what.startswith("measuring") else BEFORE[what]
        counted = f" ({done} of {self.plan.steps} steps)" if done else ""
        text = f"[{self.at + 1}/{len(self.cells)}] {self.cells[self.at].name}  {what}{counted}  {self.left()}"
        self.ticker.show(self._done_s() / sum(self._estimates), text)

    def next(self) -> None:
        """The cell at hand is done."""
        self.at += 1
        self._within = 0.0

    def left(self) -> str:
        """How long it will still take, as text: estimates, scaled by what the work so far took."""
        done_s = self._done_s()
        scale = (time.perf_counter() - self._began) / done_s if done_s > 5 else 1.0
        seconds = int((sum(self._estimates) - done_s) * scale)
        return f"about {seconds // 60}:{seconds % 60:02d} left"

    def _done_s(self) -> float:
        now = self._within * self._estimates[self.at] if self._within else 0.0
        return sum(self._estimates[: self.at]) + now


def run(
    *,
    quick: bool = False,
    only: Sequence[str] = (),
    steps: int | None = None,
    rounds: int | None = None,
    seed: int = 1,
    threads: int | None = None,
    out: Path | None = None,
) -> int:
    """Measure the chosen cells, print a table, and write rllib.jsonl, rllib.md and rllib.png into `out`.

    `steps` of each side in `rounds` turns. `threads`: of torch in the driver, for both sides; as torch chooses if None.
    Returns 0, 1 where a cell failed, 130 after Ctrl-C: what was measured until then is printed and written.
    Main thread only: it takes over SIGINT and SIGTERM, and gives them back.

    Raises:
        ConfigError: a pattern of `only` matches no cell, or there are fewer steps than rounds.
        MissingExtra: ray, torch, gymnasium, matplotlib or rich is not installed.
    """
    require("bench rllib")
    cells = choose(quick=quick, only=only)
    plan = QUICK_PLAN if quick else Plan()
    plan = replace(plan, seed=seed, steps=steps or plan.steps, rounds=rounds or min(plan.rounds, steps or plan.steps))
    if plan.steps < plan.rounds:
        raise ConfigError(f"{plan.steps} steps in {plan.rounds} rounds: give --steps at least as many as --rounds")
    folder = out or Path("runs") / time.strftime("%Y%m%d-%H%M%S-bench-rllib")
    records: list[dict[str, Any]] = []
    with Interrupts() as stop:
        with Ticker(every_s=LINE_S, stderr=True) as ticker:
            ticker.say(
                f"conduit bench rllib: {len(cells)} cells, {plan.steps} training steps of each side. Ctrl-C ends it."
            )
            with ray_session(stop, ticker, threads=threads):
                progress = _Progress(cells, plan, ticker, stop)
                about = machine()
                folder.mkdir(parents=True, exist_ok=True)
                with (folder / "rllib.jsonl").open("w", encoding="utf-8") as file:
                    try:
                        for cell in cells:
                            line = _measured(cell, plan, about, progress.tell)
                            if line is not None:
                                records.append(line)
                                print(json.dumps(line), file=file, flush=True)
                            progress.next()
                            ticker.say(f"[{progress.at}/{len(cells)}] {_told(line, cell)}  {progress.left()}")
                            if stop.requested:
                                break
                    except Stopped:
                        pass
        measured = [line for line in records if "error" not in line]
        if measured:
            from conduit.rllib import plots

            plots.show(measured)
            print("kept in", ", ".join(str(path) for path in plots.write(measured, folder)), flush=True)
        elif stop.requested:
            print("interrupted before anything was measured", flush=True)
    return stop.status or (1 if len(measured) < len(records) else 0)


def _measured(cell: Cell, plan: Plan, about: dict[str, Any], tell: Callable[[str, int], None]) -> dict[str, Any] | None:
    """One cell's record; one with an `error` where it failed, None where Ctrl-C came before there was anything."""
    about = {**about, "load_at_start": round(os.getloadavg()[0], 2)}
    turns: Turns | None = None
    try:
        turns = Turns(cell, plan, tell)
        try:
            turns.measure()
        except Stopped:
            whole = all(turns.rounds[side] for side in SIDES)
            return record(cell, plan, turns.rounds, None, about, turns.waiting) if whole else None
        return record(cell, plan, turns.rounds, turns.glue_ms(), about, turns.waiting)
    except Stopped:
        return None
    except Exception as error:  # one cell that fails does not take the others with it
        return {"cell": cell.name, "error": f"{type(error).__name__}: {error}", "machine": about}
    finally:
        if turns is not None:
            turns.close()


def _told(line: dict[str, Any] | None, cell: Cell) -> str:
    if line is None:
        return f"{cell.name}: interrupted"
    if "error" in line:
        return f"{cell.name}: failed: {line['error']}"
    stock, ours = line["stock"], line["conduit"]
    return (
        f"{cell.name}: step {stock['step']['median']:.2f} -> {ours['step']['median']:.2f} ms, "
        f"experience {stock['experience']['median']:.2f} -> {ours['experience']['median']:.2f} ms"
    )
