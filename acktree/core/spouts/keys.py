"""Keys: what a message is called by its source, however often and by whatever connection it comes.

Rules of this file
------------------
1. A key is a text, bytes or an integer, and belongs to one spout. Only its digest of 16 bytes is kept.
2. A key is kept from its verdict ACKED until it is as old as the retention. It is forgotten with its
   neighbours, so at most a sixteenth of the retention later.
3. Ages are given by the caller: this file reads no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from acktree.core.packing import Buffer
from acktree.errors import MisuseError

DIGEST_BYTES: Final = 16
_SLICES: Final = 16
"""Keys that were decided within one part in this number of the retention are forgotten together."""

Digests = npt.NDArray[np.bytes_]
"""Digests of keys, of dtype S16, shape (n,). Numpy leaves out zeros at their ends, in all of them alike."""


def key_digests(spout: str) -> Callable[[object, str], bytes]:
    """A function that returns the digest of a key of a spout; its arguments are the key, and where it is.

    >>> digest = key_digests("orders")
    >>> len({digest(key, "") for key in (1, "1", b"1")}), len(digest(2**20_000, ""))
    (3, 16)
    """
    begun = blake2b(f"{len(spout)}:{spout}".encode(errors="surrogatepass"), digest_size=DIGEST_BYTES)

    def digest(key: object, where: str) -> bytes:
        hashed = begun.copy()
        hashed.update(_key_bytes(key, where))
        return hashed.digest()

    return digest


def _key_bytes(key: object, where: str) -> bytes:
    """A key as bytes; different for keys that are not equal, or of another type."""
    if isinstance(key, np.generic):
        key = key.item()
    if isinstance(key, str) and key:
        return b"s" + key.encode(errors="surrogatepass")
    if isinstance(key, bytes) and key:
        return b"b" + key
    if isinstance(key, int) and not isinstance(key, bool):
        return b"i" + key.to_bytes(key.bit_length() // 8 + 1, "big", signed=True)
    what = f"is empty: {key!r}" if isinstance(key, str | bytes) else f"is {type(key).__name__}: {key!r:.60}"
    raise MisuseError(
        f"the key of a message {what}",
        where,
        "give a text, bytes or an integer that names this message alone; without one, leave key out, or None",
    )


def column_digests(spout: str, column: pa.Array, where: str) -> tuple[list[bytes], dict[int, MisuseError]]:
    """The digest of the key in each row, empty for none; and the rows that have no key that may be one."""
    digest, digests, refused = key_digests(spout), list[bytes](), dict[int, MisuseError]()
    for row in range(len(column)):
        try:
            value = column[row].as_py()
            digests.append(b"" if value is None else digest(value, where))
        except MisuseError as error:
            refused[row] = error
            digests.append(b"")
        except ValueError as error:  # a text that is not UTF-8
            refused[row] = MisuseError(f"a key cannot be read: {error}", where, "cast the column to binary")
            digests.append(b"")
    return digests, refused


def digests_of(several: Iterable[bytes]) -> Digests:
    """Digests as an array."""
    return np.frombuffer(b"".join(several), dtype=f"S{DIGEST_BYTES}")


@dataclass(frozen=True, eq=False)
class KeptPart:
    """Keys that were decided at about the same time.

    Attributes:
        first_ms: The age of the topology at which the first was decided.
        last_ms: ... and the last.
        digests: Their digests, ascending.
    """

    first_ms: int
    last_ms: int
    digests: Digests

    @classmethod
    def of(cls, age_ms: int, digests: Digests) -> KeptPart:
        """Keys that are decided now."""
        return cls(age_ms, age_ms, np.sort(digests))

    @classmethod
    def from_bytes(cls, first_ms: int, last_ms: int, blob: Buffer) -> KeptPart:
        """What ``digests.tobytes()`` wrote."""
        return cls(first_ms, last_ms, np.frombuffer(bytes(blob), dtype=f"S{DIGEST_BYTES}"))

    def joined(self, later: KeptPart) -> KeptPart:
        """The keys of both parts."""
        together = np.sort(np.concatenate((self.digests, later.digests)), kind="stable")  # two runs
        return KeptPart(self.first_ms, later.last_ms, together)

    def among(self, digests: Digests) -> npt.NDArray[np.bool_]:
        """Which of some digests it has, shape (n,)."""
        places = np.minimum(np.searchsorted(self.digests, digests), len(self.digests) - 1)
        is_known: npt.NDArray[np.bool_] = self.digests[places] == digests
        return is_known


class KeptKeys:
    """The keys that are kept; 16 bytes each.

    Parts that lie side by side are joined as in a binary counter: a key is sorted about 20 times in all.

    >>> kept = KeptKeys(retention_ms=1000)
    >>> kept.add(KeptPart.of(0, digests_of([b"a" * 16])))
    >>> kept.among(digests_of([b"a" * 16, b"b" * 16])).tolist()
    [True, False]
    >>> kept.forget_before(1001)
    >>> len(kept)
    0
    """

    def __init__(self, retention_ms: int) -> None:
        self._retention_ms = retention_ms
        self.parts: list[KeptPart] = []

    def __len__(self) -> int:
        return sum(len(part.digests) for part in self.parts)

    def add(self, part: KeptPart) -> None:
        """Keep keys that are decided now; none of them is kept already."""
        if not len(part.digests):
            return
        self.parts.append(part)
        while len(self.parts) > 1 and self._belong_together(*self.parts[-2:]):
            later = self.parts.pop()
            self.parts.append(self.parts.pop().joined(later))

    def _belong_together(self, earlier: KeptPart, later: KeptPart) -> bool:
        is_near = later.last_ms - earlier.first_ms <= self._retention_ms // _SLICES
        return is_near and len(earlier.digests) <= 2 * len(later.digests)

    def forget_before(self, age_ms: int) -> None:
        """Forget the keys that are older than the retention at this age of the topology."""
        self.parts = [part for part in self.parts if part.last_ms >= age_ms - self._retention_ms]

    def among(self, digests: Digests) -> npt.NDArray[np.bool_]:
        """Which of some digests are kept, shape (n,)."""
        is_known = np.zeros(len(digests), dtype=np.bool_)
        for part in self.parts:
            is_known |= part.among(digests)
        return is_known
