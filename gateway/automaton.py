"""How large the automaton of a regular expression is. Pure, and bounded in what it costs itself.

An engine turns an expression into a deterministic automaton before it answers. Of `.*a.{20}` that one has a
million states; no look at the text tells, so it is built here too, and given up as soon as it is too large.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from gateway import syntax

# Units of work, as in gateway.expressions, per state: of one that few characters leave, and of one that most
# do, for which nearly every token of the vocabulary has to be tried (measured: docs/parameters.md).
NARROW = 2
BROAD = 32
TOO_LARGE = 10**9
# So many of the 129 characters are most of them; ways on are dear a little earlier.
_BROAD, _BROAD_EDGE = 64, 48
# Ways on from one position that cost nothing extra; chains of optional parts have many more.
_FREE_EDGES = 4
_MAX_STEPS = 12_000  # about two milliseconds here


class _TooLarge(Exception):
    """Beyond what is built here, and so beyond any bound."""


def work(expression: str) -> int:
    """Units of work to compile it; TOO_LARGE for one that is beyond any bound. Raises syntax.Unreadable."""
    tree = syntax.read(expression)
    automaton = _Positions()
    try:
        whole = automaton.add(tree)
        return automaton.edges() + automaton.states(whole.first)
    except _TooLarge:
        return TOO_LARGE


@dataclass(frozen=True, slots=True)
class _Part:
    """Where a part of the expression can begin and end, as bits; whether it can be empty."""

    first: int
    last: int
    empty: bool


_NOTHING = _Part(0, 0, empty=True)


@dataclass(slots=True)
class _Positions:
    """Glushkov's automaton: a position for each character that is named, repetitions written out."""

    steps: int = _MAX_STEPS
    sets: list[int] = field(default_factory=list)
    follow: list[int] = field(default_factory=list)

    def _take(self, count: int) -> None:
        self.steps -= count
        if self.steps < 0:
            raise _TooLarge

    def add(self, tree: syntax.Tree) -> _Part:
        """Its positions. Raises _TooLarge."""
        self._take(1)
        if isinstance(tree, int):
            at = 1 << len(self.sets)
            self.sets.append(tree)
            self.follow.append(0)
            return _Part(at, at, empty=False)
        if isinstance(tree, syntax.Choice):
            return self._either([self.add(part) for part in tree.parts])
        if isinstance(tree, syntax.Sequence):
            whole = _NOTHING
            for part in tree.parts:
                whole = self._then(whole, self.add(part))
            return whole
        return self._repeat(tree)

    @staticmethod
    def _either(parts: Sequence[_Part]) -> _Part:
        first = last = 0
        for part in parts:
            first |= part.first
            last |= part.last
        return _Part(first, last, any(part.empty for part in parts))

    def _then(self, one: _Part, two: _Part) -> _Part:
        self._connect(one.last, two.first)
        return _Part(
            one.first | two.first if one.empty else one.first,
            two.last | one.last if two.empty else two.last,
            one.empty and two.empty,
        )

    def _repeat(self, tree: syntax.Repeat) -> _Part:
        whole = _NOTHING
        for _ in range(tree.least):
            whole = self._then(whole, self.add(tree.part))
        if tree.most is None:
            more = self.add(tree.part)
            self._connect(more.last, more.first)
            return self._then(whole, _Part(more.first, more.last, empty=True))
        optional = _NOTHING
        # From the last to the first, so that each can only be followed by the next: (a(a(a)?)?)?
        for _ in range(tree.most - tree.least):
            inner = self._then(self.add(tree.part), optional)
            optional = _Part(inner.first, inner.last, empty=True)
        return self._then(whole, optional)

    def _connect(self, last: int, first: int) -> None:
        self._take(last.bit_count())
        for at in _bits(last):
            self.follow[at] |= first

    def edges(self) -> int:
        """For ways on beyond a few from each position."""
        return sum(
            max(0, after.bit_count() - _FREE_EDGES) * _weight(chars, _BROAD_EDGE)
            for after, chars in zip(self.follow, self.sets, strict=True)
        )

    def states(self, start: int) -> int:
        """For all states of the deterministic automaton."""
        blocks = self._blocks()
        seen = {start}
        waiting = [start]
        total = 0
        while waiting:
            front = waiting.pop()
            chars = 0
            for members in blocks:
                matched = front & members
                if matched:
                    after = self._after(matched)
                    if after not in seen:
                        seen.add(after)
                        waiting.append(after)
            for at in _bits(front):
                chars |= self.sets[at]
            total += _weight(chars)
            self._take(len(blocks) + front.bit_count())
        return total

    def _after(self, matched: int) -> int:
        self._take(matched.bit_count())
        after = 0
        for at in _bits(matched):
            after |= self.follow[at]
        return after

    def _blocks(self) -> list[int]:
        """The positions that each kind of character matches; what no position tells apart is one kind."""
        parts = [syntax.ALL]
        for chars in set(self.sets):
            self._take(len(parts))
            parts = [piece for part in parts for piece in (part & chars, part & ~chars) if piece]
        return [sum(1 << at for at, chars in enumerate(self.sets) if chars & part) for part in parts]


def _weight(chars: int, broad: int = _BROAD) -> int:
    if not chars:
        return 0
    return BROAD if chars.bit_count() >= broad else NARROW


def _bits(number: int) -> list[int]:
    found = []
    while number:
        low = number & -number
        found.append(low.bit_length() - 1)
        number ^= low
    return found
