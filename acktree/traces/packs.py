"""The facts of one micro-batch as they are stored, and what they say of each message.

A pack has the facts of all levels and partitions of a micro-batch, lower levels first: each is its length and
its bytes.
"""

from __future__ import annotations

import json
import struct
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from acktree.core.ids import Int64s
from acktree.core.runs import end_to_end
from acktree.core.tracking.trace_facts import FATES, Place, TraceFacts
from acktree.tasks.observers.tracer import MOST_TUPLES

_LENGTH: Final = struct.Struct("<I")
_FAILED: Final = FATES.index("failed")

Bools = npt.NDArray[np.bool_]


def packed(parts: Sequence[TraceFacts]) -> bytes:
    """The bytes of a pack."""
    bodies = [part.to_bytes() for part in parts]
    return b"".join(piece for body in bodies for piece in (_LENGTH.pack(len(body)), body))


def unpacked(pack: bytes) -> list[TraceFacts]:
    """The facts of a pack.

    Raises:
        ValueError: The bytes are no pack.
    """
    facts: list[TraceFacts] = []
    at = 0
    while at < len(pack):
        try:
            (length,) = _LENGTH.unpack_from(pack, at)
        except struct.error as error:
            raise ValueError(f"no pack of traces: {error}") from error
        at += _LENGTH.size + length
        facts.append(TraceFacts.of_bytes(pack[at - length : at]))
    return facts


def left_out(parts: Sequence[TraceFacts]) -> int:
    """How many tuples were counted instead of recorded."""
    return sum(count for part in parts for _, _, count in part.more)


