"""RLlib's JSON files, which its older algorithms record: a line for each SampleBatch. Read only, and without Ray.

    obs, actions, rewards, terminateds, truncateds      obs, action, reward, terminated, truncated
    dones                                               terminated, where there are no terminateds
    new_obs                                             final observations, of the steps whose successor is not there
    eps_id, agent_index, t                              which steps follow which
    all else with a number a row                        a column of that name

Left out are infos, unroll_id, env_id, seq_lens, state_in_... and state_out_..., which have no entry a row. Columns may
be compressed as RLlib does (rllib_pickle.py). Numbers of plain JSON have no dtype: they become those of the schema that
is asked for, else int64, float64 and bool. Where files have no new_obs, the last step of an episode is never drawn.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from conduit.exchange.damage import reading
from conduit.exchange.frame import Frame, arrow_array, free_name
from conduit.exchange.pieces import Batches
from conduit.exchange.rllib_pickle import unpacked
from conduit_store.arrays import Array
from conduit_store.errors import ExchangeError, MissingColumn, SchemaError
from conduit_store.schema import Column, Schema
from conduit_store.values import as_rows, example_array

__all__ = ["Source", "files_of"]

_KIND = "RLlib's JSON"
_NAMES = {"actions": "action", "rewards": "reward", "terminateds": "terminated", "truncateds": "truncated"}
_NEXT = "new_obs"
_LINKS = ("eps_id", "agent_index", "t")
_LEFT_OUT = ("type", "count", "infos", "unroll_id", "env_id", "seq_lens", "dones", _NEXT, *_LINKS)
_STEPS = 1 << 62
_STATE = ("state_in", "state_out")
_OURS = {ours: theirs for theirs, ours in _NAMES.items()}


@dataclass(frozen=True, slots=True)
class _Run:
    """Rows [start, stop) of a line, which follow each other in an episode. `step`: the first one's, if files say it."""

    of: tuple[Any, Any]
    start: int
    stop: int
    step: int | None
    ended: bool

    def goes_on_in(self, other: _Run) -> bool:
        """Whether `other`, of the next line, has the steps behind these."""
        return not self.ended and (self.step is None or other.step == self.step + self.stop - self.start)


