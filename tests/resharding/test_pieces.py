"""Boxes and strided pieces on hand-sized cases."""

from __future__ import annotations

from megatron_rl.resharding.boxes import intersect, subtract, volume
from megatron_rl.resharding.pieces import Piece, make_piece, merge_adjacent, split_head
from megatron_rl.resharding.rounds import cut_messages
from megatron_rl.resharding.spec import Fragment


def test_intersect_matches_hand_computed() -> None:
    assert intersect(((0, 0), (4, 6)), ((2, 3), (9, 5))) == ((2, 3), (4, 5))
    assert intersect(((0,), (4,)), ((4,), (8,))) is None


def test_subtract_matches_hand_computed() -> None:
    rest = subtract(((0, 0), (4, 6)), ((1, 2), (3, 6)))
    assert rest == [((0, 0), (1, 6)), ((3, 0), (4, 6)), ((1, 0), (3, 2))]
    assert sum(map(volume, rest)) == 24 - 8


def test_make_piece_matches_hand_computed() -> None:
    """Columns 8..11 of rows 2..3: an 8-column source shard from column 8, a whole 16-column destination."""
    source = Fragment("w", (0, 8), (4, 16), "a", 100, (8, 1))
    destination = Fragment("w", (2, 0), (4, 12), "b", 0, (16, 1))
    assert make_piece(((2, 8), (4, 12)), source, destination) == Piece((2, 4), "a", 116, (8, 1), "b", 8, (16, 1))


def test_make_piece_reduces_to_one_run() -> None:
    whole = Fragment("w", (0, 0), (4, 8), "a", 0, (8, 1))
    part = Fragment("w", (2, 0), (4, 8), "b", 0, (8, 1))
    assert make_piece(((2, 0), (4, 8)), whole, part) == Piece((16,), "a", 16, (1,), "b", 0, (1,))


def test_merge_adjacent_matches_hand_computed() -> None:
    query, key = Piece((8,), "qkv", 0, (1,), "qkv_proj", 0, (1,)), Piece((4,), "qkv", 8, (1,), "qkv_proj", 8, (1,))
    apart = Piece((4,), "qkv", 12, (1,), "qkv_proj", 16, (1,))
    assert merge_adjacent([apart, key, query]) == (Piece((12,), "qkv", 0, (1,), "qkv_proj", 0, (1,)), apart)


def test_merge_adjacent_joins_columns() -> None:
    left, right = Piece((3, 2), "a", 0, (6, 1), "b", 0, (4, 1)), Piece((3, 2), "a", 2, (6, 1), "b", 2, (4, 1))
    assert merge_adjacent([left, right]) == (Piece((3, 4), "a", 0, (6, 1), "b", 0, (4, 1)),)


def test_split_head_matches_hand_computed() -> None:
    piece = Piece((3, 4), "a", 0, (8, 1), "b", 0, (4, 1))
    by_rows = [Piece((2, 4), "a", 0, (8, 1), "b", 0, (4, 1)), Piece((4,), "a", 16, (1,), "b", 8, (1,))]
    assert split_head(piece, 9) == by_rows
    assert [block.num_elements for block in split_head(piece, 3)] == [3, 1, 8]


def test_cut_messages_fills_to_the_limit() -> None:
    matrix, vector = Piece((3, 4), "a", 0, (8, 1), "b", 0, (4, 1)), Piece((6,), "c", 0, (1,), "d", 0, (1,))
    assert [message.num_elements for message in cut_messages([matrix, vector], 9)] == [9, 9]
    assert [message.num_elements for message in cut_messages([matrix], 3)] == [3, 1, 3, 3, 2]
    assert cut_messages([], 9) == ()
