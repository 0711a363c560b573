"""Bolts made from functions: :func:`bolt`, and the class of what it makes.

The rules are those of :class:`~acktree.bolt.BasicBolt`: an emitted tuple is anchored to the input, which is
acked when the function returns and failed when it raises.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterable, Callable, Iterable
from types import GeneratorType
from typing import TYPE_CHECKING, Any, NoReturn

from acktree.bolt import BasicBolt, BasicOutputCollector
from acktree.core.data.fields import Outputs
from acktree.errors import MisuseError, TopologyError, naming_keywords

if TYPE_CHECKING:  # for annotations only: `import acktree` must stay fast
    from acktree.core.data.tuples import Tuple

__all__ = ["FunctionBolt", "bolt"]


class FunctionBolt(BasicBolt):
    """The bolt that :func:`bolt` makes from a function. Calling it calls the function, for tests."""

    def __init__(self, function: Callable[[Tuple], object], outputs: Outputs = ()) -> None:
        self.function = function
        self.outputs = outputs
        self.__doc__ = function.__doc__
        self.__name__ = getattr(function, "__name__", repr(function))

    def __call__(self, tup: Tuple) -> Any:  # noqa: ANN401  # any result of the function
        """Call the function with a tuple and return its result."""
        return self.function(tup)

    def __repr__(self) -> str:
        return f"@bolt {self.__name__}"

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """Emit every list of values that the function yields or returns; None emits nothing.

        A generator's values are emitted as it yields them, so those before an exception are kept.
        """
        self._emit_all(self.function(tup), collector)

    def _emit_all(self, returned: object, collector: BasicOutputCollector) -> None:
        if returned is None:
            return
        # The most frequent type comes first: a check against an ABC takes longer.
        if isinstance(returned, str) or not isinstance(returned, (GeneratorType, Iterable)):
            raise self._no_values("returned", returned)
        emit = collector.emit
        for values in returned:
            if type(values) is not list and not isinstance(values, (list, tuple)):
                raise self._no_values("gave", values)
            emit(values)

    async def _emit_each(self, generator: AsyncIterable[object], collector: BasicOutputCollector) -> None:
        async for values in generator:
            if not isinstance(values, (list, tuple)):
                raise self._no_values("gave", values)
            collector.emit(values)

    def _no_values(self, did: str, value: object) -> MisuseError:
        return MisuseError(
            f"{self!r} {did} {value!r:.80}, which is not a list of values",
            f"the function {self.__name__}",
            "yield a list with one value for each field (`yield [word]`), or return a list of such lists",
        )


class _AsyncFunctionBolt(FunctionBolt):
    """The bolt of an ``async def``."""

    async def execute(  # type: ignore[override]  # awaited, since it is an async def
        self, tup: Tuple, collector: BasicOutputCollector
    ) -> None:
        """Emit as :class:`FunctionBolt` does; an asynchronous generator's values as it yields them."""
        returned: Any = self.function(tup)
        if isinstance(returned, AsyncIterable):
            await self._emit_each(returned, collector)
        else:
            self._emit_all(await returned, collector)


@naming_keywords
def bolt(
    function: None = None,
    /,
    *,
    outputs: Outputs = (),
    max_concurrency: int | None = None,
    threads: int | None = None,
) -> Callable[[Callable[[Tuple], object]], FunctionBolt]:
    """Make a bolt from a function or generator that takes a tuple and yields lists of values.

    Args:
        function: Leave it out; it is here to raise a clear error for ``@bolt`` without parentheses.
        outputs: As ``Bolt.outputs``; values go to the default stream. Empty: the function emits nothing.
        max_concurrency: Of an ``async def``, which may yield too: as ``BasicBolt.max_concurrency``.
        threads: As ``BasicBolt.threads``.

    The rules of BasicBolt apply: emitted tuples are anchored to the input, which is acked when the function
    returns and failed when it raises. The function may yield, return a list of value lists, or return None.

        @bolt(outputs=["word"])
        def split(tup):
            for word in tup["line"].split():
                yield [word]

        builder.set_bolt("split", split).shuffle_grouping("lines")

    Raises:
        TopologyError: ``@bolt`` without parentheses, a class, or a function that does not take one argument.
    """
    if function is not None:
        _refuse(
            "@bolt is used without parentheses",
            function,
            'write @bolt(outputs=["field"]); @bolt() if it emits nothing',
        )

    def make(function: Callable[[Tuple], object]) -> FunctionBolt:
        if isinstance(function, type) or not callable(function):
            _refuse(
                "@bolt decorates something that is not a function",
                function,
                "derive a class from BasicBolt instead",
            )
        try:
            inspect.signature(function).bind(None)
        except ValueError:
            pass  # a builtin without a signature
        except TypeError:
            what = f"the function takes {inspect.signature(function)}, and is called with one tuple"
            _refuse(what, function, "write it as def name(tup): ...")
        is_async = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
        made = (_AsyncFunctionBolt if is_async else FunctionBolt)(function, outputs)
        made.max_concurrency, made.threads = max_concurrency, threads
        return made

    return make


def _refuse(what: str, function: object, fix: str) -> NoReturn:
    name = getattr(function, "__qualname__", repr(function))
    raise TopologyError(what, f"@bolt above {name}", fix)
