"""In which order the places of a grid are laid over consecutive ranks: a mixed-radix number with named digits.

torch numbers the members of a process group by ascending rank, and everything downstream takes that number for the
coordinate. An order of digits keeps the two equal along every axis, since each axis counts upwards with the rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import prod

Factor = tuple[str, int]
"""An axis, and how far it counts here. An axis may be split: of two factors the later one counts in larger steps."""
RankOrder = tuple[Factor, ...]
"""Factors of a rank's number, fastest first. Example: ``(("data", 4), ("tensor", 2))`` puts rank 5 at data 1, tensor 1."""


def rank_digits(order: RankOrder, index: int) -> dict[str, int]:
    """Coordinate along each axis of ``order`` at a place of the numbering."""
    places: dict[str, int] = {}
    steps: dict[str, int] = {}
    for axis, size in order:
        index, digit = divmod(index, size)
        step = steps.get(axis, 1)
        places[axis] = places.get(axis, 0) + digit * step
        steps[axis] = step * size
    return places


def rank_index(order: RankOrder, places: Mapping[str, int]) -> int:
    """Place in the numbering of a set of coordinates; axes that are left out are at 0."""
    rest = dict(places)
    index, step = 0, 1
    for axis, size in order:
        rest[axis], digit = divmod(rest.get(axis, 0), size)
        index += digit * step
        step *= size
    return index


def axis_sizes(order: RankOrder) -> dict[str, int]:
    """Degree of each axis: the product of its factors."""
    return {axis: prod(size for name, size in order if name == axis) for axis, _ in order}


def joined(order: Iterable[Factor]) -> RankOrder:
    """The same order with neighbours of one axis as one factor and without factors of 1."""
    factors: list[Factor] = []
    for axis, size in order:
        if size == 1:
            continue
        if factors and factors[-1][0] == axis:
            factors[-1] = (axis, factors[-1][1] * size)
        else:
            factors.append((axis, size))
    return tuple(factors)


def node_orders(natural: RankOrder, ranks_per_node: int) -> list[RankOrder]:
    """Every order that leaves each place of the grid on its node, the natural one first.

    Nodes are blocks of ``ranks_per_node`` from the first rank. Where they do not hold whole blocks of the grid, only the
    natural order is left. Example: TP2 x DP4 on one node gives TP2 DP4, DP4 TP2 and DP2 TP2 DP2.
    """
    inner, outer = _split(natural, ranks_per_node)
    orders = {joined((*order, *outer)) for order in _arrangements([prime for factor in inner for prime in _primes(factor)])}
    first = joined(natural)
    return [first, *sorted(orders - {first}, key=lambda order: (len(order), order))]


def _split(order: RankOrder, ranks_per_node: int) -> tuple[RankOrder, RankOrder]:
    """Factors that count inside a node, and those that count nodes; an axis that does both is split."""
    if prod(size for _, size in order) <= ranks_per_node:
        return order, ()
    room = ranks_per_node
    for number, (axis, size) in enumerate(order):
        if size % room == 0:
            return (*order[:number], (axis, room)), ((axis, size // room), *order[number + 1 :])
        if room % size != 0:
            break
        room //= size
    return (), order


def _arrangements(factors: list[Factor]) -> Iterator[RankOrder]:
    """Every distinct sequence of the factors."""
    if not factors:
        yield ()
    for first in sorted(set(factors)):
        rest = list(factors)
        rest.remove(first)
        yield from ((first, *order) for order in _arrangements(rest))


def _primes(factor: Factor) -> Iterator[Factor]:
    axis, rest = factor
    divisor = 2
    while rest > 1:
        if rest % divisor == 0:
            rest //= divisor
            yield axis, divisor
        else:
            divisor += 1
