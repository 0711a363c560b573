"""What is recorded of the tuples of traced messages, in columns and as bytes.

A *link* is recorded when a tuple is emitted, an *execution* when its task is done with it; both name the
tuple by its root and its edge. A level records some hundreds at once, so they are rows of numpy's arrays: no
Python object is made for one until somebody reads it.

The bytes are the lengths of the parts, a head in JSON, the three arrays, and the values in JSON, which only
the reader of a tree decodes.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from acktree.core.ids import Int64s

LINK: Final = np.dtype([("root", "<i8"), ("edge", "<i8"), ("place", "<i4"), ("parents", "<i4")])
"""A tuple: its root and edge, the index of its place, and how many parents it has."""
EXECUTION: Final = np.dtype(
    [
        ("root", "<i8"),
        ("edge", "<i8"),
        ("began_ms", "<i8"),
        ("took_ms", "<f8"),
        ("bolt", "<i4"),
        ("fate", "u1"),
    ]
)
"""An execution: when and how long (NaN: it was executed in an earlier micro-batch), where, and the fate."""
FATES: Final = ("open", "acked", "failed", "held")
"""The fates of a tuple; stored by their index."""
HELD: Final = FATES.index("held")
_LENGTHS: Final = struct.Struct("<4I")

Rows = npt.NDArray[np.void]
Bools = npt.NDArray[np.bool_]


class Place(NamedTuple):
    """Who emitted a tuple, on which stream, and who receives it."""

    source: str
    source_task: int
    stream: str
    component: str
    task: int


class Bolt(NamedTuple):
    """Who executed a tuple, and how many tuples in one call."""

    component: str
    task: int
    together: int


@dataclass(frozen=True)
class TraceFacts:
    """The facts of one level, partition and micro-batch.

    Attributes:
        places: The places of links.
        links: Of :data:`LINK`, shape (n,).
        parents: The edges of the parents of each link, one link after the other.
        bolts: The bolts of executions.
        executions: Of :data:`EXECUTION`, shape (m,).
        reasons: Index of an execution -> why the tuple was failed.
        more: (root, component, how many tuples of it are not recorded).
        shown_json: The values of the links in JSON, block by block: a block is a list of how many links it
            has, and a list for each field.
    """

    places: Sequence[Place] = ()
    links: Rows = field(default_factory=lambda: np.zeros(0, LINK))
    parents: Int64s = field(default_factory=lambda: np.zeros(0, np.int64))
    bolts: Sequence[Bolt] = ()
    executions: Rows = field(default_factory=lambda: np.zeros(0, EXECUTION))
    reasons: Mapping[int, str] = field(default_factory=dict)
    more: Sequence[tuple[int, str, int]] = ()
    shown_json: bytes = b"[]"

    @cached_property
    def shown(self) -> list[list[Any]]:
        """The values of each link."""
        values: list[list[Any]] = []
        for count, *columns in json.loads(self.shown_json):
            values += map(list, zip(*columns, strict=True)) if columns else [[] for _ in range(count)]
        return values

    @property
    def roots(self) -> Int64s:
        """The roots of all facts, each once, ascending."""
        more = np.array([root for root, _, _ in self.more], np.int64)
        return np.unique(np.concatenate((self.links["root"], self.executions["root"], more)))

    def to_bytes(self) -> bytes:
        """All facts as bytes."""
        head = json.dumps(
            {"places": self.places, "bolts": self.bolts, "reasons": self.reasons, "more": self.more}
        ).encode()
        parts = (head, self.links.tobytes(), self.parents.astype("<i8").tobytes(), self.executions.tobytes())
        return b"".join((_LENGTHS.pack(*map(len, parts)), *parts, self.shown_json))

    @classmethod
    def of_bytes(cls, body: bytes) -> Self:
        """The facts that bytes hold.

        Raises:
            ValueError: They are no facts.
        """
        try:
            lengths = _LENGTHS.unpack_from(body)
            ends = np.cumsum((_LENGTHS.size, *lengths)).tolist()
            if ends[-1] > len(body):
                raise ValueError(f"{len(body)} bytes instead of {ends[-1]}")
            head, links, parents, executions = (body[a:b] for a, b in pairwise(ends))
            tables = json.loads(head)
            return cls(
                [Place(*row) for row in tables["places"]], np.frombuffer(links, LINK),
                parents=np.frombuffer(parents, "<i8").astype(np.int64),
                bolts=[Bolt(*row) for row in tables["bolts"]],
                executions=np.frombuffer(executions, EXECUTION),
                reasons={int(at): reason for at, reason in tables["reasons"].items()},
                more=[(root, component, count) for root, component, count in tables["more"]],
                shown_json=body[ends[-1] :],
            )  # fmt: skip
        except (struct.error, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no facts of traced messages: {error}") from error

    def parents_of_links(self) -> list[list[int]]:
        """The parents of each link."""
        ends = np.cumsum(self.links["parents"]).tolist()
        edges = self.parents.tolist()
        return [edges[start:end] for start, end in zip([0, *ends], ends, strict=False)]

    def only(self, roots: Int64s) -> TraceFacts:
        """The facts of some messages."""
        wanted = set(roots.tolist())
        more = [row for row in self.more if row[0] in wanted]
        return self.taken(np.isin(self.links["root"], roots), np.isin(self.executions["root"], roots), more)

    def taken(self, links: Bools, executions: Bools, more: Sequence[tuple[int, str, int]]) -> TraceFacts:
        """The facts where the masks are true, shapes (n,) and (m,), with another ``more``."""
        at = np.flatnonzero(executions)
        reasons = {new: self.reasons[old] for new, old in enumerate(at.tolist()) if old in self.reasons}
        shown = self.shown_json
        if not links.all():
            kept = [self.shown[row] for row in np.flatnonzero(links).tolist()]
            shown = json.dumps([[1, *([value] for value in values)] for values in kept]).encode()
        return TraceFacts(
            self.places, self.links[links], parents=self.parents[np.repeat(links, self.links["parents"])],
            bolts=self.bolts, executions=self.executions[at], reasons=reasons, more=more, shown_json=shown,
        )  # fmt: skip
