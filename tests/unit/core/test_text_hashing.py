"""A text has one hash, whether it comes alone or in a column, and texts that look alike have others."""

from __future__ import annotations

import string
import uuid
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree.core import text_hashing as module
from acktree.core.ids import mix64_of_one
from acktree.core.text_hashing import BYTES, LONGEST, TEXT, digest, hash_text, hash_texts, hash_texts_at

TAGS = st.sampled_from([TEXT, BYTES])
LENGTHS = st.one_of(st.integers(0, 26), st.integers(LONGEST - 9, LONGEST + 9))
CONTENTS = st.one_of(st.binary(max_size=26), LENGTHS.flatmap(lambda n: st.binary(min_size=n, max_size=n)))


# ---- alone and in a column --------------------------------------------------------------------------------


@given(TAGS, st.lists(CONTENTS))
def test_a_column_of_texts_hashes_as_its_texts(tag, contents):
    assert hash_texts(tag, contents).tolist() == [hash_text(tag, content) for content in contents]


@given(TAGS, st.lists(CONTENTS, min_size=1), st.binary(max_size=20), st.binary(max_size=20), st.data())
def test_a_part_of_a_column_hashes_as_its_texts_whatever_stands_around_it(tag, contents, before, after, data):
    offsets = np.cumsum([len(before), *map(len, contents)])
    whole = np.frombuffer(before + b"".join(contents) + after, dtype=np.uint8)
    first = data.draw(st.integers(0, len(contents)))
    end = data.draw(st.integers(first, len(contents)))
    expected = [hash_text(tag, content) for content in contents[first:end]]
    assert hash_texts_at(tag, whole, offsets[first : end + 1]).tolist() == expected


@given(st.lists(CONTENTS, max_size=20), st.integers(1, 6))
def test_texts_do_not_mind_with_which_others_they_are_hashed(contents, block):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_BLOCK", block)
        assert hash_texts(TEXT, contents).tolist() == [hash_text(TEXT, content) for content in contents]


def test_every_length_has_its_place_in_a_column():
    contents = [bytes(range(1, length + 1)) for length in range(LONGEST + 20)]
    expected = [hash_text(TEXT, content) for content in contents]
    assert hash_texts(TEXT, contents).tolist() == expected
    assert hash_texts(TEXT, contents[::-1]).tolist() == expected[::-1]
    assert len(set(expected)) == len(contents)


@given(TAGS, CONTENTS)
def test_the_hash_is_what_the_page_says(tag, content):
    if len(content) > LONGEST:
        expected = digest(tag, content)
    else:
        number = sum(byte << 8 * place for place, byte in enumerate(content + tag))
        first, second = (number % prime for prime in module._PRIMES)
        expected = mix64_of_one((first * 2**32 + second) ^ module._KEY)
    assert hash_text(tag, content) == hash_text(tag, bytearray(content)) == expected


# ---- different texts, different hash ----------------------------------------------------------------------


def all_hashes(texts):
    contents = [text if isinstance(text, bytes) else text.encode() for text in texts]
    assert len(set(contents)) == len(contents)
    return hash_texts(TEXT, contents)


def are_different(texts):
    return len(np.unique(all_hashes(texts))) == len(texts)


SHORT = st.tuples(TAGS, st.binary(max_size=6))


@given(SHORT, SHORT)
def test_texts_of_up_to_six_bytes_never_collide(first, second):
    assert (hash_text(*first) == hash_text(*second)) == (first == second)


def test_zeros_and_lengths_count():
    assert are_different([b"\0" * zeros + b"x" * more for zeros in range(60) for more in range(60)])


def test_what_was_cut_elsewhere_is_another_text():
    assert are_different(
        [b"abcdefghijklmnopqrstuvwxyz"[first:end] for first, end in combinations(range(27), 2)]
    )


@pytest.mark.parametrize("key", ["order-000000", "123e4567-e89b-12d3-a456-426614174000", "x" * LONGEST])
def test_texts_that_differ_in_two_places_differ(key):
    places = combinations(sorted({0, 1, 3, 4, 7, 8, 11, len(key) - 5, len(key) - 1}), 2)
    letters = list(product("0123456789abcdefghij_-AZ", repeat=2))
    texts = {
        key[:i] + one + key[i + 1 : j] + other + key[j + 1 :] for i, j in places for one, other in letters
    }
    assert are_different(list(texts))


def test_swapped_words_of_eight_bytes_differ():
    parts = ["customer", "00000000", "abababab", "Customer"]
    assert are_different(["".join(text) for n in range(5) for text in product(parts, repeat=n)])


