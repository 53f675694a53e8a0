"""Parse PTX text to a kernel: parameters, variables, registers and a flat list of instructions.

Grammar: PTX ISA 8.8, chapters 4 (syntax), 5 (state spaces and types) and 9.7 (instructions). Nested
``{ }`` scopes, as inline assembly writes them, get registers and labels of their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from .faults import ParseError
from .ptx import (
    TYPE_BITS,
    Address,
    Guard,
    Immediate,
    Instruction,
    Kernel,
    Name,
    Negated,
    Operand,
    Pair,
    Parameter,
    Register,
    Sink,
    Special,
    Variable,
    Vector,
)


def parse(ptx: str, entry: str | None = None) -> Kernel:
    """Return the kernel of a PTX module; ``entry`` (a part of its name) chooses among several.

    Raises ParseError if the text cannot be parsed or the choice is not unique.
    """
    text = re.sub(r"//[^\n]*", "", ptx)
    text = re.sub(r"/\*.*?\*/", lambda m: "\n" * m[0].count("\n"), text, flags=re.S)
    heads = list(re.finditer(r"\.entry\s+([\w$.%]+)\s*(?:\(([^)]*)\))?([^{;]*)\{", text))
    chosen = [h for h in heads if entry is None or entry in h[1]]
    if len(chosen) != 1:
        raise ParseError(f"expected one entry matching {entry!r}, found {[h[1] for h in heads]}")
    head = chosen[0]
    end = _closing_brace(text, head.end())
    body = _Body(text[head.end() : end], first_line=1 + text.count("\n", 0, head.end()))
    body.declare_variables(_outside(text, heads))
    body.read()
    return Kernel(
        name=head[1],
        params=tuple(_parameters(head[2] or "")),
        threads=_extents("reqntid", head[3]),
        cluster=_extents("reqnctapercluster", head[3]),
        instructions=body.instructions,
        labels=body.labels,
        registers=body.registers,
        variables=body.variables,
    )


def _outside(text: str, heads: list[re.Match[str]]) -> str:
    """Return the module's text without its entries."""
    parts, at = [], 0
    for head in heads:
        parts.append(text[at : head.start()])
        at = _closing_brace(text, head.end()) + 1
    return "\n".join([*parts, text[at:]])


def _closing_brace(text: str, start: int) -> int:
    depth = 1
    for m in re.compile(r"[{}]").finditer(text, start):
        depth += 1 if m[0] == "{" else -1
        if depth == 0:
            return m.start()
    raise ParseError("the body of the entry is not closed")


def _parameters(text: str) -> Iterator[Parameter]:
    offset = 0
    for item in filter(None, (part.strip() for part in text.split(","))):
        m = re.fullmatch(
            r"\.param\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+"
            r"(?:\.ptr\s*(?:\.\w+\s*)?(?:\.align\s+\d+\s+)?)?([\w$.%]+)\s*(?:\[(\d+)\])?",
            item,
        )
        if m is None:
            raise ParseError(f"parameter not understood: {item!r}")
        element = TYPE_BITS[m[2]] // 8
        size = element * int(m[4] or 1)
        align = int(m[1] or element)
        offset += -offset % align
        yield Parameter(m[3], m[2], size, align, offset)
        offset += size


def _extents(name: str, directives: str) -> tuple[int, int, int] | None:
    m = re.search(rf"\.{name}\s+(\d+)(?:\s*,\s*(\d+))?(?:\s*,\s*(\d+))?", directives)
    return (int(m[1]), int(m[2] or 1), int(m[3] or 1)) if m else None


_BRACKET = re.compile(r"[{}\[\]()]")


def split_operands(text: str) -> list[str]:
    """Split at the commas that are outside ``{}``, ``[]`` and ``()``."""
    if not _BRACKET.search(text):
        return [p for part in text.split(",") if (p := part.strip())]
    parts, depth, start = [], 0, 0
    for i, c in enumerate(text):
        if c in "[{(":
            depth += 1
        elif c in "]})":
            depth -= 1
        elif c == "," and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
    parts.append(text[start:].strip())
    return [p for p in parts if p]


