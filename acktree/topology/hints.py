"""What in a topology is allowed, and hardly ever meant: rows of one key that come to several tasks.

A warning and no error: a bolt may well keep something for each of its tasks. A bolt whose
``remembers_per_task`` is True says so, and is not warned of.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from acktree.bolt import AnyBolt
from acktree.core.data.groupings import Grouping, LocalOrShuffle, NoneGrouping, PartialKey, Shuffle
from acktree.topology.component import Component
from acktree.topology.declared import Declared, code_name

_ANY_TASK: Final = (Shuffle, LocalOrShuffle, NoneGrouping)


def hints(declared: Sequence[Declared], components: Sequence[Component]) -> Iterator[tuple[str, str, str]]:
    """What to warn of in a valid topology, without gates: what happens, where, and how to mend it."""
    by_id = {component.id: component for component in components}
    for call in declared:
        component = by_id[str(call.id)]
        for edge, written in zip(component.inputs, call.inputs, strict=True):
            hint = _hint(component, call, edge.grouping)
            if hint is not None:
                what, otherwise = hint
                by_key = _by_key(component, by_id[edge.source].streams[edge.stream].fields, written.source)
                yield what, f"{call}{written}", f"{by_key}; or take one task{otherwise}"


def _hint(component: Component, declared: Declared, grouping: Grouping) -> tuple[str, str] | None:
    """What happens by this grouping, and what may be done beside what always helps. None: all is well."""
    if component.parallelism == 1:
        return None
    tasks = f"{component.parallelism} tasks"
    user_object = component.user_object
    if component.latest_by and isinstance(grouping, (*_ANY_TASK, PartialKey)):
        keys = ", ".join(component.latest_by)
        what = (
            f"{declared.owner} writes the latest row of each {keys}, and any of its {tasks} may get a row: "
            "two tasks may write the rows of a key in any order, and an older one may stay"
        )
        return what, ""
    if not isinstance(user_object, AnyBolt) or user_object.remembers_per_task or not component.remembers:
        return None
    if not isinstance(grouping, _ANY_TASK):
        return None
    what = (
        f"{declared.owner} remembers {', '.join(component.remembers)}, and any of its {tasks} may get a "
        "tuple: each task remembers a part, so a total is split among them"
    )
    return what, f"; if that is meant, set {code_name(user_object)}.remembers_per_task = True"


def _by_key(component: Component, fields: Sequence[str], source: object) -> str:
    key = [*component.latest_by] if component.latest_by else [*fields] if len(fields) == 1 else None
    if key is not None:
        return f"group by the key: .fields_grouping({source!r}, {key!r})"
    return f"group by the key: .fields_grouping({source!r}, [...]), with one or more of {', '.join(fields)}"
