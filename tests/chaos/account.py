"""The account: what the queue says of every message, against what the bolts left behind and remember.

Rules of this file
------------------
1. A pure function of the evidence: no files, no clock. It is tested by feeding it what must not be.
2. A finding is a breach of docs/guarantee.md, with the message it happened to. No finding is explained away
   by what was struck; only duplicates have causes, since "at least once" allows them, and each needs one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

from tests.chaos.effects import CORRUPT, Effect, Memory
from tests.chaos.message_queue import Entry, Message, State, What
from tests.chaos.nature import BEFORE_A_HOLD, PROBE, Temper, effects_of, is_of_queue, nature_of

FINDINGS: Final = {
    "lost": "delivered to acktree, and neither acked nor dead",
    "never_delivered": "neither acked nor dead, and never asked for",
    "judged_twice": "acked and dead, or with one verdict delivered twice in one run of the driver",
    "stale_verdict": "a queue's message: the verdict is of a delivery that was over, or by another driver",
    "delivered_after_verdict": "asked for again although it was acked or dead",
    "acked_without_effects": "acked, and no attempt of that delivery left all of its effects",
    "corrupt": "a bolt was given other values than were emitted",
    "dead_unexpectedly": "given up although it is no poison",
    "dead_without_letter": "given up by acktree, and not among its dead letters",
    "seen_twice": "a position spout's message that bolts saw under two deliveries",
    "remembered_twice": "the tally remembers one tuple of one attempt more than once",
    "not_remembered": "acked, and the tally remembers no attempt of that delivery whole",
    "remembered_without_effect": "the tally remembers what it never executed",
    "miscounted": "the tally's two books differ",
    "done_twice_without_cause": "an effect that nothing explains the second time",
}
"""Each breach, and what it is."""


@dataclass(frozen=True)
class Letter:
    """A dead letter of acktree's."""

    number: int
    delivery: int
    attempts: int


@dataclass(frozen=True)
class Evidence:
    """All that is known at the end.

    Attributes:
        queue_retries: Whether acktree tries the queue's messages again, and so writes their dead letters.
        memory: What the tally said that it remembers; None when it could not be asked.
    """

    messages: Sequence[Message]
    diary: Sequence[Entry]
    effects: Iterable[Effect]
    letters: Sequence[Letter]
    queue_retries: bool
    memory: Memory | None = None


@dataclass(frozen=True)
class Account:
    """What became of everything.

    Attributes:
        findings: By name, a sentence for each breach. Empty when the account is clean.
        duplicates: Effects beyond the first of each (message, bolt, part), by cause.
        told_again: Verdicts of position spouts that the next driver delivered once more, as it may.
        stale_letters: Dead letters of messages that were acked in a later delivery, as may be.
    """

    messages: int = 0
    acked: int = 0
    dead: int = 0
    effects: int = 0
    told_again: int = 0
    stale_letters: int = 0
    duplicates: Mapping[str, int] = field(default_factory=dict)
    findings: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def is_clean(self) -> bool:
        """Whether nothing was lost, doubled without cause, or acked in vain."""
        return not self.findings


_VERDICTS: Final = {What.ACKED: State.ACKED, What.DEAD: State.DEAD}
_Attempt = tuple[int, int, int]
"""(number, delivery, attempt)"""


def account_of(evidence: Evidence) -> Account:
    """Draw up the account."""
    found: dict[str, list[str]] = defaultdict(list)
    messages = [message for message in evidence.messages if message.number != PROBE]
    entries_of: dict[int, list[Entry]] = defaultdict(list)
    for entry in evidence.diary:
        if entry.number not in (-1, PROBE):
            entries_of[entry.number].append(entry)
    by_place: dict[tuple[int, str, int], list[Effect]] = defaultdict(list)
    for effect in evidence.effects:
        by_place[effect.number, effect.bolt, effect.part].append(effect)
    left: dict[_Attempt, set[tuple[str, int]]] = defaultdict(set)
    for (number, bolt, part), effects in by_place.items():
        for effect in effects:
            left[number, effect.delivery, effect.attempt].add((bolt, part))

    again = sum(_read(message, entries_of[message.number], found) for message in messages)
    acked = [(entry.number, entry.delivery) for entry in evidence.diary if entry.what is What.ACKED]
    acked = [pair for pair in dict.fromkeys(acked) if pair[0] != PROBE]
    _look_for_effects(acked, left, found)
    stale = _look_at_letters(messages, entries_of, evidence, found)
    if evidence.memory is not None:
        _look_at_memory(evidence.memory, acked, left, found)
    causes = Counter(_causes(by_place, entries_of, found))
    return Account(
        messages=len(messages),
        acked=sum(message.state is State.ACKED for message in messages),
        dead=sum(message.state is State.DEAD for message in messages),
        effects=sum(map(len, by_place.values())),
        told_again=again,
        stale_letters=stale,
        duplicates=dict(sorted(causes.items())),
        findings={name: found[name] for name in FINDINGS if found[name]},
    )


