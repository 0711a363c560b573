"""Keys: no two are taken for one, what is none is refused, and each is kept as long as a model says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree import MisuseError
from acktree.core.spouts.keys import KeptKeys, KeptPart, digests_of, key_digests

KEYS = st.text(min_size=1) | st.binary(min_size=1) | st.integers() | st.integers(-(2**70), 2**70)


@given(st.lists(KEYS | st.just("\ud800"), max_size=30), st.sampled_from(["orders", "1:a", "1"]))
def test_keys_that_are_not_equal_or_of_another_type_or_spout_have_other_digests(keys, spout):
    digest, elsewhere = key_digests(spout), key_digests("a")
    named = {(type(key), key) for key in keys}
    digests = {digest(key, "") for _, key in named}
    assert len(digests) == len(named)
    assert digests.isdisjoint(elsewhere(key, "") for _, key in named)


def test_a_number_of_numpy_is_the_number_that_it_is():
    digest = key_digests("orders")
    assert digest(np.int32(7), "") == digest(np.uint64(7), "") == digest(7, "")


@pytest.mark.parametrize(
    "key", ["", b"", 1.0, True, np.True_, (1, 2), float("nan"), bytearray(b"a"), object()]
)
def test_what_names_no_message_is_no_key(key):
    with pytest.raises(MisuseError, match="the key of a message is") as refused:
        key_digests("orders")(key, "emit(key=...)")
    assert "leave key out, or None" in str(refused.value)


def test_the_digest_of_a_key_does_not_change():
    digest = key_digests("orders")
    assert digest("a", "").hex() == "f7d0a4e9b0b39eb9c759612c6fc089f8"
    assert digest(b"a", "").hex() == "d5651f4f19b4ba5d86ffae43e171fc43"
    assert digest(-1, "").hex() == "fa8c51e76e336be13a7a674cd35da7ce"


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 5)), max_size=40), st.integers(1, 1000))
def test_a_key_is_kept_for_the_retention_and_at_most_a_sixteenth_longer(steps, retention_ms):
    kept, decided, age_ms, number = KeptKeys(retention_ms), {}, 0, 0
    for more_ms, count in steps:
        age_ms += more_ms
        fresh = [f"{number + n:016d}".encode() for n in range(count)]
        number += count
        kept.add(KeptPart.of(age_ms, digests_of(fresh)))
        decided |= dict.fromkeys(fresh, age_ms)
        kept.forget_before(age_ms)
        found = kept.among(digests_of(decided)).tolist()
        ages = [age_ms - at_ms for at_ms in decided.values()]
        assert all(is_kept for is_kept, age in zip(found, ages, strict=True) if age <= retention_ms)
        assert not any(
            is_kept for is_kept, age in zip(found, ages, strict=True) if age > retention_ms * 17 // 16
        )
        assert len(kept) == sum(found)


def test_the_keys_of_many_micro_batches_lie_in_few_parts():
    kept = KeptKeys(86_400_000)
    for batch in range(1000):
        kept.add(KeptPart.of(batch, digests_of([f"{batch:08d}{n:08d}".encode() for n in range(3)])))
    assert len(kept) == 3000
    assert len(kept.parts) <= 12
