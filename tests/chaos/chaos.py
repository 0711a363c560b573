"""One chaos from beginning to end: plan, strikes, rest, account; as one line of JSON."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.chaos.account import Account
from tests.chaos.conductor import KEPT, Conductor, Settings, Story, account_in
from tests.chaos.plan import Kind, plan_of
from tests.chaos.strikes import carry_out

EXAMPLES: Final = 5
"""The number of examples of each finding that are printed in words."""


@dataclass(frozen=True)
class Result:
    """What a chaos came to.

    Attributes:
        counts: How many strikes of each kind were planned.
        struck: How many there were; fewer where the time was up.
        left_out: Kinds that this machine does not allow, and why.
        kept: Where all of it lies, if it was not clean.
    """

    seed: int
    settings: Settings
    counts: Mapping[Kind, int]
    struck: Mapping[Kind, int]
    left_out: Mapping[Kind, str]
    account: Account
    story: Story
    is_at_rest: bool
    has_stopped: bool
    secs: float
    kept: Path | None

    @property
    def is_clean(self) -> bool:
        """Whether the account is, nothing hung, and nothing ended or outlived its driver unasked."""
        return is_clean(self.account, self.story) and self.is_at_rest and self.has_stopped

    def to_json(self) -> dict[str, Any]:
        """For the one line."""
        story = self.story
        return {
            "seed": self.seed,
            "clean": self.is_clean,
            "planned": sum(self.counts.values()),
            "strikes": {str(kind): self.struck[kind] for kind in self.counts if self.struck[kind]},
            "left_out": {str(kind): why for kind, why in self.left_out.items()},
            "master": "real time" if self.settings.real_time else self.settings.master,
            "queue_retries": self.settings.queue_retries,
            "drivers": story.starts,
            "secs": round(self.secs),
            **counts_of(self.account),
            "settled": self.is_at_rest,
            "stopped": self.has_stopped,
            "hangs": story.hangs,
            "outlived": story.outlived,
            "ends": dict(Counter(story.ends)),
            "story": story.strikes,
            "kept": str(self.kept) if self.kept else None,
        }


def counts_of(account: Account) -> dict[str, Any]:
    """An account, for the one line."""
    return {
        "account": {
            "messages": account.messages,
            "acked": account.acked,
            "dead": account.dead,
            "effects": account.effects,
            "told_again": account.told_again,
            "stale_letters": account.stale_letters,
            "findings": {name: len(found) for name, found in account.findings.items()},
        },
        "duplicates": account.duplicates,
        "examples": {name: found[:EXAMPLES] for name, found in account.findings.items()},
    }


def drawn_again(line: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The line of a chaos whose folder was kept, with its account drawn up again."""
    account = account_in(folder, folder / KEPT / "checkpoint", queue_retries=line["queue_retries"])
    story = Story(line["story"], Counter(line["ends"]), line["hangs"], line["outlived"], line["drivers"])
    clean = is_clean(account, story) and line["settled"] and line["stopped"]
    return {**line, **counts_of(account), "clean": clean}


def is_clean(account: Account, story: Story) -> bool:
    """Whether there is nothing to look into."""
    unasked = [end for end in story.ends if end.endswith("after nothing")]
    return account.is_clean and not (story.hangs or story.outlived or unasked)


def perform(
    seed: int,
    counts: Mapping[Kind, int],
    settings: Settings,
    say: Callable[[str], object],
    folder: Path | None = None,
    *,
    keep: bool = False,
    strike_secs: float | None = None,
    stage: Callable[[Path, Settings], Conductor] = Conductor,
) -> Result:
    """Run one chaos.

    Args:
        counts: How many strikes of each kind; what this machine does not allow is left out.
        say: Told of each strike.
        folder: Where; a folder that does not exist yet. None: a temporary one.
        keep: Keep what there is also when it is clean.
        strike_secs: Strike no more after this number of seconds, though strikes of the plan are left.
        stage: What conducts it.
    """
    folder = folder or Path(tempfile.mkdtemp(prefix="chaos-")) / "chaos"
    folder.mkdir(parents=True)
    began = time.monotonic()
    with stage(folder, settings) as conductor:
        left_out: dict[Kind, str] = {}
        if counts.get(Kind.DISK) and not conductor.disk.can_be_full:
            left_out[Kind.DISK] = "no right to mount a small disk"
        if counts.get(Kind.CLOCK) and not conductor.clock.can_jump:
            left_out[Kind.CLOCK] = "no C compiler to make a clock"
        if counts.get(Kind.EXECUTOR) and not conductor.has_executors:
            left_out[Kind.EXECUTOR] = "no executors in local mode"
        if counts.get(Kind.NETWORK) and not conductor.can_cut:
            left_out[Kind.NETWORK] = "one machine has no network"
        counts = {kind: count for kind, count in counts.items() if count and kind not in left_out}
        struck: Counter[Kind] = Counter()
        for strike in plan_of(seed, counts):
            if strike_secs is not None and time.monotonic() - began > strike_secs:
                break
            carry_out(conductor, strike)
            struck[strike.kind] += 1
            say(f"{time.monotonic() - began:5.0f} s  {conductor.story.strikes[-1]}")
        is_at_rest = conductor.come_to_rest()
        say(f"{time.monotonic() - began:5.0f} s  at rest: {is_at_rest}")
        has_stopped = conductor.stop()
        say(f"{time.monotonic() - began:5.0f} s  stopped: {has_stopped}")
    account, story = conductor.account(), conductor.story
    kept = folder if keep or not (is_clean(account, story) and is_at_rest and has_stopped) else None
    conductor.clear_away(keep=kept is not None)
    secs = time.monotonic() - began
    return Result(
        seed, settings, counts, struck, left_out, account, story, is_at_rest, has_stopped, secs, kept
    )