def _read(message: Message, entries: Sequence[Entry], found: dict[str, list[str]]) -> int:
    """Follow one message through the diary; how many of its verdicts were delivered again."""
    line = f"message {message.number} is {message.state}: {_story(entries)}"
    if message.state not in _VERDICTS.values():
        found["lost" if any(_is_delivery(entry) for entry in entries) else "never_delivered"].append(line)
    if message.state is State.DEAD and nature_of(message.number).temper is not Temper.POISON:
        found["dead_unexpectedly"].append(line)
    judged = [place for place, entry in enumerate(entries) if entry.what in _VERDICTS]
    until = judged[0] + 1 if judged else len(entries)
    if any(map(_is_delivery, entries[until:])):
        found["delivered_after_verdict"].append(line)
    if is_of_queue(message.number) and _is_stale(entries[:until]):
        found["stale_verdict"].append(line)
    verdicts = [entries[place] for place in judged]
    runs = {entry.run for entry in verdicts}
    may_repeat = not is_of_queue(message.number) and len({entry.what for entry in verdicts}) == 1
    if len(verdicts) > (len(runs) if may_repeat else 1):
        found["judged_twice"].append(line)
    return max(0, len(verdicts) - 1)


def _is_delivery(entry: Entry) -> bool:
    return entry.what is What.DELIVERED


def _is_stale(entries: Iterable[Entry]) -> bool:
    """Whether some verdict is not of the open delivery, or not delivered by the driver that has it."""
    open_as: tuple[int, int] | None = None
    for entry in entries:
        if _is_delivery(entry):
            open_as = entry.delivery, entry.run
            continue
        if entry.what is not What.REDELIVERED and open_as != (entry.delivery, entry.run):
            return True
        open_as = None
    return False


def _story(entries: Sequence[Entry]) -> str:
    return ", ".join(
        f"{entry.what} {entry.delivery} by driver {entry.run}"
        + (f" ({entry.detail})" if entry.detail else "")
        for entry in entries[-8:]
    )


def _look_for_effects(
    acked: Sequence[tuple[int, int]],
    left: Mapping[_Attempt, set[tuple[str, int]]],
    found: dict[str, list[str]],
) -> None:
    attempts: dict[tuple[int, int], list[int]] = defaultdict(list)
    for number, delivery, attempt in left:
        attempts[number, delivery].append(attempt)
        if any(bolt == CORRUPT for bolt, _ in left[number, delivery, attempt]):
            found["corrupt"].append(f"message {number}, delivery {delivery}, attempt {attempt}")
    for number, delivery in acked:
        wanted = set(effects_of(number))
        missing = [wanted - left[number, delivery, attempt] for attempt in attempts[number, delivery]]
        if all(missing):
            least = min([sorted(those) for those in (*missing, wanted)], key=len)
            found["acked_without_effects"].append(
                f"message {number}, delivery {delivery}, a {nature_of(number).temper} one: no {least}"
            )


def _look_at_letters(
    messages: Sequence[Message],
    entries_of: Mapping[int, Sequence[Entry]],
    evidence: Evidence,
    found: dict[str, list[str]],
) -> int:
    """Whether each message that acktree gave up has its letter; how many letters are of acked ones."""
    written = {(letter.number, letter.delivery) for letter in evidence.letters}
    for message in messages:
        if is_of_queue(message.number) and not evidence.queue_retries:
            continue
        for entry in entries_of[message.number]:
            if entry.what is What.DEAD and (entry.number, entry.delivery) not in written:
                found["dead_without_letter"].append(f"message {entry.number}: {_story([entry])}")
    acked = {message.number for message in messages if message.state is State.ACKED}
    return sum(letter.number in acked for letter in evidence.letters)


