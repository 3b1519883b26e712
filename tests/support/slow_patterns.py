"""Whether a regular expression of `re` may take more than linear time, told from its parse tree.

The pattern becomes an automaton, and the automaton is searched for a loop p and a later loop q that the same text keeps
in p, takes from p to q, and keeps in q. Then each place where the text may change from p to q is tried, and each time
the rest is read again: n² steps for n bytes. (Weber and Seidl, 1991: the criterion for polynomial ambiguity.)

Possessive quantifiers end where their characters end; of groups, where what the group may begin with ends. A repeat of
at most 64 is no loop.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from re import _constants as constants  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

SAMPLES = [*map(chr, range(256)), "Ā", "漢", "\u2003", "٣"]  # the characters; the last ones stand for all others
ALL = (1 << len(SAMPLES)) - 1
FEW = 64


class Automaton:
    """The automaton of a pattern. method: of `re`, which says where a match may begin and must end."""

    def __init__(self, pattern: re.Pattern[Any], method: str) -> None:
        self.ignore_case = bool(pattern.flags & re.IGNORECASE)
        self.ascii = bool(pattern.flags & re.ASCII) or isinstance(pattern.pattern, bytes)
        self.dotall = bool(pattern.flags & re.DOTALL)
        self.empty: list[list[tuple[int, int]]] = []  # state -> states, each with the characters that must not follow
        self.chars: list[list[tuple[int, int]]] = []  # state -> (characters, state)
        self.start = self.state()
        self.whole = method == "fullmatch"
        self.end = self.sequence(parser.parse(pattern.pattern, pattern.flags & ~re.UNICODE), self.start)
        # a search begins anew at each character, unless nothing is a match, too
        if method not in ("match", "fullmatch") and all(at != self.end for at, _ in self.closure(self.start)):
            self.chars[self.start].append((ALL, self.start))

    def state(self) -> int:
        self.empty.append([])
        self.chars.append([])
        return len(self.empty) - 1

    def sequence(self, items: Iterable[Any], at: int) -> int:
        """Add what matches these items after a state; the state after them."""
        for kind, value in items:
            at = self.item(kind, value, at)
        return at

    def item(self, kind: Any, value: Any, at: int) -> int:
        if kind in (constants.LITERAL, constants.NOT_LITERAL, constants.IN, constants.ANY):
            after = self.state()
            self.chars[at].append((self.characters(kind, value), after))
            return after
        if kind is constants.SUBPATTERN:
            return self.sequence(value[-1], at)
        if kind is constants.ATOMIC_GROUP:
            return self.sequence(value, at)
        if kind is constants.BRANCH:
            after = self.state()
            for branch in value[1]:
                self.empty[self.sequence(branch, at)].append((after, 0))
            return after
        if kind in (constants.MAX_REPEAT, constants.MIN_REPEAT, constants.POSSESSIVE_REPEAT):
            least, most, items = value
            return self.repeat(least, most, items, kind is constants.POSSESSIVE_REPEAT, at)
        if kind is constants.ASSERT_NOT and value[0] == 1 and len(value[1]) == 1:
            after = self.state()
            self.empty[at].append((after, self.first(value[1])))
            return after
        assert kind in (constants.AT, constants.ASSERT, constants.ASSERT_NOT), kind
        return at

    def repeat(self, least: int, most: Any, items: Any, possessive: bool, at: int) -> int:
        for _ in range(min(least, 2)):
            at = self.sequence(items, at)
        after = self.state()
        forbidden = self.first(items) if possessive else 0
        if most is constants.MAXREPEAT or most > FEW:
            loop = self.state()
            self.empty[at].append((loop, 0))
            self.empty[self.sequence(items, loop)].append((loop, 0))
            self.empty[loop].append((after, forbidden))
            return after
        for _ in range(min(most - least, 2)):
            self.empty[at].append((after, forbidden))
            at = self.sequence(items, at)
        self.empty[at].append((after, 0))
        return after

    def first(self, items: Any) -> int:
        """The characters that a match of these items may begin with."""
        state = self.state()
        self.sequence(items, state)
        mask = 0
        for characters, _ in self.steps(state):
            mask |= characters
        return mask

    def characters(self, kind: Any, value: Any) -> int:
        """The set of characters of an item, as bits of SAMPLES."""
        if kind is constants.ANY:
            return ALL if self.dotall else ALL & ~(1 << SAMPLES.index("\n"))
        if kind is constants.LITERAL:
            return self.where(lambda code: code == value)
        if kind is constants.NOT_LITERAL:
            return ALL & ~self.where(lambda code: code == value)
        mask, negated = 0, False
        for inner, what in value:
            if inner is constants.NEGATE:
                negated = True
            elif inner is constants.RANGE:
                mask |= self.where(lambda code, what=what: what[0] <= code <= what[1])
            elif inner is constants.CATEGORY:
                name = str(what).rpartition("_")[2].lower()
                test = re.compile({"digit": r"\d", "space": r"\s", "word": r"\w"}[name], re.ASCII if self.ascii else 0)
                found = sum(1 << n for n, text in enumerate(SAMPLES) if test.fullmatch(text))
                mask |= ALL & ~found if "_NOT_" in str(what) else found
            else:
                mask |= self.characters(inner, what)
        return ALL & ~mask if negated else mask

    def where(self, test: Any) -> int:
        mask = 0
        for n, text in enumerate(SAMPLES):
            cases = {text, text.lower(), text.upper()} if self.ignore_case else {text}
            mask |= (1 << n) * any(len(case) == 1 and test(ord(case)) for case in cases)
        return mask

    def closure(self, state: int) -> Iterator[tuple[int, int]]:
        """The states that are reached without a character, each with the characters that must not follow."""
        seen, waiting = set(), [(state, 0)]
        while waiting:
            if (at := waiting.pop()) not in seen:
                seen.add(at)
                yield at
                waiting += [(after, at[1] | forbidden) for after, forbidden in self.empty[at[0]]]

    def steps(self, state: int) -> list[tuple[int, int]]:
        """(characters, state after one of them)"""
        return [
            (characters & ~forbidden, after)
            for at, forbidden in self.closure(state)
            for characters, after in self.chars[at]
            if characters & ~forbidden
        ]

    def ambiguous(self) -> bool:
        """Whether a text of n characters may take n² steps, or more."""
        steps: dict[int, list[tuple[int, int]]] = {}
        waiting = [self.start]
        while waiting:
            if (state := waiting.pop()) not in steps:
                steps[state] = self.steps(state)
                waiting += [after for _, after in steps[state]]
        reach = {state: reachable(steps, state) for state in steps}
        loops = [state for state in steps if state in reach[state]]
        ends = {state for state in loops if not self.whole and any(at == self.end for at, _ in self.closure(state))}
        for p in loops:
            for q in loops:
                # what has reached the end cannot fail
                if q in reach[p] and q not in ends and (p != q or p in reach[q]):
                    if p == q:
                        if self.two_ways(steps, reach, p):
                            return True
                    elif together(steps, reach, p, q):
                        return True
        return False

    @staticmethod
    def two_ways(steps: Any, reach: Any, p: int) -> bool:
        """Whether the same text leads from a state back to it on two ways: 2ⁿ steps."""
        seen, waiting = set(), [(p, p, False)]
        while waiting:
            x, y, apart = waiting.pop()
            for one, after in steps[x]:
                for other, beside in steps[y]:
                    if one & other and p in reach[after] and p in reach[beside]:
                        state = after, beside, apart or after != beside
                        if state == (p, p, True):
                            return True
                        if state not in seen:
                            seen.add(state)
                            waiting.append(state)
        return False


def reachable(steps: dict[int, list[tuple[int, int]]], state: int) -> set[int]:
    """The states that follow after at least one character."""
    seen: set[int] = set()
    waiting = [after for _, after in steps[state]]
    while waiting:
        if (at := waiting.pop()) not in seen:
            seen.add(at)
            waiting += [after for _, after in steps[at]]
    return seen


def together(steps: Any, reach: Any, p: int, q: int) -> bool:
    """Whether the same text leads from p to p, from p to q, and from q to q."""
    seen, waiting = set(), [(p, p, q)]
    while waiting:
        x, y, z = waiting.pop()
        for one, a in steps[x]:
            if p not in reach[a] and a != p:
                continue
            for two, b in steps[y]:
                if not (one & two and (q in reach[b] or b == q)):
                    continue
                for three, c in steps[z]:
                    if one & two & three and (q in reach[c] or c == q):
                        if (a, b, c) == (p, q, q):
                            return True
                        if (a, b, c) not in seen:
                            seen.add((a, b, c))
                            waiting.append((a, b, c))
    return False


def slow(pattern: re.Pattern[Any], method: str) -> bool:
    """Whether a search with this method of `re` may take more than linear time."""
    return Automaton(pattern, method).ambiguous()
