"""Prefixes that requests lend each other, over a pool and layers of Python."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import sparsemla as sm
from test_objects import Model, inputs


def keys_of(tokens: np.ndarray, unit: int) -> sm.PrefixKeys:
    keys = sm.PrefixKeys()
    assert keys.append_tokens(tokens, unit) == len(tokens) // unit
    return keys


def test_a_lent_prefix_gives_the_bits_of_ones_own(checkpoint: Path) -> None:
    model = Model(checkpoint)
    cache = sm.PrefixCache(model.pool, retention_interval=256)
    assert cache.unit == 256
    tokens = np.arange(300, dtype=np.int32)
    hidden = inputs(300, model.hidden)
    first = sm.RequestBlocks(model.pool)
    keys = keys_of(tokens, cache.unit)
    assert cache.adopt(keys, first) == 0
    model.feed(first, 0, hidden[:256])
    cache.keep(keys, first, 0, 256, 300)
    first.slide(256)
    want = model.feed(first, 256, hidden[256:])
    first.clear()

    second = sm.RequestBlocks(model.pool)
    assert cache.find(keys, max_tokens=299) == 256
    assert cache.find(keys, max_tokens=255) == 0
    assert cache.adopt(keys, second, max_tokens=299) == 256
    got = model.feed(second, 256, hidden[256:])
    for a, b in zip(want, got, strict=True):
        np.testing.assert_array_equal(a, b)
    stats = cache.stats
    assert (stats["hits"], stats["hit_tokens"], stats["tails"]) == (1, 256, 1)
    second.clear()
    assert cache.make_room(model.pool.num_blocks - 1) or model.pool.free_blocks == model.pool.num_blocks
    cache.clear()
    assert model.pool.free_blocks == model.pool.num_blocks


def test_other_tokens_are_not_found(checkpoint: Path) -> None:
    model = Model(checkpoint)
    cache = sm.PrefixCache(model.pool)
    blocks = sm.RequestBlocks(model.pool)
    tokens = np.zeros(512, np.int32)
    assert blocks.reserve(0, 512)
    cache.keep(keys_of(tokens, cache.unit), blocks, 0, 512, 512)
    assert cache.find(keys_of(tokens, cache.unit)) == 512
    tokens[0] = 1
    assert cache.find(keys_of(tokens, cache.unit)) == 0
    ids = sm.PrefixKeys()
    ids.append([7, 8])
    assert ids.blocks == 1 and cache.find(ids) == 0


def test_what_does_not_fit_is_refused(checkpoint: Path) -> None:
    model, other = Model(checkpoint), Model(checkpoint)
    with pytest.raises(sm.InvalidArgument, match="retention_interval: got 100, expected a multiple of 256"):
        sm.PrefixCache(model.pool, retention_interval=100)
    cache = sm.PrefixCache(model.pool)
    keys = sm.PrefixKeys()
    with pytest.raises(sm.InvalidArgument, match="another pool"):
        cache.adopt(keys, sm.RequestBlocks(other.pool))
    held = sm.RequestBlocks(model.pool)
    assert held.reserve(0, 512)
    with pytest.raises(sm.InvalidArgument, match="holds some"):
        cache.adopt(keys, held)
    with pytest.raises(sm.InvalidArgument, match="keys: got 0 blocks, expected 2"):
        cache.keep(keys, held, 0, 512, 512)
    with pytest.raises(sm.InvalidArgument, match="positions: got 5 to 4"):
        cache.keep(keys, held, 5, 4, 512)
