"""Trees of traces and of the brute-force tracker in one form, to be compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from hashlib import blake2b
from operator import xor
from typing import TypeVar

from acktree.texts import bounded
from acktree.traces.trace import Trace
from acktree.traces.traces import Traces
from tests.generated.scripted import Drawn
from tests.generated.tracker import Node, Tracker

Item = TypeVar("Item")


def differences(drawn: Drawn, traces: Traces) -> list[str]:
    """What of the recorded trees is not as the tracker's; nothing if all is."""
    tracker = Tracker(drawn)
    verdicts, trees = tracker.outcome().verdicts, tracker.trees()
    found = {int(message.message_id or -1): message for message in traces.find(limit=1000)}
    wrong = (
        [f"messages {found.keys() ^ trees.keys()} are traced or missing"]
        if found.keys() != trees.keys()
        else []
    )
    for number in found.keys() & trees.keys():
        trace = traces.get(found[number].root)
        assert trace is not None
        if trace.message.verdict != verdicts[number]:
            wrong.append(f"message {number} is {trace.message.verdict} and must be {verdicts[number]}")
        if trace.more or recorded(trace) != tracked(trees[number]):
            wrong.append(f"message {number} has another tree:\n{trace}")
        if trace.message.verdict == "ACKED" and balance(trace):
            wrong.append(f"message {number} is ACKED, and its edges do not XOR to zero")
        if trace.message.verdict == "TIMED_OUT" and not trace.unacked:
            wrong.append(f"message {number} timed out, and nobody is named")
    return wrong


def balance(trace: Trace) -> int:
    """XOR of the edges that were created and of those that were acked."""
    made = [each.edge for each in trace.tuples if each.parents]
    acked = [each.edge for each in trace.tuples if each.fate == "acked"]
    return reduce(xor, made + acked, 0)


def recorded(trace: Trace) -> str:
    """A recorded tree as a value that is equal for equal trees."""
    by_edge = {each.edge: each for each in trace.tuples}

    def name(edge: int) -> object:
        each = by_edge[edge]
        fate = {"held": "open", "emitted": "", "open": "open"}.get(each.fate, each.fate)
        return each.component, (tuple(each.values[:3]) if fate else ()), fate

    return _shape(trace.message.root, lambda edge: (each.edge for each in trace.children[edge]), name)


def tracked(root: Node) -> str:
    """A tree of the tracker, likewise."""

    def name(node: Node) -> object:
        if node is root:
            return node.component, (), ""
        return node.component, (bounded(node.values[0], 80), *node.values[1:3]), node.fate

    return _shape(root, lambda node: node.children, name)


def _shape(root: Item, below: Callable[[Item], Iterable[Item]], name: Callable[[Item], object]) -> str:
    """A hash of every node's name and of the shapes below it; what has several parents is below each."""
    shapes: dict[Item, str] = {}

    def shape(node: Item) -> str:
        if node not in shapes:
            text = repr((name(node), sorted(map(shape, below(node)))))
            shapes[node] = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
        return shapes[node]

    return shape(root)
