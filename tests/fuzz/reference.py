"""Is a text notation? Answered by rewriting with regular expressions, without a parser.

Words, leaves, expressions and tuples become circled letters until nothing changes; what is left
has to be a chain of parts. The bounds of the notation, and what a layout asks of its shape and its
stride, are not looked at.
"""

from __future__ import annotations

import re
from keyword import iskeyword

# N an integer, V an integer with a name in it, K one computed of numbers alone, which is notation
# only inside of V; T a tuple of integers, D a stride that no shape has, U a tuple with such
# strides; W a swizzle, P a pointer, M a made layout. ⦅ opens a tuple that can be nothing else, − is
# a minus that is no sign of the number after it.
_OWN = "ⓃⓋⓀⓉⒹⓊⓌⓅⓂ⦅−"
_OPENED = "make_(?:shape|stride|coord|tile|tuple)"
_USED = {"o", "O", "_", "Layout", "gather", "ArithTuple", "ArithTupleIter"}
_USED |= {f"{first}{last}" for first in ("Layout", "Gen") for last in ("Left", "Right")}
_USED |= {"GenColMajor", "GenRowMajor"}
_BEFORE_BLANKS_GO = (
    (r"(?<!\w)(?<!_-)([0-9]+)(?=[^\W\d_])", r"\1 "),  # a number ends where a word begins
    (r"\b(?:Int|C)<-?[0-9]+>(?:\{\})?|\b_-?[0-9]+(?:\{\}|\b)|\b[0-9]+_c\b", "Ⓝ"),
    (r"\b(?:[sgrt]mem_)?ptr\[[0-9]+b\]\([^()\s]*\)", "Ⓟ"),
    (rf"\b{_OPENED}\b\s*\(", "⦅"),
    (r"\bcute(?:::|\.)(?=[A-Za-z_])", " "),
    (r"\bshape\s*=", "≐"),
    (r"\bstride\s*=", "≗"),
    (r"\bmake_layout\b", "⊙"),
    (r"\bLayout\b(?=\s*\()", "⊙"),
    (r"\b(?:Layout(?:Left|Right)|Gen(?:Row|Col)Major)\b(?:\{\})?", "⊳"),
    (r"\bS[wW]?<", "⟨"),
    (r"\bf_[0-9]+\b", "Ⓥ"),
    (r"\bf(?=\s*(?:[0-9]+\b|Ⓝ))", "♯"),
    (r"\b[oO]\b", "∘"),
    (r"-(?![0-9])", "−"),
)
_NUMBER = r"-?\b[0-9]+\b"
_ENDS = "ⓃⓋⓀⓉⒹⓊⓌⓅⓂ)@"  # after these a minus is an operator, and a plus too
_INTEGER = "[ⓃⓋⓀ]"
_LEAVES = (
    (rf"(?<![{_ENDS}])-Ⓝ", "Ⓝ"),
    (r"⟨Ⓝ,Ⓝ,Ⓝ>", "Ⓦ"),
    (r"(?<!@)♯Ⓝ(?=@)", "Ⓝ"),  # the factor of a basis
    (r"♯Ⓝ", "Ⓓ"),
    (r"∘Ⓓ(?=∘)", "∘Ⓝ"),  # an offset that adds by XOR
    (r"∘[ⓃⓋ](?:@Ⓝ)+(?=∘)", "∘Ⓝ"),  # an offset of a coordinate
)
# Of expressions: signs, products and, once there are none of these left, sums.
_SIGN = re.compile(rf"(?<![{_ENDS}])[-−]({_INTEGER})(?!@)|(?<![{_ENDS}])[-−](Ⓥ)")
_PRODUCT = re.compile(rf"(?<!@)({_INTEGER})(?:\*|//|%)({_INTEGER})")
_SUM = re.compile(rf"(?<![@*/%])({_INTEGER})[-−+]({_INTEGER})(?![@*/%(])")
_IN_PARENTHESES = re.compile(rf"(\(*)({_INTEGER})(\)*)")
_SCALED = r"[ⓃⓋ](?:@Ⓝ)+"
_BASES = re.compile(rf"(?<![*/%@]){_SCALED}(?:\+{_SCALED})*(?![*/%@])")
_TUPLE_OF_INTEGERS = re.compile(r"(?:(?<!⊙)\(|⦅)(?:[ⓃⓋⓉ],)*[ⓃⓋⓉ]?\)")
_TUPLE_OF_STRIDES = re.compile(r"(?:(?<!⊙)\(|⦅)(?:[ⓃⓋⓉⒹⓊ],)*[ⓃⓋⓉⒹⓊ]?\)")
_MADE = re.compile(  # of a shape, of a shape and strides or an order, or of layouts
    r"⊙\((?:≐?[ⓃⓋⓉ](?:,≗?(?:[ⓃⓋⓉⒹⓊ]|⊳))?"
    r"|(?:Ⓜ|[ⓃⓋⓉ]:[ⓃⓋⓉⒹⓊ])(?:,(?:Ⓜ|[ⓃⓋⓉ](?::[ⓃⓋⓉⒹⓊ])?))*),?\)"
)
_PART = "(?:Ⓦ|Ⓜ|[ⓃⓋⓉ](?::[ⓃⓋⓉⒹⓊ])?)"
_CHAIN = re.compile(f"{_PART}(?:∘(?:Ⓟ∘)?{_PART})*")
# Blanks stand neither between what would be one number or one operator, nor in a swizzle's name.
_BROKEN = re.compile(r"/\s+/|[Ⓝ0-9_a-z]\s+[ⓃⓋ0-9_a-z]|Ⓥ\s+[ⓃⓋ]")


