"""The declared outputs of a component: its streams, and the fields of each.

Rules of this file
------------------
1. ``outputs`` is read once, when the topology is created, and becomes a mapping stream -> declaration.
2. Ambiguous declarations are refused: a plain string could mean one field or a field per letter; a set has
   no order.
3. A :class:`pyarrow.Schema` is recognised by its module and attributes, so that declaring a topology does not
   import pyarrow.

Source: Storm's ``OutputFieldsDeclarer`` and ``tuple/Fields``. Storm checks none of this before it runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeGuard

from acktree.errors import MisuseError, TopologyError

if TYPE_CHECKING:
    import pyarrow as pa  # for annotations only: `import acktree` must stay fast

DEFAULT_STREAM: Final = "default"
"""The stream that is used when none is named."""

FieldNames: TypeAlias = "Sequence[str] | pa.Schema"
Outputs: TypeAlias = "FieldNames | Mapping[str, FieldNames]"
"""What a component may write as ``outputs``: names, typed names, or either for each of several streams."""

_EXAMPLE: Final = 'write outputs = ["word", "count"]; {"default": [...], "late": [...]} for several streams'


@dataclass(frozen=True, slots=True)
class StreamDeclaration:
    """One output stream of a component.

    Attributes:
        name: Stream id; ``default`` unless declared otherwise.
        fields: Names of the values of a tuple, in order. May be empty: the tuple is then only a signal.
        schema: Types of the fields, if the component declares them; values are cast to them and must fit.
            None: any Python values.
    """

    name: str
    fields: tuple[str, ...]
    schema: pa.Schema | None = None


def declare_streams(outputs: object, owner: str) -> dict[str, StreamDeclaration]:
    """Read an ``outputs`` attribute.

    Args:
        outputs: Names of the default stream's fields, a ``pyarrow.Schema`` of them, or a mapping from stream
            id to either. Empty (``[]``, ``{}``, an empty schema) means that the component emits nothing; a
            stream of tuples without fields is written ``{"default": []}``.
        owner: The component as an error should name it: ``"bolt 'count' (Count)"``.

    Returns:
        Stream id -> declaration, in the order written. Empty for a component without output.

    Raises:
        TopologyError: ``outputs`` is a plain string or otherwise not a list of names; or a name is not a
            string, is empty, begins with ``__`` or occurs twice.

    >>> declare_streams(["word", "count"], "bolt 'count'")["default"].fields
    ('word', 'count')
    """
    if isinstance(outputs, Mapping):
        return {_stream_id(name, owner): _declare(name, fields, owner) for name, fields in outputs.items()}
    declared = _declare(DEFAULT_STREAM, outputs, owner)
    return {DEFAULT_STREAM: declared} if declared.fields else {}


def _stream_id(name: object, owner: str) -> str:
    what = f"{owner} has a stream called {_shown(name)}"
    if not isinstance(name, str) or not name:
        raise _mistake(what, owner, "a stream id is a string and not empty")
    if name.startswith("__"):
        fix = f"call it {name.strip('_') or 'other'!r}; ids that begin with __ are acktree's own"
        raise _mistake(what, owner, fix)
    return name


def _declare(stream: str, fields: object, owner: str) -> StreamDeclaration:
    if _is_schema(fields):
        return StreamDeclaration(
            stream, _names(stream, fields.names, owner), _admitted(stream, fields, owner)
        )
    what = f"{owner} gives stream {stream!r} the fields {_shown(fields)}"
    if isinstance(fields, str):
        value = [fields] if stream == DEFAULT_STREAM else {stream: [fields]}
        raise _mistake(f"{what}: a string, not a list", owner, f"put it in a list: outputs = {value!r}")
    if not isinstance(fields, (list, tuple)):
        fix = f"{_EXAMPLE}; a pyarrow.schema([...]) for types"
        raise _mistake(f"{what}: no list of field names", owner, fix)
    return StreamDeclaration(stream, _names(stream, fields, owner))


def _admitted(stream: str, schema: pa.Schema, owner: str) -> pa.Schema:
    """The schema without reserved metadata, and with types that can be sent."""
    # Local: the caller that declares a schema has imported pyarrow, and `import acktree` must not import it.
    from acktree.core.data.admission import admitted_schema  # noqa: PLC0415

    try:
        return admitted_schema(schema, f"stream {stream!r}")
    except MisuseError as error:
        raise TopologyError(f"{owner} declares {error.what}", f"`outputs` of {owner}", error.fix) from error


def _names(stream: str, names: Sequence[object], owner: str) -> tuple[str, ...]:
    checked: list[str] = []
    for name in names:
        what = f"{owner} gives stream {stream!r} a field called {_shown(name)}"
        if not isinstance(name, str) or not name:
            raise _mistake(what, owner, f"a field's name is a string and not empty: {_EXAMPLE}")
        if name.startswith("__"):
            fix = f"call it {name.strip('_') or 'other'!r}; names that begin with __ are acktree's own"
            raise _mistake(what, owner, fix)
        if name in checked:
            fix = 'give them different names: tup["field"] must mean one of them'
            raise _mistake(f"{owner} gives stream {stream!r} the field {name!r} twice", owner, fix)
        checked.append(name)
    return tuple(checked)


def _is_schema(value: object) -> TypeGuard[Any]:
    """Whether this is a ``pyarrow.Schema``; checked without importing pyarrow."""
    return type(value).__module__.partition(".")[0] == "pyarrow" and hasattr(value, "names")


def _shown(value: object) -> str:
    text = " ".join(repr(value).split())  # an error has three lines, so a repr must not have several
    return text if len(text) <= 60 else f"{text[:57]}..."  # noqa: PLR2004  # what fits on the line


def _mistake(what: str, owner: str, fix: str) -> TopologyError:
    return TopologyError(what, f"`outputs` of {owner}", fix)