def _look_at_memory(
    memory: Memory,
    acked: Sequence[tuple[int, int]],
    left: Mapping[_Attempt, set[tuple[str, int]]],
    found: dict[str, list[str]],
) -> None:
    parts: dict[tuple[int, int], dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
    by_lane: Counter[int] = Counter()
    for seen in memory.tuples:
        name = f"message {seen.number}, delivery {seen.delivery}, attempt {seen.attempt}, part {seen.part}"
        parts[seen.number, seen.delivery][seen.attempt].add(seen.part)
        by_lane[nature_of(seen.number).lanes[seen.part]] += seen.times
        if seen.times > 1:
            found["remembered_twice"].append(f"{name}: {seen.times} times")
        if ("tally", seen.part) not in left.get((seen.number, seen.delivery, seen.attempt), ()):
            found["remembered_without_effect"].append(name)
    for number, delivery in acked:
        wanted = set(range(nature_of(number).parts))
        if not any(wanted <= those for those in parts[number, delivery].values()):
            found["not_remembered"].append(f"message {number}, delivery {delivery}")
    for lane in sorted(by_lane.keys() | memory.by_lane.keys()):
        if by_lane[lane] != memory.by_lane.get(lane, 0):
            counted = memory.by_lane.get(lane, 0)
            found["miscounted"].append(f"lane {lane}: {by_lane[lane]} tuples, and {counted} counted")


def _causes(
    by_place: Mapping[tuple[int, str, int], Sequence[Effect]],
    entries_of: Mapping[int, Sequence[Entry]],
    found: dict[str, list[str]],
) -> Iterator[str]:
    """Why each effect is there that was there before."""
    seen: dict[int, set[int]] = defaultdict(set)
    runs = _Runs.of(by_place.values())
    for (number, bolt, part), effects in by_place.items():
        seen[number].update(effect.delivery for effect in effects)
        # A tuple of an earlier delivery that was held may come after those of the next one.
        ordered = sorted(effects, key=lambda effect: (effect.delivery, effect.attempt, effect.at))
        for place, effect in enumerate(ordered[1:], 1):
            cause = _cause(effect, ordered[:place], entries_of[number], runs)
            if cause is None:
                earlier = [_where(before) for before in ordered[:place]]
                found["done_twice_without_cause"].append(
                    f"message {number}, {bolt}, part {part}: {_where(effect)}, and before {earlier}"
                )
                cause = "without cause"
            yield cause
    for number, deliveries in seen.items():
        if not is_of_queue(number) and len(deliveries) > 1:
            found["seen_twice"].append(f"message {number}: deliveries {sorted(deliveries)}")


@dataclass(frozen=True)
class _Runs:
    """When the processes worked, and how far each driver came.

    Attributes:
        times: (run, Spark task, process) -> the times of its first effect in that task, and of its last.
        last_batch: Run -> the last micro-batch that has effects of it: only that one may be uncommitted.
    """

    times: Mapping[tuple[int, int, int], tuple[float, float]]
    last_batch: Mapping[int, int]

    @classmethod
    def of(cls, effects: Iterable[Sequence[Effect]]) -> _Runs:
        times: dict[tuple[int, int, int], tuple[float, float]] = {}
        last_batch: dict[int, int] = {}
        for effect in chain.from_iterable(effects):
            first, last = times.get(_worker(effect), (effect.at, effect.at))
            times[_worker(effect)] = min(first, effect.at), max(last, effect.at)
            last_batch[effect.run] = max(effect.batch, last_batch.get(effect.run, effect.batch))
        return cls(times, last_batch)

    def was_interrupted(self, effect: Effect, later: Effect) -> bool:
        """Whether the micro-batch of an effect may have run again before a later one."""
        in_order = effect.run < later.run and effect.batch < later.batch
        return in_order and effect.batch == self.last_batch[effect.run]


def _worker(effect: Effect) -> tuple[int, int, int]:
    return effect.run, effect.spark_task, effect.process


def _where(effect: Effect) -> str:
    return (
        f"delivery {effect.delivery}, attempt {effect.attempt}, driver {effect.run}, "
        f"micro-batch {effect.batch}, Spark task {effect.spark_task}, process {effect.process}"
    )


def _cause(effect: Effect, earlier: Sequence[Effect], entries: Sequence[Entry], runs: _Runs) -> str | None:
    """The nearest thing that explains it; None when nothing does."""
    same = [before for before in earlier if before.delivery == effect.delivery]
    mine = [before for before in same if before.attempt == effect.attempt]
    if mine:
        return _cause_in_one_attempt(effect, mine, runs)
    if same:
        return "tried again after a failure"
    for entry in entries:
        if entry.delivery == effect.delivery - 1 and entry.what is What.REDELIVERED:
            return "redelivered: the driver had died"
        if entry.delivery == effect.delivery - 1 and entry.what is What.FAILED:
            return f"redelivered: failed ({entry.detail.split(':')[1]})"
    return None


def _cause_in_one_attempt(effect: Effect, earlier: Sequence[Effect], runs: _Runs) -> str | None:
    """One attempt is worked on in one micro-batch, which may run again, as a whole or task by task.

    Where a worker was lost the next attempt of its task works in children, one after the other: none leaves
    an effect before the one before it is gone.
    """
    if any(before.batch != effect.batch for before in earlier):
        # The second run of a micro-batch leaves out what the queue brings back, so a join that waited for
        # such a tuple keeps the others, and emits them in a later micro-batch.
        is_kept = all(runs.was_interrupted(before, effect) for before in earlier)
        is_behind_a_hold = effect.bolt not in BEFORE_A_HOLD
        return "held for longer in the second run of a micro-batch" if is_kept and is_behind_a_hold else None
    if all(before.run != effect.run for before in earlier):
        # The second run leaves out what the queue brings back; a tuple that was held may come again.
        is_left_out = is_of_queue(effect.number) and effect.bolt in BEFORE_A_HOLD
        return None if is_left_out else "the micro-batch ran again, by the next driver"
    in_task = [before for before in earlier if _worker(before)[:2] == _worker(effect)[:2]]
    if not in_task:
        return "Spark ran the task again"
    began, _ = runs.times[_worker(effect)]
    is_next = all(runs.times[_worker(before)][1] < began for before in in_task)
    return "a child of the worker died, and the next one ran the level" if is_next else None
