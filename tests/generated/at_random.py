"""Large topologies from a seed: what Hypothesis draws stays small, and Spark is given a fixed list."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from tests.generated.scripted import BoltSpec, Drawn, Input, Message, Profile
from tests.generated.tracker import Tracker

GROUPINGS = ("shuffle", "local_or_shuffle", "none", "fields", "partial_key", "global", "all", "custom")
KINDS = ("basic", "hand", "join", "arrow")


def topology(seed: int, kinds: tuple[str, ...] = KINDS, largest: int = 1500) -> Drawn:
    """A topology of 4 to 6 bolts and 10 messages, the same for the same seed.

    Args:
        largest: The largest number of copies of tuples; tuples have fewer children to keep to it.
    """
    random = Random(seed)
    spouts = ("spout0", "spout1")[: random.randint(1, 2)]
    bolts: list[BoltSpec] = []
    for name in random.sample("pqrstu", random.randint(4, 6)):
        bolts.append(_bolt(random, [*spouts, *(bolt.id for bolt in bolts)], name, kinds))
    percents = {name: random.choice([0, 0, 5, 20]) for name in ("fail", "forget", "throw", "loose", "refuse")}
    profile = Profile(fan_out=5, **percents)
    messages = tuple(
        Message(random.choice(spouts), random.choice("abc"), random.random() < 0.85, random.randrange(3))
        for _ in range(10)
    )
    drawn = Drawn(seed, profile, spouts, tuple(bolts), messages)
    while Tracker(drawn).size() > largest and drawn.profile.fan_out > 1:
        drawn = replace(drawn, profile=replace(drawn.profile, fan_out=drawn.profile.fan_out - 1))
    return drawn


def _bolt(random: Random, sources: list[str], name: str, kinds: tuple[str, ...]) -> BoltSpec:
    kind = random.choice(kinds)
    shared = random.choice(["fields", "global", "all"])
    inputs: dict[tuple[str, str], Input] = {}
    for source in [sources[-1], *random.choices(sources, k=random.randint(0, 2))]:
        stream = random.choice(["default", "default", "side", "direct"])
        if kind == "join":
            stream = "default" if stream == "direct" else stream
        grouping = shared if kind == "join" else "direct" if stream == "direct" else random.choice(GROUPINGS)
        inputs[source, stream] = Input(source, stream, grouping)
    return BoltSpec(name, kind, random.randint(1, 3), tuple(inputs.values()))