def is_notation(text: str) -> bool:
    """Does ``parse`` read a text, but for bounds and for what makes no layout?

    >>> is_notation("make_layout(make_shape(_4{},Int<8>{}),LayoutRight{})")
    True
    >>> [is_notation(text) for text in ("(4,_2):(1,f4)", "(4,2", "4 2", "S<1,2,3> o 4:1", "4:1+2")]
    [True, False, False, True, False]
    >>> [is_notation(text) for text in ("(2,3):(1,2) o 6@1 o 2:1@0", "4:1 o 6@1", "6@1 o 2:1@0")]
    [True, False, False]
    >>> [is_notation(text) for text in ("(H,(W+7)//8):(W,8)", "(H W)", "2:H+1@0", "(lambda,2)")]
    [True, False, False, False]
    """
    if not set(text).isdisjoint(_OWN + "⊙⊳⟨♯≐≗") or is_name(text.strip()):
        return False  # a lone word is no layout
    for pattern, letter in _BEFORE_BLANKS_GO:
        text = re.sub(pattern, letter, text)
    text = re.sub(r"\w+", lambda word: "Ⓥ" if is_name(word[0]) else word[0], text)
    text = re.sub(_NUMBER, lambda number: "-Ⓝ" if number[0][0] == "-" else "Ⓝ", text)
    if _BROKEN.search(text):
        return False
    text = re.sub(r"\s+", "", text)
    for pattern, letter in _LEAVES:
        text = re.sub(pattern, letter, text)
    text = _until_it_stays(text, _without_expressions)
    text = _until_it_stays(_BASES.sub("Ⓓ", text), lambda t: _TUPLE_OF_INTEGERS.sub("Ⓣ", t))
    # What is no tuple of integers is one of strides, which no shape is.
    text = _until_it_stays(text, lambda t: _MADE.sub("Ⓜ", _TUPLE_OF_STRIDES.sub("Ⓤ", t)))
    return _CHAIN.fullmatch(text) is not None


def is_name(word: str) -> bool:
    """May an integer have this name?

    >>> [word for word in ("W", "_w", "f", "f5", "o", "None", "__w", "make_w") if is_name(word)]
    ['W', '_w', 'f']
    """
    used = word in _USED or re.fullmatch(r"[f_]\d+|(__|make_).*", word)
    return word.isidentifier() and not iskeyword(word) and not used


def _until_it_stays(text: str, rewrite: object) -> str:
    before = ""
    while text != before:
        before, text = text, rewrite(text)  # type: ignore[operator]
    return text


def _of(*operands: str) -> str:
    return "Ⓥ" if "Ⓥ" in operands else "Ⓚ"


def _without_expressions(text: str) -> str:
    for pattern in (_SIGN, _PRODUCT):
        found = pattern.sub(lambda m: _of(*m.groups()), text, count=1)
        if found != text:
            return found
    found = _IN_PARENTHESES.sub(_operand, text)
    return found if found != text else _SUM.sub(lambda m: _of(*m.groups()), text, count=1)


def _operand(found: re.Match[str]) -> str:
    """An integer without the parentheses that an operator before or after it makes its own."""
    opened, integer, closed = found.groups()
    before, after = found.string[: found.start()], found.string[found.end() :]
    many = min(len(opened), len(closed))
    first = len(opened) <= len(closed) and re.search(r"[-−+*/%]$", before)
    last = len(closed) <= len(opened) and re.match(r"[-−+*%@]|//", after)
    if not many or not (first or last):
        return found[0]
    return opened[many:] + _of(integer) + closed[many:]
