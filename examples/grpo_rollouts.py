"""GRPO on a toy task: a tiny language model learns to sort letters, from groups of answers that come through a queue.

    python examples/grpo_rollouts.py [--plot grpo.png]

    worker 0 --extend--> [ queue `rollouts`, groups of 8  ] --loader(max_tokens), ack--> learner
    worker 1 --extend--> [ answers to one prompt,         ]                                |
       ^                 [ max_staleness=2                ]           policy_version = v + 1
       +------sample---- [ table `weights`                ] <--extend----------------------+

A prompt is two to four letters and ">", such as "dab>", the right answer "abd.". The model is a causal transformer
that begins from nothing. A worker answers each prompt eight times; those eight rows are a group, and the queue hands
out whole groups only, as many as a budget of tokens allows. Rows are as long as their texts: nothing is padded before
it reaches the learner. What a policy more than two updates old has written is refused or dropped. The learner is scored
on prompts that the workers never use.
Exit status: 0 learned (90 % of them right), 1 budget spent without, 130 interrupted.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import random
import signal
import sys
import time
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax

import conduit

LETTERS = 5  # of the alphabet
ASK, STOP, VOCABULARY = LETTERS, LETTERS + 1, LETTERS + 2  # tokens: letters are 0 to 4, then ">", "."
LENGTHS = (2, 3, 4)  # of prompts
WORKERS, GROUP, PROMPTS = 2, 8, 16  # a worker answers PROMPTS prompts of one length, GROUP times each
TOKENS = 2_048  # of prompts and answers in a batch of the learner
STALENESS = 2  # updates that a policy may be behind
CLIP, ENTROPY, RATE = 0.2, 0.02, 1e-3
LONGEST = 2 * max(LENGTHS) + 2


def prompts() -> tuple[list[list[int]], list[list[int]]]:
    """Every prompt there is, in two parts: those to learn from, and a sixth of each length to be scored on."""
    chance = random.Random(0)
    learned, aside = [], []
    for n in LENGTHS:
        every = [list(p) for p in itertools.product(range(LETTERS), repeat=n)]
        chance.shuffle(every)
        aside += every[: len(every) // 6]
        learned += every[len(every) // 6 :]
    return learned, aside


class Model(nn.Module):
    """Logits of the next token at each place of (rows, length): a causal transformer of two layers."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, width)
        self.place = nn.Embedding(LONGEST, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        causal = nn.Transformer.generate_square_subsequent_mask(length)
        x = self.token(tokens) + self.place(torch.arange(length))
        logits: Tensor = self.head(self.layers(x, mask=causal, is_causal=True))
        return logits


@torch.no_grad()
def answer(model: Model, asked: Tensor, *, greedy: bool = False) -> tuple[Tensor, Tensor]:
    """Go on from prompts (rows, n) until "." or n + 1 tokens. Returns answers and log-probabilities, (rows, n + 1)."""
    text, told = asked, []
    for _ in range(asked.shape[1]):
        log_p = log_softmax(model(text)[:, -1], -1)
        token = log_p.argmax(-1, keepdim=True) if greedy else log_p.exp().multinomial(1)
        text = torch.cat([text, token], 1)
        told.append(log_p.gather(1, token))
    return text[:, asked.shape[1] :], torch.cat(told, 1)


def score(asked: list[int], given: Any) -> float:
    """1 for the right answer, "." included; else up to 0.5 for the letters in their places."""
    right = [*sorted(asked), STOP]
    if list(given) == right:
        return 1.0
    placed: int = sum(a == b for a, b in zip(given, right, strict=False))
    return 0.5 * placed / len(right)


def until_stop(given: Any) -> Any:
    """An answer up to its first "."."""
    stops = np.flatnonzero(given == STOP)
    return given[: stops[0] + 1] if len(stops) else given


def flat(model: Model) -> Any:
    """All weights as one float32 vector, copied."""
    return nn.utils.parameters_to_vector(model.parameters()).detach().numpy().copy()


def rollout(model: Model, chosen: list[list[int]], first_id: int) -> dict[str, Any]:
    """GROUP answers to each prompt, as columns for the queue: lists of arrays, each as long as it is."""
    asked = torch.tensor([[*prompt, ASK] for prompt in chosen]).repeat_interleave(GROUP, 0)
    answers, log_p = (x.numpy() for x in answer(model, asked))
    cut = [until_stop(row) for row in answers]
    return {
        "prompt_id": np.repeat(np.arange(first_id, first_id + len(chosen)), GROUP),
        "tokens": [np.concatenate(pair).astype(np.int32) for pair in zip(asked.numpy(), cut, strict=True)],
        "log_prob": [row[: len(kept)] for row, kept in zip(log_p, cut, strict=True)],
        "reward": np.array([score(chosen[i // GROUP], row) for i, row in enumerate(cut)], np.float32),
    }


def work(queue: conduit.Queue, weights: conduit.Table, rank: int, seed: int) -> None:
    """A worker process: newest weights, PROMPTS groups, append; until the queue has ended or the learner is gone."""
    torch.set_num_threads(1)
    torch.manual_seed(seed + rank)
    chance = random.Random(seed + rank)
    by_length = [[p for p in prompts()[0] if len(p) == n] for n in LENGTHS]
    model, version = Model(), -1
    parent = multiprocessing.parent_process()
    for turn in itertools.count():
        if queue.policy_version != version:
            newest = weights.sample(1)
            version = int(newest["version"][0])
            nn.utils.vector_to_parameters(torch.from_numpy(newest["vector"][0]), model.parameters())
        rows = rollout(model, chance.choices(chance.choice(by_length), k=PROMPTS), (turn * WORKERS + rank) * PROMPTS)
        while parent is not None and parent.is_alive():
            try:
                queue.extend(rows, policy_version=version, timeout=1.0)
            except conduit.AppendTimeout:  # the queue is full: the learner is slower
                continue
            except conduit.StalePolicy:  # the learner is quicker: these answers are too old
                pass
            except conduit.QueueEnded:
                return
            break
        else:
            return


def learn(model: Model, optimizer: torch.optim.Optimizer, batch: conduit.QueueBatch) -> None:
    """GRPO: advantages within each group, the clipped objective of PPO for every token of the answers.

    Z. Shao et al., "DeepSeekMath: pushing the limits of mathematical reasoning in open language models", 2024. The
    model begins from nothing, so there is no reference policy to hold it to: an entropy bonus keeps it trying.
    """
    rewards = torch.from_numpy(batch["reward"]).view(-1, GROUP)
    gain = ((rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)).view(-1, 1)
    array, held = batch["tokens"].padded()
    tokens, lengths = torch.from_numpy(array).long(), torch.from_numpy(batch["tokens"].lengths)
    answers = torch.from_numpy(batch["log_prob"].lengths)
    places = torch.arange(tokens.shape[1])
    mine = (torch.from_numpy(held) & (places >= (lengths - answers)[:, None]))[:, 1:]  # an answer ends its row
    before = torch.zeros(mine.shape)
    before[mine] = torch.from_numpy(batch["log_prob"].values)
    every = log_softmax(model(tokens[:, :-1]), -1)
    ratio = (every.gather(2, tokens[:, 1:, None])[..., 0] - before).exp()
    per_token = torch.min(ratio * gain, ratio.clamp(1 - CLIP, 1 + CLIP) * gain)
    entropy = -(every.exp() * every).sum(-1)
    loss = -per_token[mine].mean() - ENTROPY * entropy[mine].mean()
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def accuracy(model: Model, asked: list[list[int]]) -> float:
    """Share of prompts whose likeliest answer is right."""
    right = 0
    for n in LENGTHS:
        some = [p for p in asked if len(p) == n]
        answers = answer(model, torch.tensor([[*p, ASK] for p in some]), greedy=True)[0].tolist()
        right += sum(score(p, row) == 1.0 for p, row in zip(some, answers, strict=True))
    return right / len(asked)


def plot(path: str, curve: list[tuple[float, float, float]], target: float) -> None:
    """Accuracy and mean reward by seconds, as a PNG."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    seconds, accuracies, rewards = zip(*curve, strict=True)
    figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
    axes.plot(seconds, accuracies, label=f"right answers, prompts set apart (target {target:g})")
    axes.plot(seconds, rewards, label="mean reward of the rollouts")
    axes.axhline(target, color="black", linewidth=0.5)
    axes.set(xlabel="seconds", ylim=(0, 1.02))
    axes.legend()
    figure.savefig(path, dpi=130)


def start(queue: conduit.Queue, weights: conduit.Table, seed: int) -> list[Any]:
    """Start the workers. Ctrl-C is for the learner alone, which ends them."""
    context = multiprocessing.get_context("spawn")
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # inherited
    try:
        workers = [
            context.Process(target=work, args=(queue, weights, rank, seed), daemon=True) for rank in range(WORKERS)
        ]
        for worker in workers:
            worker.start()
    finally:
        signal.signal(signal.SIGINT, before)
    return workers


def train(
    queue: conduit.Queue, weights: conduit.Table, model: Model, aside: list[list[int]], updates: int, target: float
) -> list[tuple[float, float, float]]:
    """Learn from the queue until the accuracy is `target`. Returns (seconds, accuracy, mean reward) over time."""
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    curve: list[tuple[float, float, float]] = []
    rewards: list[float] = []
    began = time.monotonic()
    loader = queue.loader(group_by="prompt_id", group_size=GROUP, max_tokens=TOKENS, tokens="tokens", timeout=60.0)
    with loader:
        for version, batch in enumerate(itertools.islice(loader, updates), 1):
            learn(model, optimizer, batch)
            rewards.append(float(batch["reward"].mean()))
            rows, tokens = len(batch), len(batch["tokens"].values)
            batch.ack()
            weights.extend({"version": [version], "vector": flat(model)[None]})
            queue.policy_version = version  # workers may look now, and rows that are too old are out
            if version % 20 and version != updates:
                continue
            curve.append((time.monotonic() - began, accuracy(model, aside), float(np.mean(rewards[-20:]))))
            print(
                f"{curve[-1][0]:5.1f} s  update {version:3}  {rows} answers, {tokens:,} tokens  "
                f"reward {curve[-1][2]:.2f}  accuracy {curve[-1][1]:.2f}",
                flush=True,
            )
            if curve[-1][1] >= target:
                break
    return curve


def main() -> int:
    parser = argparse.ArgumentParser(description="GRPO on sorting letters, through a queue of groups.")
    parser.add_argument("--updates", type=int, default=800, help="the budget: give up after so many (%(default)s)")
    parser.add_argument("--target", type=float, default=0.9, help="accuracy at which it has learned (%(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plot", metavar="PNG", help="draw accuracy and reward over time")
    given = parser.parse_args()
    torch.manual_seed(given.seed)
    torch.set_num_threads(1)
    model = Model()
    aside = prompts()[1]
    column = conduit.Column
    schema = conduit.Schema(
        (
            column("prompt_id", "int64"),
            column("tokens", "int32", (None,), mean_length=8),  # prompt and answer
            column("log_prob", "float32", (None,), mean_length=4),  # of the answer's tokens
            column("reward", "float32"),
        )
    )
    with conduit.Store.create(f"grpo-{os.getpid()}", "64MiB") as store:
        example = {"version": np.int64(0), "vector": flat(model)}
        weights = store.create_table("weights", conduit.Schema.from_example(example), 1)
        weights.extend({"version": [0], "vector": flat(model)[None]})
        room = 2 * WORKERS * PROMPTS * GROUP
        queue = store.create_queue("rollouts", schema, room, max_staleness=STALENESS, max_writers=WORKERS)
        workers = start(queue, weights, given.seed)
        try:
            curve = train(queue, weights, model, aside, given.updates, given.target)
        except KeyboardInterrupt:
            return 130
        finally:
            queue.end()
            for worker in workers:
                worker.join(10.0)
                worker.kill()
                worker.join()
        counts = queue.info().consumers["default"]
    reached = curve[-1][1]
    print(f"{counts.acknowledged:,} answers learned from, {counts.stale_rows:,} dropped as too old")
    told = "learned" if reached >= given.target else "not learned"
    print(f"{told}: {reached:.0%} of {len(aside)} unseen prompts right")
    if given.plot:
        plot(given.plot, curve, given.target)
    return 0 if reached >= given.target else 1


if __name__ == "__main__":
    sys.exit(main())
