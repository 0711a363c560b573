"""Streams and groupings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from acktree import CustomGrouping
from acktree.streamparse import thrift
from acktree.streamparse.dsl.util import to_java_arg
from acktree.streamparse.errors import SpecTypeError, SpecValueError
from acktree.streamparse.thrift import JavaObject, NullStruct, StreamInfo

__all__ = ["Grouping", "Stream"]


class Stream(StreamInfo):
    """An output stream of a component.

    Args:
        fields: The names of its fields.
        name: Its name.
        direct: Whether each tuple is sent to a task that the emit names.

    Raises:
        TypeError: An argument has another type.
    """

    def __init__(
        self, fields: Sequence[str] | None = None, name: str = "default", direct: bool = False
    ) -> None:
        where = f"Stream(fields={fields!r:.60}, name={name!r:.30}, direct={direct!r:.30})"
        if not isinstance(fields, list | tuple | None) or not all(
            isinstance(each, str) for each in fields or ()
        ):
            raise SpecTypeError(
                f"the fields of a stream are {fields!r:.60}", where, 'give a list of names: ["word", "count"]'
            )
        if not isinstance(name, str):
            raise SpecTypeError(f"the name of a stream is {name!r:.60}", where, "give a text")
        if not isinstance(direct, bool):
            raise SpecTypeError(f"direct of a stream is {direct!r:.60}", where, "give True or False")
        super().__init__(list(fields or ()), direct)
        self.fields, self.name = self.output_fields, name


class Grouping:
    """How the tuples of a stream are divided among the tasks of a bolt.

    Without a grouping, a stream is shuffled; a default stream that is declared direct is direct.
    """

    __slots__ = ()

    SHUFFLE: ClassVar = thrift.Grouping(shuffle=NullStruct())
    GLOBAL: ClassVar = thrift.Grouping(fields=[])
    DIRECT: ClassVar = thrift.Grouping(direct=NullStruct())
    ALL: ClassVar = thrift.Grouping(all=NullStruct())
    NONE: ClassVar = thrift.Grouping(none=NullStruct())
    LOCAL_OR_SHUFFLE: ClassVar = thrift.Grouping(local_or_shuffle=NullStruct())

    @classmethod
    def fields(cls, *fields: str | Sequence[str]) -> thrift.Grouping:
        """Equal values of these fields go to the same task.

        Raises:
            ValueError: No field is named.
        """
        first = fields[0] if len(fields) == 1 else fields
        names = [first] if isinstance(first, str) else list(first)
        if not names:
            raise SpecValueError(
                "a fields grouping names no field", "Grouping.fields()", 'name one: Grouping.fields("word")'
            )
        return thrift.Grouping(fields=names)  # type: ignore[arg-type]  # checked with the topology

    @classmethod
    def custom(cls, grouping: CustomGrouping) -> thrift.Grouping:
        """The tasks that an ``acktree.CustomGrouping`` chooses. Not in streamparse."""
        return thrift.Grouping(custom=grouping)

    @classmethod
    def custom_object(cls, java_class_name: str, arg_list: Iterable[object]) -> thrift.Grouping:
        """A Java class that chooses the tasks. Refused when the topology is built."""
        arguments = [to_java_arg(arg) for arg in arg_list]
        return thrift.Grouping(custom_object=JavaObject(java_class_name, arguments))

    @classmethod
    def custom_serialized(cls, java_serialized: bytes) -> thrift.Grouping:
        """A serialized Java object that chooses the tasks. Refused when the topology is built.

        Raises:
            TypeError: It is not bytes.
        """
        if not isinstance(java_serialized, bytes):
            raise SpecTypeError(
                f"a serialized Java object is {type(java_serialized).__name__}",
                "Grouping.custom_serialized(...)", "give bytes",
            )  # fmt: skip
        return thrift.Grouping(custom_serialized=java_serialized)
