"""What must become of a drawn topology: computed on trees of objects, knowing nothing of edges or XOR.

Every delivered copy of a tuple is a node that knows its children: the copies that were emitted anchored to
it. A message is ACKED if every node that can be reached from it was acked, FAILED if one of them was failed,
else TIMED_OUT. That is Storm's promise, word for word.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tests.generated.scripted import BoltSpec, Drawn, Emit, Values, joined_path, message_values


@dataclass(eq=False)
class Node:
    """A message, or a copy of a tuple at a bolt."""

    component: str
    values: Values
    fate: str = "open"
    children: list[Node] = field(default_factory=list)


@dataclass(frozen=True)
class Outcome:
    """What became of a drawn topology, as predicted or as seen.

    Attributes:
        verdicts: By message number; the untracked have none.
        blamed: Components that failed something of each failed message. Seen: the one that was reported.
        tuples: How often each (component, stream, values) was emitted.
        counts: (component, what) -> how often: emitted, transferred, executed, acked, failed, timed_out.
    """

    verdicts: Mapping[int, str]
    blamed: Mapping[int, frozenset[str]]
    tuples: Counter[tuple[str, str, str]]
    counts: Mapping[tuple[str, str], int]

    def differences(self, seen: Outcome) -> list[str]:
        """What of this prediction did not come true, in words; nothing if all did."""
        found = [
            f"message {number} is {seen.verdicts.get(number)} and must be {self.verdicts.get(number)}"
            for number in sorted(self.verdicts.keys() | seen.verdicts.keys())
            if self.verdicts.get(number) != seen.verdicts.get(number)
        ]
        found += [
            f"message {number} failed in {set(who)}, not in one of {set(self.blamed.get(number, ()))}"
            for number, who in seen.blamed.items()
            if not who <= self.blamed.get(number, frozenset())
        ]
        missing, surplus = self.tuples - seen.tuples, seen.tuples - self.tuples
        found += [f"{n} x {which} was not emitted" for which, n in missing.items()]
        found += [f"{n} x {which} was emitted and must not be" for which, n in surplus.items()]
        return found + [
            f"{what} of {component} is {seen.counts.get((component, what), 0)} and must be {n}"
            for (component, what), n in self.counts.items()
            if seen.counts.get((component, what), 0) != n
        ]


class Tracker:
    """Walks a drawn topology once, sources first."""

    def __init__(self, drawn: Drawn) -> None:
        self._drawn = drawn
        self._arrivals: dict[str, list[tuple[Node, int]]] = {bolt.id: [] for bolt in drawn.bolts}
        self._tuples: Counter[tuple[str, str, str]] = Counter()
        self._counts: Counter[tuple[str, str]] = Counter()
        self.expected: dict[str, Counter[str]] = {}
        """How many tuples of each key every task of a join gets."""
        self._messages = [Node(message.spout, ("", "", 0, None)) for message in drawn.messages]
        for number, (message, node) in enumerate(zip(drawn.messages, self._messages, strict=True)):
            part = drawn.part(message.spout)
            stream, values = message_values(part, number, message)
            target = part.emit(values[0], 0).target
            self._emit(message.spout, Emit(stream, values, "input", target), [node])
            if node.fate == "open":
                node.fate = "acked"
        for bolt in drawn.bolts:
            if bolt.kind == "join":
                self._join(bolt)
            else:
                self._execute(bolt)

    def outcome(self) -> Outcome:
        """What must be seen."""
        verdicts: dict[int, str] = {}
        blamed: dict[int, frozenset[str]] = {}
        for number, (message, root) in enumerate(zip(self._drawn.messages, self._messages, strict=True)):
            if not message.is_tracked:
                continue
            tree = list(_walk(root))
            failed = frozenset(node.component for node in tree if node.fate == "failed")
            verdict = "ACKED"
            if failed:
                verdict, blamed[number] = "FAILED", failed
            elif any(node.fate == "open" for node in tree):
                verdict = "TIMED_OUT"
            verdicts[number] = verdict
            self._counts[message.spout, verdict.lower()] += 1
        counts = {
            (component, what): self._counts[component, what]
            for component in self._drawn.spouts
            for what in ("emitted", "transferred", "acked", "failed", "timed_out")
        } | {
            (bolt.id, what): self._counts[bolt.id, what]
            for bolt in self._drawn.bolts
            for what in ("emitted", "transferred", "executed", "acked", "failed")
        }
        return Outcome(verdicts, blamed, self._tuples, counts)

    def trees(self) -> Mapping[int, Node]:
        """The tree of each tracked message, by its number."""
        pairs = zip(self._drawn.messages, self._messages, strict=True)
        return {number: root for number, (message, root) in enumerate(pairs) if message.is_tracked}

    def size(self) -> int:
        """How many copies of tuples there are in all."""
        return sum(map(len, self._arrivals.values()))

    def _execute(self, bolt: BoltSpec) -> None:
        part = self._drawn.part(bolt.id)
        for node, _ in self._arrivals[bolt.id]:
            turn = part.turn(bolt.kind, node.values)
            for emit in turn.emits:
                self._emit(bolt.id, emit, [] if emit.anchoring == "none" else [node])
            self._end(node, "fail" if turn.end.startswith("throw") else turn.end)

    def _join(self, bolt: BoltSpec) -> None:
        part = self._drawn.part(bolt.id)
        groups: dict[tuple[int, str], list[Node]] = {}
        for node, task in self._arrivals[bolt.id]:
            groups.setdefault((task, node.values[1]), []).append(node)
        self.expected[bolt.id] = Counter({key: len(group) for (_, key), group in groups.items()})
        for group in groups.values():
            group.sort(key=lambda node: node.values[0])
            for emit in part.emits(
                joined_path([node.values for node in group]), max(node.values[2] for node in group)
            ):
                chosen = part.members_of(emit.values[0], len(group))
                self._emit(bolt.id, emit, [group[at] for at in sorted(set(chosen))])
            for node in group:
                self._end(node, part.end_of_member(node.values[0]))

    def _end(self, node: Node, end: str) -> None:
        if end == "fail":
            node.fate = "failed"
        elif end == "ack" and node.fate == "open":  # what a grouping refused has failed already
            node.fate = "acked"
        self._counts[node.component, node.fate] += 1

    def _emit(self, component: str, emit: Emit, anchors: Sequence[Node]) -> None:
        self._tuples[component, emit.stream, repr(emit.values)] += 1
        self._counts[component, "emitted"] += 1
        for bolt in self._drawn.bolts:
            for read in bolt.inputs:
                if (read.source, read.stream) != (component, emit.stream):
                    continue
                tasks = self._tasks(component, bolt, read.grouping, emit)
                if tasks is None:
                    for anchor in anchors:
                        anchor.fate = "failed"
                    continue
                for task in tasks:
                    copy = Node(bolt.id, emit.values)
                    for anchor in anchors:
                        anchor.children.append(copy)
                    self._arrivals[bolt.id].append((copy, task))
                    self._counts[component, "transferred"] += 1
                    self._counts[bolt.id, "executed"] += 1

    def _tasks(self, component: str, bolt: BoltSpec, grouping: str, emit: Emit) -> Iterable[int] | None:
        """The tasks that get a copy, where it matters which; None if the grouping raises."""
        if grouping == "all":
            return range(bolt.parallelism)
        if grouping == "custom":
            return self._drawn.part(component).copies(bolt.id, bolt.parallelism, emit.values[0])
        if grouping == "direct":
            return [0] if emit.target is not None and emit.target[0] == bolt.id else []
        return [0]


def _walk(root: Node) -> Iterable[Node]:
    """Every node of a tree, each once."""
    seen, ahead = {id(root)}, [root]
    while ahead:
        node = ahead.pop()
        yield node
        for child in node.children:
            if id(child) not in seen:
                seen.add(id(child))
                ahead.append(child)
