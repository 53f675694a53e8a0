"""Is a text notation? Answered by rewriting with regular expressions, without a parser.

Leaves and tuples become letters until nothing changes; what is left has to be a chain of parts. The
bounds of the notation, and what a layout asks of its shape and its stride, are not looked at.
"""

from __future__ import annotations

import re

_LEAVES = (
    (r"\b(?:Int|C)<-?[0-9]+>(?:\{\})?|_-?[0-9]+\{\}", "N"),
    (r"(?:[sgrt]mem_)?ptr\[[0-9]+b\]\([^()\s]*\)", "P"),
    (r"\bmake_(?:shape|stride|coord|tile|tuple)\(", "("),
    (r"S[wW]?<_?-?[0-9]+,_?-?[0-9]+,_?-?[0-9]+>", "W"),
    (r"f_?[0-9]+", "D"),
    (r"_?-?[0-9]+(?:@_?[0-9]+)+(?:\+_?-?[0-9]+(?:@_?[0-9]+)+)*", "D"),
    (r"_?-?[0-9]+", "N"),
)
_TUPLE_OF_INTEGERS = r"(?<!make_layout)\((?:[NT],)*[NT]?\)"
_TUPLE_OF_STRIDES = r"(?<!make_layout)\((?:[NTDU],)*[NTDU]?\)"
_MADE = (  # of a shape, of a shape and strides or an order, or of layouts
    r"make_layout\((?:[NT](?:,(?:[NTDU]|Layout(?:Left|Right)(?:\{\})?))?"
    r"|(?:M|[NT]:[NTDU])(?:,(?:M|[NT](?::[NTDU])?))*),?\)"
)
_PART = "(?:W|M|[NT](?::[NTDU])?)"
_CHAIN = re.compile(f"{_PART}(?:[oO∘](?:P[oO∘])?{_PART})*")
# Blanks separate what would otherwise be one word.
_WORD_BREAK = re.compile(r"(?<=[0-9_\-S])\s+(?=[0-9_\-<wW])|(?<=[Ww])\s+(?=<)")
_LETTERS = re.compile("[NDTUWPM]")


def is_notation(text: str) -> bool:
    """Does ``parse`` read a text, but for bounds and for what makes no layout?

    >>> is_notation("make_layout(make_shape(_4{},Int<8>{}),LayoutRight{})")
    True
    >>> [is_notation(text) for text in ("(4,_2):(1,f4)", "(4,2", "4 2", "S<1,2,3> o 4:1", "4:1+2")]
    [True, False, False, True, False]
    """
    if _LETTERS.search(text.replace("SW<", "S<")) or _WORD_BREAK.search(text):
        return False
    text = re.sub(r"\s+", "", text)
    for pattern, letter in _LEAVES:
        text = re.sub(pattern, letter, text)
    if re.search("[NDW]{2}", text):
        return False
    before = ""
    while text != before:
        before = text
        text = re.sub(_TUPLE_OF_INTEGERS, "T", text)
    while True:  # what is no tuple of integers is one of strides, which no shape is
        before = text
        text = re.sub(_TUPLE_OF_STRIDES, "U", text)
        text = re.sub(_MADE, "M", text)
        if text == before:
            return _CHAIN.fullmatch(text) is not None
