"""Reads a regular expression into a tree of sets of characters: over ASCII, and one sign for all others."""

from collections.abc import Sequence as Several
from dataclasses import dataclass

_MAX_DEPTH = 32
_OTHER = 1 << 128
ALL = (1 << 129) - 1


def _span(first: int, last: int) -> int:
    return (1 << (last + 1)) - (1 << first)


_DIGIT = _span(0x30, 0x39)
_WORD = _DIGIT | _span(0x41, 0x5A) | _span(0x61, 0x7A) | 1 << 0x5F
_SPACE = _span(9, 13) | 1 << 0x20
_SETS = {"d": _DIGIT, "D": ALL ^ _DIGIT, "w": _WORD, "W": ALL ^ _WORD, "s": _SPACE, "S": ALL ^ _SPACE}
_ESCAPES = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13, "0": 0}
_HEX_DIGITS = {"x": 2, "u": 4}


class Unreadable(Exception):
    """Not an expression that can be read here: the text says why."""


# A tree: a set of characters, or one of these.
@dataclass(frozen=True, slots=True)
class Sequence:
    parts: Several["Tree"]


@dataclass(frozen=True, slots=True)
class Choice:
    parts: Several["Tree"]


@dataclass(frozen=True, slots=True)
class Repeat:
    part: "Tree"
    least: int
    most: int | None


Tree = int | Sequence | Choice | Repeat


def read(expression: str) -> Tree:
    """Its tree. Raises Unreadable."""
    return _Parser(expression).read()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def read(self) -> Tree:
        tree = self._choice(0)
        if self._at < len(self._text):
            raise Unreadable("a parenthesis is closed that was never opened")
        return tree

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _next(self) -> str:
        char = self._peek()
        if not char:
            raise Unreadable("it ends too early")
        self._at += 1
        return char

    def _choice(self, depth: int) -> Tree:
        parts = [self._sequence(depth)]
        while self._peek() == "|":
            self._at += 1
            parts.append(self._sequence(depth))
        return parts[0] if len(parts) == 1 else Choice(parts)

    def _sequence(self, depth: int) -> Tree:
        parts: list[Tree] = []
        while (char := self._peek()) and char not in "|)":
            parts.append(self._repeated(self._atom(depth)))
        return Sequence(parts)

    def _atom(self, depth: int) -> Tree:
        char = self._next()
        if char == "(":
            return self._group(depth + 1)
        if char == "[":
            return self._class()
        if char == "\\":
            return self._escape()
        if char == ".":
            return ALL ^ (1 << 10)
        if char in "^$":
            return Sequence(())
        if char in "*+?{":
            raise Unreadable("a repetition repeats nothing")
        return _bit(ord(char))

    def _group(self, depth: int) -> Tree:
        if depth > _MAX_DEPTH:
            raise Unreadable("its groups are nested too deeply")
        if self._peek() == "?":
            self._group_kind()
        tree = self._choice(depth)
        if self._next() != ")":
            raise Unreadable("a group is not closed")
        return tree

    def _group_kind(self) -> None:
        self._at += 1
        if self._peek() == "P":
            self._at += 1
        if self._peek() == ":":
            self._at += 1
        elif self._peek() == "<" and self._text[self._at + 1 : self._at + 2] not in ("=", "!"):
            while self._next() != ">":
                pass
        else:
            raise Unreadable("look-ahead, look-behind and flags are not taken")

    def _repeated(self, part: Tree) -> Tree:
        while (char := self._peek()) and char in "*+?{":
            part = Repeat(part, *self._bounds(char))
            if self._peek() and self._peek() in "?+":  # lazy or possessive: the same automaton
                self._at += 1
        return part

    def _bounds(self, char: str) -> tuple[int, int | None]:
        if char != "{":
            self._at += 1
            return {"*": (0, None), "+": (1, None), "?": (0, 1)}[char]
        end = self._text.find("}", self._at)
        low, comma, high = self._text[self._at + 1 : max(end, 0)].partition(",")
        if end < 0 or not all(part == "" or _is_number(part) for part in (low, high)) or low + high == "":
            raise Unreadable("a `{` begins no repetition; write \\{ for the sign")
        self._at = end + 1
        least = int(low or 0)
        most = (int(high) if high else None) if comma else least
        if most is not None and most < least:
            raise Unreadable("a repetition's bounds are the wrong way round")
        return least, most

    def _escape(self) -> Tree:
        char = self._next()
        if char in _SETS:
            return _SETS[char]
        if char in "bB":
            return Sequence(())
        if char in "pP":
            if self._next() == "{":
                while self._next() != "}":
                    pass
            return ALL
        if char in "123456789k":
            raise Unreadable("back-references are not taken")
        return _bit(self._code(char))

    def _code(self, char: str) -> int:
        if char in _ESCAPES:
            return _ESCAPES[char]
        if char not in _HEX_DIGITS:
            return ord(char)
        digits = self._text[self._at : self._at + _HEX_DIGITS[char]]
        try:
            code = int(digits, 16)
        except ValueError:
            raise Unreadable("an escape is not whole") from None
        self._at += len(digits)
        return code

    def _class(self) -> int:
        negated = self._peek() == "^"
        self._at += negated
        found = 0
        first = True
        while (char := self._next()) != "]" or first:
            first = False
            one = self._member(char)
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in ("]", ""):
                self._at += 1
                found |= self._range(one, self._member(self._next()))
            else:
                found |= one
        return ALL ^ found if negated else found

    def _member(self, char: str) -> int:
        if char != "\\":
            return _bit(ord(char))
        escaped = self._next()
        if escaped in _SETS:
            return _SETS[escaped]
        return ALL if escaped in "pP" else _bit(8 if escaped == "b" else self._code(escaped))

    @staticmethod
    def _range(low: int, high: int) -> int:
        """From one character to another; a set at an end stands for itself."""
        if low.bit_count() > 1 or high.bit_count() > 1:
            return low | high | 1 << 0x2D
        if high < low:
            raise Unreadable("a range's ends are the wrong way round")
        return (high << 1) - low


def _bit(code: int) -> int:
    return 1 << code if code < 128 else _OTHER


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 6
