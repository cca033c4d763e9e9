"""Regular expressions for constrained decoding: the part of the language that every engine reads alike, and
what compiling one costs.

An engine tries one compiler after the other until one takes an expression, and then may give it to another:
on vLLM 0.16 what only the second takes ends the engine. So what is taken here is a list, not what is refused.
"""

import re
import string
from dataclasses import dataclass

# Units of work, of about half a millisecond on one core: measured with xgrammar 0.1.29 (vLLM 0.16.0) and the
# vocabulary of Qwen2.5. A step that takes any character is compared with all of the vocabulary.
LITERAL = 1
NARROW_CLASS = 4
CLASS = 16
ANY = 32
_NARROW = 32  # characters
_MIDDLE = 70  # letters, digits and a few more

MAX_NESTING = 32
CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_COUNT = re.compile(r"\{(\d{1,9})(?:(,)(\d{1,9})?)?\}")
# A shorthand and how many characters it stands for, roughly.
_SHORTHANDS = {"d": 10, "s": 6, "w": 63, "D": 1000, "S": 1000, "W": 1000}
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t"}
# `\<` and `\>` are the starts and ends of words to one compiler.
_ESCAPABLE = frozenset(string.punctuation) - {"<", ">"}
_SPECIAL = frozenset("()[]{}*+?|.^$\\")


class UnreadableExpression(Exception):
    """It is outside the language that is taken; the text says where and why."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What compiling a part takes, in units of work. `varies`: it repeats a number of times that is open."""

    work: int
    varies: bool = False
    nests: bool = False


def cost_of(expression: str) -> Cost:
    """Raises UnreadableExpression. `nests`: a part that varies is within a repetition that varies."""
    return _Reader(expression).read()


class _Reader:
    """One pass from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._nests = False
        self._open = 0  # parts so far of an open length: each lets what follows begin in more places

    def read(self) -> Cost:
        if self._peek() == "^":
            self._at += 1
        cost = self._alternatives(0)
        if self._at < len(self._text):
            raise self._unreadable("`)` without `(`")
        return Cost(cost.work, cost.varies, self._nests)

    def _alternatives(self, depth: int) -> Cost:
        if depth > MAX_NESTING:
            raise self._unreadable("groups too deep")
        work, varies = 0, False
        while True:
            branch = self._branch(depth)
            work += branch.work
            varies = varies or branch.varies
            if self._peek() != "|":
                return Cost(work, varies)
            self._at += 1

    def _branch(self, depth: int) -> Cost:
        work, varies, parts = 0, False, 0
        while self._peek() not in ("|", ")", ""):
            if self._text[self._at :] == "$" and parts and depth == 0:
                self._at += 1
                break
            part = self._repeated(self._part(depth))
            work += part.work
            varies = varies or part.varies
            parts += 1
        if not parts:
            raise self._unreadable("an alternative that is empty")
        return Cost(work, varies)

    def _part(self, depth: int) -> Cost:
        char = self._text[self._at]
        if char == "(":
            return self._group(depth)
        if char == "[":
            return self._class()
        self._at += 1
        if char == ".":
            return self._step(ANY)
        if char == "\\":
            width, _ = self._escaped()
            return self._step(_weight(width))
        if char in _SPECIAL or CONTROL.match(char):
            raise self._unreadable("a character that must be escaped, or is not taken", back=1)
        return self._step(LITERAL)

    def _step(self, work: int) -> Cost:
        return Cost(work * (1 + self._open))

    def _group(self, depth: int) -> Cost:
        self._at += 1
        if self._text.startswith("?:", self._at):
            self._at += 2
        inner = self._alternatives(depth + 1)
        if self._peek() != ")":
            raise self._unreadable("`(` without `)`")
        self._at += 1
        return inner

    def _repeated(self, part: Cost) -> Cost:
        char = self._peek()
        counted = _COUNT.match(self._text, self._at) if char == "{" else None
        if counted:
            low = int(counted[1])
            high = int(counted[3]) if counted[3] else (low + 1 if counted[2] else low)
            if not low <= high or high < 1:
                raise self._unreadable("a repetition that can not be")
            self._at = counted.end()
            varies, is_open, times = high != low, high != low, high
        elif char and char in "*+?":
            self._at += 1
            varies, is_open, times = char != "?", True, 1
        else:
            return part
        if self._peek() == "?":  # as few as possible: the same language
            self._at += 1
        self._nests = self._nests or (varies and part.varies)
        self._open += is_open
        return Cost(part.work * times, varies or part.varies)

    def _class(self) -> Cost:
        self._at += 1
        negated = self._peek() == "^"
        self._at += negated
        width = 0
        while self._peek() != "]":
            width += self._member()
        if not width:
            raise self._unreadable("an empty class")
        self._at += 1
        return self._step(ANY if negated else _weight(width))

    def _member(self) -> int:
        """Characters that one member of a class stands for."""
        width, low = self._single()
        if self._peek() != "-" or self._text[self._at + 1 : self._at + 2] in ("]", ""):
            return width
        self._at += 1
        _, high = self._single()
        if not low or not high or low > high:
            raise self._unreadable("a range that can not be")
        return ord(high) - ord(low) + 1

    def _single(self) -> tuple[int, str]:
        """A character of a class, or a shorthand, which is none."""
        char = self._peek()
        self._at += 1
        if char == "\\":
            return self._escaped()
        if char in ("", "[", "]") or CONTROL.match(char):
            raise self._unreadable("a character in a class that must be escaped, or is not taken", back=1)
        # `--`, `&&` and `~~` are operators to one compiler.
        if char in "-&~" and self._peek() == char:
            raise self._unreadable("an operator in a class")
        return 1, char

    def _escaped(self) -> tuple[int, str]:
        """What stands after a backslash: how many characters it is, and which if it is one."""
        char = self._peek()
        self._at += 1
        if char in _SHORTHANDS:
            return _SHORTHANDS[char], ""
        if char in _CONTROLS:
            return 1, _CONTROLS[char]
        if char not in _ESCAPABLE:
            raise self._unreadable("an escape that is not taken", back=1)
        return 1, char

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _unreadable(self, what: str, back: int = 0) -> UnreadableExpression:
        return UnreadableExpression(f"{what}, at character {self._at - back + 1}")


def _weight(width: int) -> int:
    if width == 1:
        return LITERAL
    if width <= _NARROW:
        return NARROW_CLASS
    return CLASS if width <= _MIDDLE else ANY