def is_prime(number):
    return all(number % divisor for divisor in range(2, int(number**0.5) + 1))


@pytest.mark.slow
def test_two_generates_the_group_of_either_prime():
    """Else powers of two would come round again within a text, and with them its letters."""
    for prime in module._PRIMES:
        assert is_prime(prime)
        assert prime < 2**30
        factors = [n for n in range(2, 1 << 15) if (prime - 1) % n == 0 and is_prime(n)]
        rest = prime - 1
        for factor in factors:
            while rest % factor == 0:
                rest //= factor
        assert all(pow(2, (prime - 1) // factor, prime) != 1 for factor in {*factors, rest} - {1})


# ---- spread -----------------------------------------------------------------------------------------------

SYLLABLES = ["".join(pair) for pair in product("bdfgklmnprstvz", "aeiou")]
REALISTIC = {
    "words": ["".join(parts) for parts in product(SYLLABLES[::3], SYLLABLES[::7], SYLLABLES[::2])][:20_000],
    "numbers": [str(number) for number in range(20_000)],
    "padded numbers": [f"{number:012d}" for number in range(20_000)],
    "tens": [str(10 * number) for number in range(20_000)],
    "uuids": [str(uuid.UUID(int=mix64_of_one(n) << 64 | mix64_of_one(n + 1))) for n in range(20_000)],
    "counted uuids": [str(uuid.UUID(int=number << 40)) for number in range(20_000)],
    "a long prefix": ["https://shop.example/en/catalogue/products/" + str(n) for n in range(20_000)],
    "a long suffix": [f"{n}.sensors.building-7.campus.example" for n in range(20_000)],
    "bytes": [bytes([one, other, 0, 7]) for one, other in product(range(200), range(100))],
    "long": ["/".join([str(number)] * 30) for number in range(10_000, 30_000)],
}


@pytest.mark.parametrize("kind", REALISTIC)
@pytest.mark.parametrize("tasks", [2, 3, 7, 8, 64, 100])
@pytest.mark.parametrize("shift", [0, 8, 32, 48])
def test_realistic_keys_are_spread_as_if_drawn_at_random(kind, tasks, shift):
    """Over tasks by the remainder, over buckets by the lowest bits; no other bits are worse."""
    hashes = all_hashes(REALISTIC[kind]) >> np.uint64(shift)
    counts = np.bincount((hashes % np.uint64(tasks)).astype(np.int64), minlength=tasks)
    expected = len(hashes) / tasks
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert chi_square < five_sigma(tasks - 1)


def five_sigma(degrees):
    """Chi-square that chance alone exceeds once in three million times (Wilson and Hilferty)."""
    return degrees * (1 - 2 / (9 * degrees) + 5 * (2 / (9 * degrees)) ** 0.5) ** 3


@pytest.mark.parametrize("length", [3, 7, 8, 10, 16, 36, 100])
def test_one_bit_of_a_text_changes_every_bit_of_its_hash_half_of_the_time(length):
    letters = (string.ascii_letters + string.digits).encode()
    texts = [
        bytes(letters[mix64_of_one(n * 997 + i) % len(letters)] for i in range(length)) for n in range(400)
    ]
    hashes = hash_texts(TEXT, texts)
    for bit in {0, 1, 5, 8 * length // 2, 8 * length - 3, 8 * length - 1}:
        mask = 1 << bit
        flipped = [(int.from_bytes(text, "little") ^ mask).to_bytes(length, "little") for text in texts]
        differing = hashes ^ hash_texts(TEXT, flipped)
        rates = (differing[:, None] >> np.arange(64, dtype=np.uint64) & np.uint64(1)).mean(axis=0)
        assert rates.min() > 0.35
        assert rates.max() < 0.65
        assert 0.48 < rates.mean() < 0.52


# ---- the same for ever ------------------------------------------------------------------------------------


def test_no_release_may_change_the_hash_of_a_text():
    contents = [b"", b"a", b"word", b"eightlet", b"123e4567-e89b-12d3-a456-426614174000"]
    contents += [bytes(range(128)), bytes(range(129))]
    assert [hash_text(TEXT, content) for content in contents] == PINNED
    assert hash_texts(TEXT, contents).tolist() == PINNED


PINNED = [
    0x1693EC0AA8B62D4E,
    0xE8917745431B7552,
    0x5712B444AB193F0E,
    0x056C668BFE508B82,
    0x7AA279F540DA250D,
    0x4FD43CDCE8261FF5,
    0x64311C2C5A5C2C70,
]
