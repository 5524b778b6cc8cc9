"""Which configs are covered. What is not is refused by name, when it is attached and when the algorithm is built."""

from __future__ import annotations

from typing import Any

from conduit_store.errors import ConfigError

__all__ = ["BUFFERS", "buffer_type", "check", "check_frames", "check_recurrent", "is_offline", "is_on_policy"]

BUFFERS = ("EpisodeReplayBuffer", "PrioritizedEpisodeReplayBuffer")  # of several agents "MultiAgent" before them


def is_on_policy(config: Any) -> bool:
    """Whether the algorithm takes its episodes as they come: PPO, APPO and IMPALA."""
    from ray.rllib.algorithms.impala.impala import IMPALA
    from ray.rllib.algorithms.ppo.ppo import PPO

    return config.algo_class is not None and issubclass(config.algo_class, (PPO, IMPALA))


def is_offline(config: Any) -> bool:
    """Whether the algorithm learns from files: CQL."""
    from ray.rllib.algorithms.cql.cql import CQL

    return config.algo_class is not None and issubclass(config.algo_class, CQL)


def check(config: Any) -> None:
    """Refuse what is not covered.

    Raises:
        ConfigError: says which setting, and what to do.
    """
    from ray.rllib.algorithms.dqn.dqn import DQN

    on_policy = is_on_policy(config)
    if not on_policy and (config.algo_class is None or not issubclass(config.algo_class, DQN)):
        name = getattr(config.algo_class, "__name__", "no algorithm")
        raise ConfigError(
            f"attach() got a config for {name}: DQN, SAC, TQC, CQL, PPO, APPO, IMPALA and what derives from them are "
            "covered"
        )
    _refuse({"the old API stack": not config.enable_env_runner_and_connector_v2})
    if is_offline(config):
        _check_offline(config)
        return
    _refuse(
        {
            f"offline data (input_) for {config.algo_class.__name__}": config.is_offline or not config.is_online,
            "create_local_env_runner=False: the driver's own closes the store": not config.create_local_env_runner,
        }
    )
    if not on_policy:
        _check_replay(config)


def _check_offline(config: Any) -> None:
    if not config.is_offline:
        raise ConfigError("CQL learns from files: give the path of some, config.offline_data(input_=...)")
    of_ours = getattr(config.offline_data_class, "conduit_reading", None) is not None
    _refuse(
        {
            "an offline_data_class of your own": config.offline_data_class is not None and not of_ours,
            "a prelearner_class of your own: no episodes are made": config.prelearner_class,
            "a learner connector of your own with CQL: no episodes are made": config._learner_connector,
            "several paths in input_: give their folder": isinstance(config.input_, list) and len(config.input_) > 1,
            "input_filesystem: files of this machine are read": config.input_filesystem is not None,
            "input_read_sample_batches: import them first": config.input_read_sample_batches,
            "ignore_final_observation": config.ignore_final_observation,
            f"n_step={config.n_step} with CQL, whose loss looks one step ahead": config.n_step != 1,
            "several agents with CQL": config.is_multi_agent,
        }
    )


def _check_replay(config: Any) -> None:
    _refuse(
        {
            f"store_buffer_in_checkpoints with num_learners={config.num_learners}; use 0":
                config.num_learners > 0 and config.store_buffer_in_checkpoints,
            "a learner connector of your own with replay: it works on episodes, which stay in the store":
                config._learner_connector,
        }
    )  # fmt: skip
    if (config.model_config or {}).get("use_lstm"):
        check_recurrent(config)
    kind = buffer_type(config)
    kinds = [f"MultiAgent{name}" if config.is_multi_agent else name for name in BUFFERS]
    if kind not in kinds:
        raise ConfigError(f"replay_buffer_config type {kind!r} is not covered: give one of {', '.join(kinds)}")


def check_recurrent(config: Any) -> None:
    """Refuse what RLlib's own replay cannot do with a recurrent module either.

    Raises:
        ConfigError: says which setting, and what to do.
    """
    _refuse(
        {
            f"n_step={config.n_step} with a recurrent module; use 1, as RLlib asks for": config.n_step != 1,
            "several agents with a recurrent module and replay": config.is_multi_agent,
            "prioritized replay with a recurrent module, to which RLlib's TD errors do not come back; use "
            "replay_buffer_config type 'EpisodeReplayBuffer'": "Prioritized" in buffer_type(config),
        }
    )


def check_frames(config: Any) -> None:
    """Refuse stacks of frames where nothing puts them together again.

    Raises:
        ConfigError: says which setting.
    """
    _refuse(
        {
            "frames= without replay": is_on_policy(config) or is_offline(config),
            "frames= with several agents": config.is_multi_agent,
            f"frames= with a range of n_step, as {config.get('n_step')}": not isinstance(config.get("n_step", 1), int),
        }
    )


def _refuse(refused: dict[str, Any]) -> None:
    for what, given in refused.items():
        if given:
            raise ConfigError(f"conduit.rllib does not cover {what}")


def buffer_type(config: Any) -> str:
    """The name of the buffer's class, whatever way it is given."""
    kind = config.replay_buffer_config.get("type")
    return str(getattr(kind, "__name__", kind)).rpartition(".")[2]