class _Line:
    """A line of a file: a batch of steps, of which columns are decoded when they are asked for."""

    def __init__(self, file: Path, number: int, text: str) -> None:
        self._where = f"line {number} of {file}"
        self._file = file
        with reading(file, f"{_KIND}, line {number}"):
            self._batch = _batch_of(json.loads(text), self._where)
        lacking = [name for name in ("obs", "rewards") if name not in self._batch]
        if "terminateds" not in self._batch:
            lacking += [] if "dones" in self._batch else ["terminateds"]
        if lacking:
            raise MissingColumn(f"{self._where} has no {', '.join(lacking)}, it has {', '.join(self._batch)}")
        self._arrays: dict[str, dict[str, Any]] = {}
        self._rows = len(self.array(Column("reward", np.dtype(np.float64)), any_kind=True))

    def __len__(self) -> int:
        return self._rows

    @property
    def names(self) -> list[str]:
        """Of its columns, as they are called in a table."""
        kept = (name for name in self._batch if name not in _LEFT_OUT and not name.startswith(_STATE))
        names = [ours for name in kept for ours in self._values(name)]
        return names + [flag for flag in ("terminated", "truncated") if flag not in names]

    @property
    def follows(self) -> bool:
        """Whether it has next observations."""
        return _NEXT in self._batch

    def _values(self, theirs: str) -> dict[str, Any]:
        """What a column of theirs has, by our names: more than one where it is nested."""
        if theirs not in self._arrays:
            value = self._batch[theirs]
            with reading(self._file, f"{_KIND}, {theirs} in {self._where}"):
                opened = unpacked(value) if isinstance(value, str) else value
            self._arrays[theirs] = Schema.flatten({_NAMES.get(theirs, theirs): opened})
        return self._arrays[theirs]

    def array(self, column: Column, *, of: str | None = None, any_kind: bool = False) -> Array:
        """Return a column, of its dtype and shape. `of`: their name, where it is not that of ours. `any_kind`: of the
        dtype and shape that it has.

        Raises:
            MissingColumn: there is none. DtypeMismatch, ShapeMismatch, ValueOutOfRange: as `as_rows`.
        """
        role, _, inner = column.name.partition("/")
        theirs = of or _OURS.get(role, role)
        if role == "terminated" and theirs not in self._batch:
            theirs = "dones"
        if role == "truncated" and theirs not in self._batch:
            return np.zeros(self._rows, np.bool_)
        name = _NAMES.get(theirs, theirs) + ("/" + inner if inner else "")
        values = self._values(theirs) if theirs in self._batch else {}
        if name not in values:
            raise MissingColumn(f"{self._where} has no column {name}, as the first line has")
        try:
            array = example_array(name, values[name]) if any_kind else as_rows(column, values[name])
            if array.ndim == 0 or (theirs != "rewards" and len(array) != self._rows):
                due = "rows" if theirs == "rewards" else f"{self._rows} rows"
                raise ExchangeError(f"column {name!r} has shape {array.shape}, and {due} were due")
        except (SchemaError, ExchangeError) as error:
            raise type(error)(f"{self._where}: {error}. Give schema= where another dtype is meant") from error
        return array

    def _numbers(self, name: str) -> Array:
        """One of the columns that say which steps follow which."""
        numbers = self.array(Column(name, np.dtype(np.int64)), any_kind=True)
        if numbers.ndim != 1 or numbers.dtype.kind not in ("iu" if name == "t" else "iuU"):
            kind = f"{numbers.dtype} of shape {numbers.shape}"
            raise ExchangeError(f"{self._where}: {name} is {kind}, and a whole number a row was due")
        if name == "t" and len(numbers) and (numbers.min() < 0 or numbers.max() >= _STEPS):
            raise ExchangeError(f"{self._where}: t is from {numbers.min()} to {numbers.max()}: steps begin at 0")
        return numbers

    def runs(self) -> list[_Run]:
        """Cut the rows where an episode ends, or another row comes than the next step."""
        n = self._rows
        flag = np.dtype(np.bool_)
        ended = self.array(Column("terminated", flag)) | self.array(Column("truncated", flag))
        episode, agent, step = (self._numbers(name) if name in self._batch else None for name in _LINKS)
        if n == 0:
            return []
        breaks = ended[:-1].copy()
        for numbers in (episode, agent):
            if numbers is not None:
                breaks |= numbers[1:] != numbers[:-1]
        if step is not None:
            breaks |= step[1:] != step[:-1] + 1
        starts = [0, *(np.flatnonzero(breaks) + 1).tolist()]
        return [
            _Run(
                (0 if episode is None else episode[start].item(), 0 if agent is None else agent[start].item()),
                start, stop, None if step is None else int(step[start]), bool(ended[stop - 1]),
            )
            for start, stop in zip(starts, [*starts[1:], n], strict=True)
        ]  # fmt: skip


