"""Plain integers take a fast way through the functions of shapes, to what the checked one gives."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import layoutconv.algebra as lc

PLAIN = st.recursive(st.integers(1, 5), lambda x: st.lists(x, max_size=3).map(tuple), max_leaves=6)


def leaves(t):
    return [x for part in t for x in leaves(part)] if isinstance(t, tuple) else [t]


@settings(max_examples=300, deadline=None)
@given(PLAIN, st.data())
def test_plain_integers_take_the_fast_way_to_the_same_offset(shape, data):
    """Numbers of NumPy take the other way; a loop over the leaves is the definition."""

    def drawn(least, most):
        return lc.transform_leaf(lambda s: data.draw(st.integers(least, most)), shape)

    given = data.draw(st.sampled_from([None, drawn(-9, 9)]))
    strides = leaves(lc.prefix_product(shape) if given is None else given)
    modes = list(zip(leaves(shape), strides, strict=True))
    for index in (0, 1, data.draw(st.integers(0, 200)), data.draw(st.integers(-50, 0))):
        rest, expected = index, 0
        for i, (s, d) in enumerate(modes):
            expected += (rest % s if i < len(modes) - 1 else rest) * d
            rest //= s
        slow = lc.crd2idx(np.int64(index), shape, given)
        assert lc.crd2idx(index, shape, given) == slow == expected
    crd = drawn(-3, 7)
    expected = sum(c * d for c, d in zip(leaves(crd), strides, strict=True))
    slow = lc.crd2idx(lc.transform_leaf(np.int64, crd), shape, given)
    assert lc.crd2idx(crd, shape, given) == slow == expected
