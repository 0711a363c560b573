"""Fields of texts that repeat travel as a dictionary: each different text once, and a code for each row.

The router codes the fields by which it groups: it needs their different texts anyway. A bolt that is called
for each tuple reads a dictionary as it is; an ``ArrowBolt`` gets the declared type back from :func:`plain`.

A ``ColumnState`` and the next grouping also look for the different texts of a column. So :func:`plain` notes
the codes of each column that it makes, and :func:`coded` those of a column that it leaves plain, as long as
the batch is there. :func:`~acktree.core.data.distinct.distinct` finds them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from acktree.core.data.distinct import codes_of, distinct, is_text, note_codes
from acktree.errors import MisuseError
from acktree.texts import error_text

_MARK: Final = b"acktree.coded"
_REPEATS: Final = 2
"""A field is coded where a partition gets at least this many rows for each text of the dictionary."""


def coded(batch: pa.RecordBatch, fields: Sequence[str], partitions: int, least_rows: int) -> pa.RecordBatch:
    """The batch with these fields coded, as far as that makes its frames smaller.

    Args:
        fields: Fields of the batch.
        partitions: How many partitions the rows go to: each of them gets the whole dictionary.
        least_rows: A field is coded only where a partition gets this many rows on average.
    """
    if batch.num_rows < partitions * least_rows:
        return batch
    for name in fields:
        at = batch.schema.get_field_index(name)
        field = batch.schema.field(at)
        if not is_text(field.type):
            continue
        column = batch.column(at)
        texts, places = distinct(column)
        if places is None:
            continue
        codes: Any = pa.DictionaryArray.from_arrays(pa.array(places, pa.int32()), texts)
        if not (_is_smaller(codes, column, partitions) and _is_utf8(texts)):
            if codes_of(column) is column:
                batch = batch.slice()  # the note ends with it: the user may keep the other, and change it
                note_codes(batch, at, codes)
            continue
        marked = pa.field(name, codes.type, field.nullable, {**(field.metadata or {}), _MARK: b""})
        batch = batch.set_column(at, marked, codes)
    return batch


def _is_smaller(codes: pa.DictionaryArray, column: pa.Array, partitions: int) -> bool:
    """Whether a column takes less when it is coded, with the whole dictionary in each partition."""
    texts = codes.dictionary
    if len(column) < partitions * _REPEATS * len(texts):
        return False
    return bool(partitions * texts.nbytes + codes.indices.nbytes < column.nbytes)


def _is_utf8(texts: pa.Array) -> bool:
    """Whether all are texts. Of another one an error names the type, which is to be the declared one."""
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with its coded fields in their declared type: the inverse of :func:`coded`.

    Raises:
        MisuseError: The texts of a field are more than one column of its type can hold.
    """
    at = [place for place, field in enumerate(batch.schema) if _MARK in (field.metadata or {})]
    decoded = batch
    for place in at:
        field, codes = batch.schema.field(place), batch.column(place)
        kept = {key: value for key, value in field.metadata.items() if key != _MARK}
        declared = pa.field(field.name, codes.type.value_type, field.nullable, kept or None)
        decoded = decoded.set_column(place, declared, _decoded(field.name, codes))
    for place in at:
        note_codes(decoded, place, batch.column(place))
    return decoded


def _texts_of(codes: pa.DictionaryArray) -> Any:  # noqa: ANN401  # an array, or one in several pieces
    return codes.dictionary_decode()


def _decoded(name: str, codes: pa.DictionaryArray) -> pa.Array:
    try:
        texts = _texts_of(codes)
    except (pa.ArrowInvalid, pa.ArrowCapacityError) as cause:
        texts, reason = None, error_text(cause)
    else:
        reason = "it is in several pieces"
    if isinstance(texts, pa.Array):
        return texts
    raise MisuseError(
        f"the texts of {len(codes)} rows do not fit into one column: {reason}",
        f"field {name!r}",
        "declare the field as pa.large_string(), or emit fewer tuples at once",
    )
