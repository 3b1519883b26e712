"""The plan of a history: its settings, and what happens when. A seed makes it; a failing one is made shorter."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, NamedTuple

KINDS = ("good", "good", "good", "good", "several", "bad", "half", "slow", "later", "refused", "deadly")


class Step(NamedTuple):
    """at: seconds since the beginning. what: the name of a method of `History`. given: its arguments."""

    at: float
    what: str
    given: tuple[Any, ...]

    def __str__(self) -> str:
        return f"{self.at:8.3f}  {self.what} {' '.join(map(str, self.given))}".rstrip()


@dataclass
class Plan:
    """seconds: after which nothing goes wrong any more."""

    seed: int
    seconds: float
    policy: str
    gateways: int
    workers: int
    first_bodies: int
    keep_batches: int
    window: int
    far: frozenset[str]
    steps: list[Step]

    def __str__(self) -> str:
        head = (
            f"seed {self.seed}: {self.seconds:.0f} s, Redis's log {self.policy}, {self.gateways} gateways, "
            f"{self.workers} workers, claims from {self.first_bodies}, {self.keep_batches} batches kept, keys for "
            f"{self.window} s, rows elsewhere: {', '.join(sorted(self.far)) or 'none'}"
        )
        return "\n".join([head, *(f"{n:4}  {step}" for n, step in enumerate(self.steps))])


def make_plan(seed: int) -> Plan:
    chosen = random.Random(f"plan {seed}")
    seconds = chosen.choice((15.0, 25.0, 40.0))
    window = chosen.choice((10, 20, 30))
    streams = chosen.sample(("plain", "keyed", "content"), chosen.choice((1, 2, 2, 3)))
    plan = Plan(
        seed, seconds, "everysec" if chosen.random() < 0.1 else "always", chosen.choice((1, 1, 2)),
        chosen.choice((2, 2, 3)), chosen.choice((1, 2, 3, 5, 8)), chosen.choice((2, 5, 1000)), window,
        frozenset(name for name in ("plain", "keyed", "content") if chosen.random() < 0.25), [],
    )  # fmt: skip
    steps = plan.steps
    for _ in range(chosen.randint(8, 40)):
        steps.append(post(chosen, plan, chosen.choice(streams)))
    trouble = chosen.choices(FAULTS, weights=[fault[1] for fault in FAULTS], k=chosen.randint(1, 14))
    # some histories have no clock steps and no settings that change, so that what these permit is not permitted
    quiet = {name for name in ("clock", "settings", "keep", "purge") if chosen.random() < 0.6}
    for name, _ in trouble:
        if name not in quiet:
            at = round(chosen.uniform(0, seconds), 3)
            steps.append(Step(at, name, given(chosen, plan, name, streams)))
            steps += before(chosen, plan, name, at, streams)
    steps.sort(key=lambda step: step.at)
    return plan


def post(chosen: random.Random, plan: Plan, name: str) -> Step:
    """An event: its stream, its kind, and when it is sent again although it was acknowledged."""
    kind = chosen.choice(KINDS)
    if kind == "deadly" and chosen.random() < 0.7:
        kind = "good"
    share = chosen.choice((0.0, 0.1, 0.45, 0.7, 0.9, 1.2))
    again = () if chosen.random() < 0.5 else (round(share * plan.window, 1),)
    burst = chosen.choice((1, 1, 1, 2, 4, 7))
    return Step(round(chosen.uniform(0, plan.seconds), 3), "post", (name, kind, burst, *again))


# what may go wrong, and how often relative to each other
FAULTS = [
    ("kill", 6), ("cut", 6), ("stall", 3), ("restart", 2), ("restart_redis", 3), ("stall_redis", 2), ("lose_power", 2),
    ("clock", 2), ("settings", 2), ("keep", 1), ("purge", 1), ("release", 2), ("bury", 1), ("replay", 2), ("lock", 2),
    ("fill_disk", 1), ("fill_redis", 1), ("close_sink", 2), ("cut_sink", 2), ("old_claim", 2), ("restart_views", 1),
    ("discard", 1),
]  # fmt: skip


def before(chosen: random.Random, plan: Plan, name: str, at: float, streams: list[str]) -> list[Step]:
    """What gives a verb something to do: bodies on the list and no worker that takes them, or claims that stay open."""
    began = round(max(0.0, at - 2), 3)
    steps: list[Step] = []
    if name == "purge" or (name in ("restart_redis", "lose_power") and chosen.random() < 0.4):
        steps += [Step(began, "stall", (f"worker{n}", chosen.choice((2.5, 4.0, 8.0)))) for n in range(plan.workers)]
    elif name in ("bury", "release", "old_claim") and chosen.random() < 0.7:
        steps.append(Step(began, "lock", (chosen.choice((3.0, 8.0)),)))
    if steps:
        for stream in streams:
            step = post(chosen, plan, stream)
            steps.append(step._replace(at=round(began + chosen.uniform(0.1, 1.9), 3)))
    return steps


def given(chosen: random.Random, plan: Plan, name: str, streams: list[str]) -> tuple[Any, ...]:
    process = chosen.choice(
        [*(f"worker{n}" for n in range(plan.workers)), *(f"gateway{n}" for n in range(plan.gateways)), "follower"]
    )
    worker = f"worker{chosen.randrange(plan.workers)}"
    if name == "kill":
        return process, chosen.choice(("", "", "redis", "disk", "decode", "sink")), chosen.randint(0, 25)
    if name == "cut":
        return (
            process, chosen.randint(0, 8), chosen.choice(("unsent", "unanswered", "unanswered", "late")),
            chosen.random() < 0.6, round(chosen.uniform(0.5, 8), 2),
        )  # fmt: skip
    if name in ("stall", "stall_redis", "lock", "fill_disk", "fill_redis", "close_sink", "restart_redis", "lose_power"):
        seconds = round(chosen.choice((chosen.uniform(0.05, 2), chosen.uniform(2, 15))), 2)
        return (process, seconds) if name == "stall" else (seconds,)
    if name == "restart":
        return (worker,)
    if name == "clock":
        return (round(chosen.choice((-1, 1, 1)) * chosen.choice((0.3, 5, 40, 4000)), 1),)
    if name == "settings":
        far = tuple(each for each in streams if chosen.random() < 0.3)
        return chosen.choice(("same", "same", "off", "half")), chosen.choice((1, 2)), far
    if name == "keep":
        return (chosen.choice((8, 20, None)), chosen.choice((15, None)))
    if name in ("purge", "release", "bury"):
        return (chosen.choice(streams),)
    if name == "cut_sink":
        return worker, chosen.choice(("before", "after"))
    if name == "old_claim":
        return worker, round(chosen.uniform(1, 20), 1)
    return ()
