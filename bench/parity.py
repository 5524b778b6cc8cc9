"""Does an algorithm learn the same through Conduit? Return over environment steps, stock and Conduit, several seeds.

`python -m bench.parity` (`make parity`): hours. Every finished run is a file of its own, so that it can be stopped and
started again; the plot and the table are made of what is there.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

__all__ = ["main"]

SIDES = ("stock", "conduit")


class Task(NamedTuple):
    """One environment and algorithm, with its budget."""

    name: str
    steps: int


TASKS = (
    Task("cartpole-dqn", 12_000),
    Task("pendulum-sac", 7_000),
    Task("cartpole-ppo", 40_000),
    Task("cartpole-appo", 40_000),
)


def config_of(task: Task, seed: int) -> Any:
    """The RLlib config of a task, the same for both sides."""
    if task.name == "cartpole-dqn":
        from ray.rllib.algorithms.dqn import DQNConfig

        make: Any = DQNConfig  # untyped
        config = make().environment("CartPole-v1").training(epsilon=[(0, 1.0), (5_000, 0.05)])
        config.training(lr=5e-4, n_step=3, target_network_update_freq=500, num_steps_sampled_before_learning_starts=500)
    elif task.name == "cartpole-ppo":
        from ray.rllib.algorithms.ppo import PPOConfig

        make = PPOConfig
        config = make().environment("CartPole-v1").env_runners(num_env_runners=0, num_envs_per_env_runner=4)
        config.training(lr=5e-4, train_batch_size_per_learner=1_000, minibatch_size=125, num_epochs=6)
        config.rl_module(model_config={"fcnet_hiddens": [64, 64], "vf_share_layers": False})
    elif task.name == "cartpole-appo":
        from ray.rllib.algorithms.appo import APPOConfig

        make = APPOConfig
        config = make().environment("CartPole-v1").env_runners(num_env_runners=1, num_envs_per_env_runner=4)
        config.training(lr=1e-3, train_batch_size_per_learner=250)
        config.rl_module(model_config={"fcnet_hiddens": [64, 64], "vf_share_layers": False})
    else:
        from ray.rllib.algorithms.sac import SACConfig

        make = SACConfig
        config = make().environment("Pendulum-v1")
        config.training(actor_lr=1e-3, critic_lr=1e-3, alpha_lr=1e-3, num_steps_sampled_before_learning_starts=500)
        config.training(train_batch_size_per_learner=128)
        config.rl_module(model_config={"fcnet_hiddens": [64, 64], "fcnet_activation": "relu"})
    config.reporting(min_sample_timesteps_per_iteration=200, min_time_s_per_iteration=0)
    return config.debugging(seed=seed)


def run(task: Task, side: str, seed: int, say: Any) -> dict[str, Any]:
    """Train once; returns steps and returns of the episodes, and the seconds it took."""
    import torch

    import conduit.rllib

    torch.set_num_threads(1)
    config = config_of(task, seed)
    if side == "conduit":
        conduit.rllib.attach(config)
    algorithm = config.build_algo()
    curve: list[tuple[int, float]] = []
    began = time.monotonic()
    try:
        steps = 0
        while steps < task.steps:
            result = algorithm.train()
            steps = int(result["num_env_steps_sampled_lifetime"])
            mean = result["env_runners"].get("episode_return_mean")
            if mean is not None and np.isfinite(mean):
                curve.append((steps, float(mean)))
            say(f"{task.name} {side} seed {seed}: {steps:,} of {task.steps:,} steps, return {mean}")
    finally:
        algorithm.stop()
    return {"task": task.name, "side": side, "seed": seed, "curve": curve, "seconds": time.monotonic() - began}


def curves(folder: Path, task: Task, side: str) -> list[list[tuple[int, float]]]:
    """The curves that are there, a list for each seed."""
    return [json.loads(path.read_text())["curve"] for path in sorted(folder.glob(f"{task.name}.{side}.*.json"))]


def on_grid(curve: Sequence[Sequence[float]], grid: Any) -> Any:
    """A curve at the steps of the grid."""
    steps, values = np.array(curve, float).T
    return np.interp(grid, steps, values)


def plot(folder: Path) -> None:
    """Mean over seeds, with a band from the least to the greatest, for each task."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    begun = [task for task in TASKS if any(curves(folder, task, side) for side in SIDES)]
    if not begun:
        return
    down = -(-len(begun) // 2)
    figure, axes = plt.subplots(down, 2, figsize=(11, 3.75 * down), layout="constrained", squeeze=False)
    for ax in axes.flat[len(begun) :]:
        ax.axis("off")
    lines = ["| task | side | seeds | return at the end: mean | least | greatest |", "|---|---|---|---|---|---|"]
    for task, ax in zip(begun, axes.flat, strict=False):
        for side, colour in zip(SIDES, ("#8c8c8c", "#1f77b4"), strict=True):
            found = [curve for curve in curves(folder, task, side) if len(curve) > 1]
            if not found:
                continue
            grid = np.linspace(max(c[0][0] for c in found), min(c[-1][0] for c in found), 200)
            values = np.array([on_grid(curve, grid) for curve in found])
            ax.plot(grid, values.mean(axis=0), color=colour, label=f"{side}, {len(found)} seeds")
            ax.fill_between(grid, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.2, linewidth=0)
            last = values[:, -1]
            lines.append(
                f"| {task.name} | {side} | {len(found)} | {last.mean():.0f} | {last.min():.0f} | {last.max():.0f} |"
            )
        ax.set_title(task.name)
        ax.set_xlabel("environment steps")
        ax.set_ylabel("mean return")
        if ax.lines:
            ax.legend(frameon=False)
    figure.savefig(folder / "parity.png", dpi=120)
    plt.close(figure)
    (folder / "parity.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is missing, and draw."""
    parser = argparse.ArgumentParser(prog="python -m bench.parity", description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", choices=[task.name for task in TASKS])
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "docs" / "parity")
    given = parser.parse_args(argv)
    given.out.mkdir(parents=True, exist_ok=True)
    todo = [
        (task, side, seed)
        for seed in range(1, given.seeds + 1)
        for task in TASKS
        for side in SIDES
        if given.only in (None, task.name) and not (given.out / f"{task.name}.{side}.{seed}.json").exists()
    ]
    try:
        if todo:
            import ray

            logging.disable(logging.WARNING)
            ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
        for i, (task, side, seed) in enumerate(todo):

            def say(text: str, number: int = i + 1) -> None:
                print(f"\r[{number}/{len(todo)}] {text}   ", end="", flush=True)

            done = run(task, side, seed, say)
            print()
            part = given.out / "part.json"
            part.write_text(json.dumps(done))
            part.rename(given.out / f"{task.name}.{side}.{seed}.json")
    except KeyboardInterrupt:
        print("\nstopped; the next call goes on from here")
        return 130
    finally:
        plot(given.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
