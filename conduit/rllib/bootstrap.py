"""The step that RLlib's on-policy learners add behind an episode's last, to bootstrap from.

RLlib appends it to each column of each episode, and puts what it says of it into lists of single values. Episodes that
are opened here have it in their last row already, and what is said of it are arrays. That is what pays for the copy
into a queue and out again.
"""

from __future__ import annotations

import copy
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np

from conduit_store.arrays import Array

__all__ = ["Extended", "extend", "install"]


class Extended(list[Any]):
    """Episodes that have the additional step."""


def extend(episode: Any) -> Any:
    """Add the step to an episode that did not come out of a queue, as RLlib does. Returns it."""
    from ray.rllib.utils.postprocessing.episodes import add_one_ts_to_episodes_and_truncate

    add_one_ts_to_episodes_and_truncate(list(getattr(episode, "agent_episodes", {"": episode}).values()))
    return episode


def install(pipeline: Any) -> bool:
    """Put a piece that takes `Extended` episodes in the place of RLlib's own, where that is the pipeline's first.

    Only where it does what RLlib's does, which is tried: another version of ray may have changed it. Returns whether
    `Extended` episodes may be given to the pipeline.
    """
    from ray.rllib.connectors import common, learner

    if pipeline is None or not pipeline.connectors:
        return False
    first, *others = pipeline.connectors
    if isinstance(first, _piece()):
        return True
    if type(first) is not learner.AddOneTsToEpisodesAndTruncate or not _same(first):
        return False
    ours = _piece()(first.input_observation_space, first.input_action_space)
    ours.whole_columns = [type(piece) for piece in others[: len(_BEHIND)]] == [
        getattr(common, name, None) or getattr(learner, name) for name in _BEHIND
    ]
    pipeline.remove(type(first))
    pipeline.prepend(ours)
    return True


# RLlib's own pieces behind the first, up to the one that makes an array of each column: these take a column's parts in
# any division, as long as no module is recurrent. A piece of the user's may look for the parts of each episode.
_BEHIND = (
    "AddObservationsFromEpisodesToBatch",
    "AddColumnsFromEpisodesToTrainBatch",
    "AddTimeDimToBatchAndZeroPad",
    "AddStatesFromEpisodesToBatch",
    "BatchIndividualItems",
)
_STATES = ("state_in", "state_out")  # RLlib adds them elsewhere


@cache
def _piece() -> Any:
    """The class, which needs ray: named as RLlib's, whose timers and whose place in checkpoints it keeps."""
    from ray.rllib.connectors.learner import AddOneTsToEpisodesAndTruncate as Stock
    from ray.rllib.env.multi_agent_episode import MultiAgentEpisode

    class AddOneTsToEpisodesAndTruncate(Stock):
        whole_columns = False

        def __call__(self, *, rl_module: Any, batch: Any, episodes: Any, shared_data: Any = None, **given: Any) -> Any:
            if not isinstance(episodes, Extended):
                return super().__call__(
                    rl_module=rl_module, batch=batch, episodes=episodes, shared_data=shared_data, **given
                )
            if isinstance(episodes[0], MultiAgentEpisode):  # a part of an episode is on its own from here on
                for i, whole in enumerate(episodes):
                    whole.id_ += f"_{i}"
                    for own in whole.agent_episodes.values():
                        own.multi_agent_episode_id = whole.id_
            singles = list(self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False))
            for i, episode in enumerate(singles):
                episode.id_ += f"_{i}"
            ends = np.cumsum([len(episode) for episode in singles])
            flags = _flags(singles, ends)
            if self.whole_columns and not rl_module.is_stateful():
                _add_whole(batch, singles, flags)
            else:
                edges = [0, *ends.tolist()]
                for name, values in flags.items():
                    for episode, (start, stop) in zip(singles, pairwise(edges), strict=True):
                        self.add_n_batch_items(batch, name, values[start:stop], stop - start, episode)
            shared_data["_added_loss_mask_for_valid_episode_ts"] = True
            return batch

    return AddOneTsToEpisodesAndTruncate


def _flags(episodes: list[Any], ends: Array) -> dict[str, Array]:
    """What RLlib says of every step: the additional one counts for nothing, the one before it ends its episode."""
    inside = np.ones(ends[-1], bool)
    inside[ends - 1] = False
    terminateds, truncateds = np.zeros(ends[-1], bool), np.zeros(ends[-1], bool)
    terminateds[ends - 2] = [bool(episode.is_terminated) for episode in episodes]
    truncateds[ends - 2] = [bool(episode.is_truncated) for episode in episodes]
    return {"loss_mask": inside, "terminateds": terminateds, "truncateds": truncateds}


def _add_whole(batch: dict[str, Any], episodes: list[Any], flags: dict[str, Array]) -> None:
    """Add whole columns, under the first episode's name. Nested ones, and those not all episodes have, are left out."""
    from ray.rllib.utils.spaces.space_utils import BatchedNdArray

    key = (episodes[0].id_,)
    for name, values in flags.items():
        batch[name] = {key: [values.view(BatchedNdArray)]}
    outputs = episodes[0].extra_model_outputs
    if any(episode.extra_model_outputs.keys() != outputs.keys() for episode in episodes):
        outputs = {}
    columns = {
        "obs": [episode.observations for episode in episodes],
        "actions": [episode.actions for episode in episodes],
        "rewards": [episode.rewards for episode in episodes],
    }
    for name in outputs:
        if name not in batch and name not in columns and name not in _STATES:
            columns[name] = [episode.extra_model_outputs[name] for episode in episodes]
    for name, buffers in columns.items():
        if name in batch or not all(type(buffer.data) is np.ndarray for buffer in buffers):
            continue
        stop = -1 if name == "obs" else None  # the last is only what the additional step would lead to
        first, *parts = [buffer.data[buffer.lookback : stop] for buffer in buffers]
        batch[name] = {key: [first.view(BatchedNdArray), *parts]}  # which all of them are taken for


def _same(stock: Any) -> bool:
    """Whether both pieces make the same of three short episodes: one that ended, one that was cut, one that goes on."""
    from ray.rllib.env.single_agent_episode import SingleAgentEpisode

    def episode(steps: int, **flags: bool) -> Any:
        obs, ones = [np.full(2, t, np.float32) for t in range(steps + 1)], [1.0] * steps
        made: Any = SingleAgentEpisode
        return made(f"{steps}", observations=obs, actions=[1] * steps, rewards=ones, len_lookback_buffer=0, **flags)

    given = [episode(1, terminated=True), episode(2, truncated=True), episode(3)]
    found = []
    for piece, taken in (
        (stock, [e.to_numpy() for e in copy.deepcopy(given)]),
        (_piece()(), Extended(extend(e.to_numpy()) for e in copy.deepcopy(given))),
    ):
        shared: dict[str, Any] = {}
        batch = piece(rl_module=None, batch={}, episodes=taken, shared_data=shared)
        columns = {
            column: {key: np.concatenate([np.atleast_1d(item) for item in items]).tolist() for key, items in of.items()}
            for column, of in batch.items()
        }
        states = [(e.id_, len(e), e.t, e.is_terminated, e.is_truncated, e.get_rewards().tolist()) for e in taken]
        found.append((columns, shared, states))
    return bool(found[0] == found[1])