@dataclass(frozen=True)
class Messages:
    """What the facts of a micro-batch say of each message.

    Attributes:
        roots: The messages, ascending, shape (n,).
        tuples: How many tuples of each are recorded here, shape (n,).
        elsewhere: Of these messages another pack is stored as the first.
    """

    parts: Sequence[TraceFacts]
    roots: Int64s
    tuples: Int64s
    elsewhere: Collection[int] = ()

    @classmethod
    def of(cls, parts: Sequence[TraceFacts], elsewhere: Collection[int] = ()) -> Messages:
        """The pack of the facts of a micro-batch."""
        roots = np.unique(end_to_end(part.roots for part in parts))
        counts = np.zeros(len(roots), np.int64)
        for part in parts:
            np.add.at(counts, np.searchsorted(roots, part.links["root"]), 1)
        return cls(parts, roots, counts, elsewhere)

    @cached_property
    def emitted(self) -> dict[int, tuple[Place, list[Any]]]:
        """The messages that were emitted in this micro-batch: root -> its place and its values."""
        by_root: dict[int, tuple[Place, list[Any]]] = {}
        for part in self.parts:
            at = np.flatnonzero(part.links["root"] == part.links["edge"])
            roots, places = part.links["root"][at].tolist(), part.links["place"][at].tolist()
            for row, root, place in zip(at.tolist(), roots, places, strict=True):
                by_root[root] = part.places[place], part.shown[row]
        return by_root

    @cached_property
    def _is_first(self) -> Bools:
        """Whether this is the first pack of each message: it was emitted in this micro-batch."""
        first = self.emitted.keys() - set(self.elsewhere)
        return np.isin(self.roots, np.fromiter(first, np.int64, len(first)))

    @property
    def later_roots(self) -> list[int]:
        """The messages that have an earlier pack."""
        later: list[int] = self.roots[~self._is_first].tolist()
        return later

    def rows(self, pack: int, emitted_ms: int) -> list[tuple[Any, ...]]:
        """The rows for ``MESSAGE`` of the messages that were emitted in this micro-batch.

        Args:
            pack: Names this pack; where it is not a message's first, its facts are in :meth:`later_rows`.
        """
        facts = {
            root: (pack, count, components, json.dumps(self.emitted[root][1]))
            for root, count, components in self._told(self._is_first)
        }
        nothing = None, None, None, None
        return [
            (root, place.source, place.source_task, place.stream, None, 1, None, emitted_ms, None, None,
             *facts.get(root, nothing))
            for root, (place, _) in self.emitted.items()
        ]  # fmt: skip

    def later_rows(self, pack: int) -> list[tuple[Any, ...]]:
        """The rows of the other messages: pack, number of tuples, components, root."""
        return [(pack, count, components, root) for root, count, components in self._told(~self._is_first)]

    def _told(self, is_chosen: Bools) -> Iterator[tuple[int, int, str]]:
        """(root, number of tuples, components as a JSON list) of some messages."""
        names, of_root = self._components
        components: dict[bytes, str] = {}
        for at in np.flatnonzero(is_chosen).tolist():
            key = of_root[at].tobytes()
            if key not in components:
                components[key] = json.dumps(
                    [names[column] for column in np.flatnonzero(of_root[at]).tolist()]
                )
            yield int(self.roots[at]), int(self.tuples[at]), components[key]

    @cached_property
    def _components(self) -> tuple[list[str], Bools]:
        """The components that received a tuple, sorted, and which of them have one of each message."""
        names = sorted(
            {place.component for part in self.parts for place in part.places}
            | {place.component for part in self.parts for place in part.bolts}
            | {name for part in self.parts for _, name, _ in part.more}
        )
        columns = {name: column for column, name in enumerate(names)}
        of_root = np.zeros((len(self.roots), len(names)), np.bool_)
        for part in self.parts:
            places, bolts = ([place.component for place in who] for who in (part.places, part.bolts))
            for rows, key, received in ((part.links, "place", places), (part.executions, "bolt", bolts)):
                if len(rows):
                    column_of = np.array([columns[component] for component in received], np.int64)
                    of_root[np.searchsorted(self.roots, rows["root"]), column_of[rows[key]]] = True
            for root, name, _ in part.more:
                of_root[np.searchsorted(self.roots, root), columns[name]] = True
        return names, of_root

    def bounded(
        self, parts: Sequence[TraceFacts], known: Collection[int], earlier: Mapping[int, int]
    ) -> Sequence[TraceFacts]:
        """The facts of known messages, with at most :data:`MOST_TUPLES` tuples of each, and what failed.

        Args:
            known: The roots of the messages that are stored.
            earlier: Root -> how many tuples of it are in packs before; of messages that have some.
        """
        if len(known) < len(self.roots):
            kept = np.array(sorted(known), np.int64)
            parts = [part.only(kept) for part in parts]
        before = np.array([earlier.get(root, 0) for root in self.roots.tolist()], np.int64)
        large = self.roots[before + self._facts > MOST_TUPLES]
        if not len(large):
            return parts
        counts: Counter[int] = Counter({root: earlier.get(root, 0) for root in large.tolist()})
        edges: dict[int, set[int]] = {root: set() for root in large.tolist()}
        return [_cut(part, counts, edges) for part in parts]

    @property
    def _facts(self) -> Int64s:
        """How many links and executions of each message there are at most in one part, shape (n,)."""
        counts = self.tuples.copy()
        for part in self.parts:
            np.add.at(counts, np.searchsorted(self.roots, part.executions["root"]), 1)
        return counts