class Source:
    """See formats.Source. `path`: a file, or a folder whose .json files are read by name."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files = files_of(path)
        self.rows: int | None = None
        self.episodes: int | None = None
        first = next((line for file in self._files for line in _lines(file)), None)
        if first is None:
            raise ExchangeError(f"{path} has no batch: there is nothing to tell its columns by")
        arrays = {name: first.array(Column(name, np.dtype(np.bool_)), any_kind=True) for name in first.names}
        schema = Schema(tuple(Column(name, array.dtype, array.shape[1:]) for name, array in arrays.items()))
        self._frame = Frame(schema, free_name("episode", schema), free_name("step", schema), own=True)
        self.schema = self._frame.to_arrow()

    def meant(self, schema: Schema) -> None:
        """Read columns as the dtypes and shapes of these, for numbers of JSON say none."""
        known = {column.name: column for column in schema}
        columns = (
            column
            if (other := known.get(column.name)) is None or other.ragged or other.categorical
            else Column(column.name, other.dtype, other.shape)
            for column in self._frame.schema
        )
        self._frame = Frame(Schema(tuple(columns)), self._frame.episode, self._frame.step, own=True)

    def pieces(self, columns: list[str], rows: int) -> Iterator[pa.Table]:
        batches = Batches(rows)
        number = 0
        for file in self._files:
            # where runs of the line before go on: which episode, and its next step
            going: dict[tuple[Any, Any], tuple[int, int]] = {}
            for line, following in _with_next(_lines(file)):
                runs = line.runs()
                behind: dict[tuple[Any, Any], _Run] = {}
                for run in () if following is None else following.runs():
                    behind.setdefault(run.of, run)
                last = {run.of: run for run in runs}
                episode, step = np.zeros(len(line), np.int64), np.zeros(len(line), np.int64)
                known = np.zeros(len(line), np.bool_)
                onward: dict[tuple[Any, Any], tuple[int, int]] = {}
                for run in runs:
                    before = going.pop(run.of, None)
                    of, begin = before if before is not None else (number, run.step or 0)
                    number += before is None
                    episode[run.start : run.stop] = of
                    end = begin + run.stop - run.start
                    step[run.start : run.stop] = np.arange(begin, end)
                    if last[run.of] is run and run.of in behind and run.goes_on_in(behind[run.of]):
                        onward[run.of] = of, end
                    else:
                        known[run.stop - 1] = line.follows
                going = onward
                yield from batches.add(self._table(line, columns, episode, step, known))
        yield from batches.rest()

    def _table(self, line: _Line, columns: list[str], episode: Array, step: Array, known: Array) -> pa.Table:
        """Rows in the form of frame.py. `known`: whose next observation is needed and there."""
        frame = self._frame
        made: dict[str, pa.Array] = {}
        for name in columns:
            if name in (frame.episode, frame.step):
                made[name] = pa.array(episode if name == frame.episode else step)
            elif name in frame.finals:
                column = frame.finals[name]
                blank = np.zeros((len(line), *column.shape), column.dtype)
                made[name] = arrow_array(column, line.array(column, of=_NEXT) if line.follows else blank, ~known)
            else:
                column = frame.schema.column(name)
                made[name] = arrow_array(column, line.array(column))
        return pa.table(made)

    def close(self) -> None:
        pass  # each file is open only while it is read


def files_of(path: Path) -> list[Path]:
    """Return the JSON files that `path` is, or has below it, by name.

    Raises:
        ExchangeError: there is none.
    """
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.rglob("*.json") if not file.name.startswith((".", "_")))
    if not files:
        raise ExchangeError(f"folder {path} has no .json file")
    return files


def _lines(file: Path) -> Iterator[_Line]:
    with reading(file, _KIND):
        opened = file.open(encoding="utf-8")
    with opened:
        number = 0
        while True:
            number += 1
            with reading(file, f"{_KIND}, line {number}"):
                text = opened.readline()
            if not text:
                return
            if text.strip():
                yield _Line(file, number, text)


def _with_next(lines: Iterator[_Line]) -> Iterator[tuple[_Line, _Line | None]]:
    before = next(lines, None)
    while before is not None:
        following = next(lines, None)
        yield before, following
        before = following


def _batch_of(read: Any, where: str) -> Mapping[str, Any]:
    """The columns of a line, of one agent or of the one policy that there is."""
    if not isinstance(read, dict) or read.get("type") not in ("SampleBatch", "MultiAgentBatch"):
        raise ValueError("it is no SampleBatch and no MultiAgentBatch")
    if read["type"] == "SampleBatch":
        return read
    policies = read["policy_batches"]
    if not isinstance(policies, dict):
        raise ValueError("its policy_batches are no batches by policy")
    if len(policies) != 1:
        raise ExchangeError(
            f"{where} has the policies {', '.join(policies)}, whose steps go into tables of their own. Read the files "
            "with RLlib's JsonReader and write the policy_batches of one policy, each as a SampleBatch"
        )
    return dict(next(iter(policies.values())))