_DECLARATION = re.compile(
    r"(?:\.(?:extern|visible|weak|common)\s+)?\.(shared|local|const|global)\s+(?:\.align\s+(\d+)\s+)?"
    r"\.(\w+)\s+([\w$.%]+)\s*((?:\[\d*\])*)\s*(?:=\s*(.*))?",
    re.S,
)
_LINE_DIRECTIVE = re.compile(r"\.(?:loc|file)\s[^\n]*")
_LABEL = re.compile(r"([\w$%]+)\s*:(?!:)")
_SPACE = re.compile(r"[\s;]*")
_SCOPED = re.compile(r"[\w$%]+")


class _Body:
    """Reads the statements of one entry, scope by scope."""

    def __init__(self, text: str, first_line: int) -> None:
        self.text = text
        self._line, self._counted = first_line, 0  # line number at a place in the text
        self.instructions: list[Instruction] = []
        self.labels: dict[str, int] = {}
        self.registers: list[Register] = []
        self.variables: dict[str, Variable] = {}
        # Innermost last: name in the text -> register; and the labels' prefix of each open scope.
        self._scopes: list[dict[str, Register]] = [{}]
        self._prefixes = [""]
        self._scope_labels: list[set[str]] = [set()]
        self._opened = 0

    def declare_variables(self, module: str) -> None:
        """Declare the variables of the module outside the entry."""
        linkage = r"(?:\.(?:extern|visible|weak|common)\s+)?"
        for m in re.finditer(rf"({linkage}\.(?:shared|const|global)\s[^;]*);", module):
            self._declare_variable(m[1].strip())

    def read(self) -> None:
        """Read every statement of the body."""
        text, at = self.text, 0
        self._scope_labels[0] = self._labels_of(0)
        while True:
            at = self._skip_space(at)
            if at >= len(text):
                break
            if text[at] == "{":
                self._open(at + 1)
                at += 1
            elif text[at] == "}":
                self._close()
                at += 1
            elif m := _LINE_DIRECTIVE.match(text, at):
                at = m.end()
            elif m := _LABEL.match(text, at):
                self.labels[self._label(m[1])] = len(self.instructions)
                at = m.end()
            else:
                stop = text.find(";", at)
                if stop < 0:
                    raise ParseError(f"statement without an end: {text[at : at + 60]!r}")
                self._statement(" ".join(text[at:stop].split()), at)
                at = stop + 1
        for i in self.instructions:
            for o in i.operands:
                if i.opcode.startswith("bra") and isinstance(o, Name) and o.name not in self.labels:
                    raise ParseError(f"no label {o.name!r} for `{i.text}`")

    def _skip_space(self, at: int) -> int:
        m = _SPACE.match(self.text, at)
        return m.end() if m else at

    def _labels_of(self, start: int) -> set[str]:
        """Return the labels declared directly in the scope that starts at ``start``."""
        depth, found = 0, set()
        pattern = re.compile(r"[{}]|(?<=[\s;{}])([\w$%]+)\s*:(?!:)|^([\w$%]+)\s*:(?!:)")
        for m in pattern.finditer(self.text, start):
            if m[0] == "{":
                depth += 1
            elif m[0] == "}":
                depth -= 1
                if depth < 0:
                    break
            elif depth == 0:
                found.add(m[1] or m[2])
        return found

    def _open(self, start: int) -> None:
        self._opened += 1
        self._scopes.append({})
        self._prefixes.append(f"{self._opened}/")
        self._scope_labels.append(self._labels_of(start))

    def _close(self) -> None:
        self._scopes.pop()
        self._prefixes.pop()
        self._scope_labels.pop()

    def _label(self, name: str) -> str:
        for prefix, labels in zip(
            reversed(self._prefixes), reversed(self._scope_labels), strict=True
        ):
            if name in labels:
                return prefix + name
        return name

    def _statement(self, text: str, at: int) -> None:
        if text.startswith(".reg"):
            self._declare_registers(text)
        elif text.startswith("."):
            if not text.startswith(".pragma"):
                self._declare_variable(text)
        else:
            self._line += self.text.count("\n", self._counted, at)
            self._counted = at
            self.instructions.append(self._instruction(text, self._line))

    def _declare_registers(self, text: str) -> None:
        m = re.fullmatch(r"\.reg\s+(?:\.v[248]\s+)?\.(\w+)\s+(.*)", text)
        if m is None or m[1] not in TYPE_BITS:
            raise ParseError(f"declaration not understood: {text!r}")
        bits = max(TYPE_BITS[m[1]], 16) if m[1] != "pred" else 1
        for item in split_operands(m[2]):
            family = re.fullmatch(r"([\w$%]+)<(\d+)>", item)
            names = [f"{family[1]}{i}" for i in range(int(family[2]))] if family else [item]
            for name in names:
                register = Register(len(self.registers), bits, name)
                self.registers.append(register)
                self._scopes[-1][name] = register

    def _declare_variable(self, text: str) -> None:
        m = _DECLARATION.fullmatch(text)
        if m is None or m[3] not in TYPE_BITS:
            raise ParseError(f"declaration not understood: {text!r}")
        width = TYPE_BITS[m[3]] // 8
        extents = re.findall(r"\[(\d*)\]", m[5])
        size: int | None = width
        for extent in extents:
            size = None if extent == "" or size is None else size * int(extent)
        initial = None
        if m[6] is not None:
            values = [int(v.rstrip("U"), 0) for v in re.findall(r"-?\w+", m[6])]
            initial = b"".join((v % (1 << 8 * width)).to_bytes(width, "little") for v in values)
            size = len(initial) if size is None else size
        self.variables[m[4]] = Variable(m[4], m[1], int(m[2] or width), size, initial)

    def _instruction(self, text: str, line: int) -> Instruction:
        guard, rest = None, text
        if m := re.match(r"@(!?)\s*([\w$%]+)\s+", text):
            register = self._register(m[2])
            if register is None or register.bits != 1:
                raise ParseError(f"guard is not a predicate in `{text}` (line {line})")
            guard, rest = Guard(register, m[1] == "!"), text[m.end() :]
        opcode, _, operands = rest.partition(" ")
        try:
            parsed = tuple(self._operand(o) for o in split_operands(operands))
        except ParseError as error:
            raise ParseError(f"{error} in `{text}` (line {line})") from None
        return Instruction(opcode, parsed, guard, text, line)

    def _register(self, name: str) -> Register | None:
        return next((s[name] for s in reversed(self._scopes) if name in s), None)

    def _operand(self, text: str) -> Operand:
        if text == "_":
            return Sink()
        if text[0] == "{":
            return Vector(tuple(self._operand(o) for o in split_operands(text[1:-1])))
        if text[0] == "[":
            parts = split_operands(text[1:-1])
            m = re.fullmatch(r"([^\s+,]+)\s*(?:\+\s*(-?\w+))?", parts[0] if parts else "")
            if m is None or len(parts) > 2:
                raise ParseError(f"address {text!r} not understood")
            place = self._operand(parts[1]) if len(parts) > 1 else Vector(())
            if not isinstance(place, Vector):
                raise ParseError(f"address {text!r} not understood")
            offset = int(m[2].rstrip("U"), 0) if m[2] else 0
            return Address(self._operand(m[1]), offset, place.items)
        if "|" in text:
            first, second = (self._operand(o.strip()) for o in text.split("|"))
            return Pair(first, second)
        if text[0] == "!":
            register = self._register(text[1:].strip())
            if register is None:
                raise ParseError(f"operand {text!r} is not a predicate")
            return Negated(register)
        if (register := self._register(text)) is not None:
            return register
        if (immediate := _immediate(text)) is not None:
            return immediate
        if text[0] == "%":
            return Special(text)
        if _SCOPED.fullmatch(text):
            return Name(self._label(text))
        raise ParseError(f"operand {text!r} not understood")


def _immediate(text: str) -> Immediate | None:
    if m := re.fullmatch(r"0[fF]([0-9a-fA-F]{8})", text):
        return Immediate(int(m[1], 16), "f32")
    if m := re.fullmatch(r"0[dD]([0-9a-fA-F]{16})", text):
        return Immediate(int(m[1], 16), "f64")
    if text == "WARP_SZ":
        return Immediate(32)
    if m := re.fullmatch(r"(-?)(0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)U?", text):
        digits = m[2]
        octal = len(digits) > 1 and digits[0] == "0" and digits.isdigit()
        return Immediate(int(m[1] + digits, 8 if octal else 0))
    return None