def _cut(part: TraceFacts, counts: Counter[int], edges: Mapping[int, set[int]]) -> TraceFacts:
    """A part without the tuples of large messages that are too many; they are counted.

    Args:
        counts: Root of a large message -> how many of its tuples were kept so far; it is changed.
        edges: ... and the edges of those of this micro-batch; it is changed.
    """
    more: Counter[tuple[int, str]] = Counter({(root, name): n for root, name, n in part.more})

    def is_kept(root: int, edge: int, *, must: bool = False) -> bool:
        if root not in edges or edge in edges[root]:
            return True
        if counts[root] >= MOST_TUPLES and not must:
            return False
        counts[root] += 1
        edges[root].add(edge)
        return True

    links = [is_kept(root, edge) for root, edge in zip(*_keys(part.links), strict=True)]
    executions: list[bool] = []
    columns = zip(*_keys(part.executions), part.executions["fate"].tolist(), part.executions["bolt"].tolist(),
               np.isnan(part.executions["took_ms"]).tolist(), strict=True)  # fmt: skip
    for root, edge, fate, bolt, is_later in columns:
        # The fate of a tuple that was executed in an earlier micro-batch: it is recorded there, or counted.
        executions.append(is_kept(root, edge, must=fate == _FAILED or is_later))
        if not executions[-1]:
            more[root, part.bolts[bolt].component] += 1
    more_left = [(root, name, count) for (root, name), count in more.items()]
    return part.taken(np.array(links, np.bool_), np.array(executions, np.bool_), more_left)


def _keys(rows: npt.NDArray[np.void]) -> tuple[list[int], list[int]]:
    return rows["root"].tolist(), rows["edge"].tolist()


def tuples_of(root: int, packs: Sequence[tuple[int, bytes]]) -> tuple[list[dict[str, Any]], Counter[str]]:
    """The tuples of a message as the fields of :class:`TracedTuple`, and how many more by component.

    Args:
        packs: (micro-batch, pack), in order.
    """
    by_edge: dict[int, dict[str, Any]] = {}
    more: Counter[str] = Counter()
    for batch_id, pack in packs:
        for part in unpacked(pack):
            _add_links(by_edge, part, root, batch_id)
            _add_executions(by_edge, part, root, batch_id)
            more.update({name: count for whose, name, count in part.more if whose == root})
    return [*by_edge.values()], more


def _tuple_at(
    by_edge: dict[int, dict[str, Any]], edge: int, batch_id: int, component: str, task: int
) -> dict[str, Any]:
    return by_edge.setdefault(edge, {
        "edge": edge, "parents": [], "component": component, "task_id": task, "source": "",
        "source_task_id": None, "stream": "", "batch_id": batch_id, "began_ms": None, "took_ms": None,
        "together": 1, "fate": "waiting", "fate_batch_id": None, "reason": "", "values": [],
    })  # fmt: skip


def _add_links(by_edge: dict[int, dict[str, Any]], part: TraceFacts, root: int, batch_id: int) -> None:
    positions = np.flatnonzero(part.links["root"] == root).tolist()
    if not positions:
        return
    parents = part.parents_of_links()
    for at in positions:
        place = part.places[int(part.links["place"][at])]
        edge = int(part.links["edge"][at])
        _tuple_at(by_edge, edge, batch_id, place.component, place.task).update(
            parents=parents[at], source=place.source, source_task_id=place.source_task, stream=place.stream,
            values=part.shown[at], **({"fate": "emitted"} if edge == root else {}),
        )  # fmt: skip


def _add_executions(by_edge: dict[int, dict[str, Any]], part: TraceFacts, root: int, batch_id: int) -> None:
    for at in np.flatnonzero(part.executions["root"] == root).tolist():
        row = part.executions[at]
        bolt, fate = part.bolts[int(row["bolt"])], FATES[int(row["fate"])]
        told_tuple = _tuple_at(by_edge, int(row["edge"]), batch_id, bolt.component, bolt.task)
        began_ms, took_ms = int(row["began_ms"]), float(row["took_ms"])
        if np.isnan(took_ms):  # it was held: executed in one micro-batch, acked or failed in a later one
            began_ms = began_ms if told_tuple["began_ms"] is None else told_tuple["began_ms"]
        else:
            told_tuple.update(batch_id=batch_id, took_ms=took_ms)
        told_tuple.update(
            began_ms=began_ms, together=max(told_tuple["together"], bolt.together), fate=fate,
            fate_batch_id=batch_id if fate in {"acked", "failed"} else None,
            reason=part.reasons.get(at) or told_tuple["reason"],
        )  # fmt: skip
