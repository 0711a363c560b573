"""Arguments of Java constructors, which are kept so that a topology file can be read and described."""

from __future__ import annotations

from collections.abc import Iterable

from acktree.streamparse.errors import SpecTypeError
from acktree.streamparse.thrift import JavaObjectArg

__all__ = ["to_java_arg", "to_python_arg_list"]


def to_java_arg(arg: object) -> JavaObjectArg:
    """The argument as Storm's structure. TypeError unless it is a bool, int, float, str or bytes."""
    if isinstance(arg, bool):  # before int: a bool is one
        return JavaObjectArg(bool_arg=arg)
    if isinstance(arg, int):
        return JavaObjectArg(long_arg=arg)
    if isinstance(arg, float):
        return JavaObjectArg(double_arg=arg)
    if isinstance(arg, str):
        return JavaObjectArg(string_arg=arg)
    if isinstance(arg, bytes):
        return JavaObjectArg(binary_arg=arg)
    raise SpecTypeError(
        f"an argument of a Java constructor is {arg!r:.60}", "args_list=[...]",
        "give a bool, int, float, str or bytes",
    )  # fmt: skip


def to_python_arg_list(args: Iterable[JavaObjectArg]) -> list[object]:
    """The values of such arguments."""
    return [next(value for value in vars(arg).values() if value is not None) for arg in args]
