"""The backing of a state in Redis. Needs ``acktree[redis]``."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from acktree.connectors.redis_client import client_of, connector_error, host_of  # isort: skip  # names the extra

import redis.exceptions

from acktree.states.map_state import MapBacking

__all__ = ["RedisMap"]


class RedisMap(MapBacking):
    """A map in the strings of a Redis server.

    Args:
        url: ``redis://user:password@host:6379/0``, or ``rediss://``.
        prefix: What the names of the strings begin with. No other map and program uses it.

    What a call writes, it writes in one transaction. A process keeps its connections for each URL.

    Raises:
        ConfigError: The URL cannot be used.
    """

    def __init__(self, url: str, prefix: str) -> None:
        self._host = host_of(url, f"RedisMap(..., {prefix!r})")
        self._url, self._prefix = url, prefix

    @property
    def where(self) -> str:
        return f"RedisMap({self._host!r}, {self._prefix!r})"

    def get(self, keys: Sequence[str]) -> Sequence[str | None]:
        with self._client() as client:
            texts = client.mget([self._prefix + key for key in keys]) if keys else []
        return [None if text is None else text.decode() for text in texts]

    def put(self, texts: Mapping[str, str | None]) -> None:
        kept = {self._prefix + key: text for key, text in texts.items() if text is not None}
        gone = [self._prefix + key for key, text in texts.items() if text is None]
        with self._client() as client, client.pipeline(transaction=True) as pipeline:
            if kept:
                pipeline.mset(kept)
            if gone:
                pipeline.delete(*gone)
            pipeline.execute()

    @contextmanager
    def _client(self) -> Iterator[Any]:
        """The client; its errors are raised as a ConnectorError."""
        try:
            yield _client_of(os.getpid(), self._url)
        except (redis.exceptions.RedisError, OSError) as error:
            raise connector_error(error, self.where) from error


@lru_cache(maxsize=16)
def _client_of(process: int, url: str) -> Any:  # noqa: ANN401, ARG001  # a fork has its own connections
    return client_of(url)
