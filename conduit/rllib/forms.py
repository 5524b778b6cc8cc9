"""What an RLlib episode is beside its steps: read when it goes into a queue, and made anew around the rows again.

A row is a step as RLlib's episode holds it, whatever its module puts out included. An episode's last row has its last
observation; in the other columns it repeats the row before, with a reward of 0: the step that RLlib's learners add to
every episode before anything else is there already (see bootstrap.py).
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from conduit_store.arrays import Array

__all__ = ["REWARDS", "Contents", "kept_of", "packed", "read", "rebuilt"]

REWARDS = "rewards"


class Contents(NamedTuple):
    """An episode's steps as columns: observations have a row more than the others."""

    form: tuple[Any, ...]  # which columns the observations, the actions and what the module puts out become
    columns: dict[str, Array]
    lookback: int  # rows in front that belong to the part before


def read(episode: Any) -> Contents | None:
    """Return what is in an episode of arrays; None where its buffers are not alike: it has to travel as it is."""
    observations = episode.observations
    lookback = observations.lookback
    columns: dict[str, Array] = {}
    if not observations.finalized:
        return None
    obs = _collected("obs", observations.data, columns)
    n = len(next(iter(columns.values()), ()))
    wide = len(columns)
    outputs: dict[str, Any] = {}
    for name, buffer in (
        ("actions", episode.actions),
        (REWARDS, episode.rewards),
        *episode.extra_model_outputs.items(),
    ):
        if not buffer.finalized or buffer.lookback != lookback:
            return None
        outputs[name] = _collected(name, buffer.data, columns)
    if list(map(len, columns.values())) != [n] * wide + [n - 1] * (len(columns) - wide):
        return None
    del outputs[REWARDS]
    return Contents((obs, outputs.pop("actions"), outputs), columns, lookback)


def kept_of(episode: Any) -> tuple[Any, ...]:
    """Return what an episode has beside its steps: small, and pickled with the handle."""
    infos = episode.infos
    return (
        episode.id_,
        (episode.agent_id, episode.module_id, episode.multi_agent_episode_id),
        (episode.is_terminated, episode.is_truncated, episode.t_started, episode.t),
        (episode._start_time, episode._last_step_time),
        episode.custom_data or None,
        (infos.data if any(infos.data) else len(infos.data), infos.lookback),
    )


def packed(form: Any) -> bytes:
    """A form on its way. Spaces of images are two more images, but all of one number."""
    return zlib.compress(pickle.dumps(form))


def rebuilt(
    form: bytes, kept: tuple[Any, ...], columns: dict[str, Array], lookback: int, steps: int, *, extended: bool = False
) -> Any:
    """Return the episode whose rows are `columns`; `extended` by the step in its last row, as RLlib does it."""
    mould = _mould(form)
    id_, names, (terminated, truncated, t_started, t), times, custom, (infos, infos_lookback) = kept
    rows = lookback + steps + 1
    end = rows if extended else rows - 1
    infos = [{} for _ in range(infos)] if isinstance(infos, int) else infos
    episode = object.__new__(mould.kind)
    for name, value in mould.attributes:
        setattr(episode, name, value)
    episode.id_ = id_
    episode.agent_id, episode.module_id, episode.multi_agent_episode_id = names
    episode.is_terminated, episode.t_started = terminated, t_started
    episode._start_time, episode._last_step_time = times
    episode._custom_data = custom or {}
    obs_form, actions_form, extra = mould.names
    obs = _nested(obs_form, columns, rows)
    rewards = columns[REWARDS][:end]
    if extended:
        obs = _with_last_again(obs)
        rewards = rewards.astype(np.float64, copy=False)  # as whatever RLlib appends a 0.0 to
        infos = [*infos, infos[-1]]
        t, truncated = t + 1, truncated or not terminated
    episode.is_truncated, episode.t = truncated, t
    episode.infos = mould.buffer(mould.infos, infos, infos_lookback, finalized=False)
    episode.observations = mould.buffer(mould.observations, obs, lookback)
    episode.actions = mould.buffer(mould.actions, _nested(actions_form, columns, end), lookback)
    episode.rewards = mould.buffer(mould.rewards, rewards, lookback)
    outputs = episode.extra_model_outputs = {}
    for name, named in extra.items():
        outputs[name] = mould.buffer(mould.infos, _nested(named, columns, end), lookback)
    return episode


class _Mould:
    """What all episodes of a form have in common."""

    def __init__(self, form: bytes) -> None:
        from ray.rllib.env.single_agent_episode import SingleAgentEpisode

        (observation_space, action_space), self.names = pickle.loads(zlib.decompress(form))
        blank = SingleAgentEpisode(observation_space=observation_space, action_space=action_space)
        self.kind = SingleAgentEpisode
        own = ("_action_space", "_observation_space", "_last_added_observation", "_last_added_infos")
        self.attributes = [(name, getattr(blank, name)) for name in own]
        self._buffer_kind = type(blank.observations)
        self.observations, self.actions = vars(blank.observations), vars(blank.actions)
        self.rewards, self.infos = vars(blank.rewards), vars(blank.infos)

    def buffer(self, attributes: dict[str, Any], data: Any, lookback: int, *, finalized: bool = True) -> Any:
        """A buffer of the blank one's space. RLlib's constructor looks at the space anew, and at lengths of dicts."""
        buffer = object.__new__(self._buffer_kind)
        buffer.__dict__ = {**attributes, "data": data, "lookback": lookback, "finalized": finalized}
        return buffer


@lru_cache(maxsize=64)
def _mould(form: bytes) -> _Mould:
    return _Mould(form)


def _with_last_again(data: Any) -> Any:
    if isinstance(data, Mapping):
        return {key: _with_last_again(value) for key, value in data.items()}
    if isinstance(data, tuple):
        return tuple(map(_with_last_again, data))
    return np.concatenate((data, data[-1:]))


def _collected(name: str, data: Any, columns: dict[str, Array]) -> Any:
    """Put the arrays of nested data into columns; return their names, nested as the data is."""
    if type(data) is np.ndarray:
        columns[name] = data
        return name
    if isinstance(data, Mapping):
        return {key: _collected(f"{name}/{key}", value, columns) for key, value in data.items()}
    if isinstance(data, tuple):
        return tuple(_collected(f"{name}/{i}", value, columns) for i, value in enumerate(data))
    columns[name] = data
    return name


def _nested(form: Any, columns: dict[str, Array], n: int) -> Any:
    if isinstance(form, str):
        return columns[form][:n]
    if isinstance(form, Mapping):
        return {key: _nested(below, columns, n) for key, below in form.items()}
    return tuple(_nested(below, columns, n) for below in form)
