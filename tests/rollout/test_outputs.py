"""Completions and their packed form."""

from __future__ import annotations

import numpy as np

from megatron_rl.rollout.outputs import Completion, PackedCompletions

_COMPLETIONS = [
    Completion(token_ids=(5, 2), logprobs=(float(np.float32(-0.1)), -2.5), finish_reason="stop"),
    Completion(token_ids=(), logprobs=(), finish_reason="abort"),
    Completion(token_ids=(7, 7, 7), logprobs=(-0.5, -0.25, 0.0), finish_reason="length"),
]


def test_pack_matches_hand_computed() -> None:
    packed = PackedCompletions.pack(_COMPLETIONS)
    assert packed.token_ids_T.tolist() == [5, 2, 7, 7, 7]
    assert packed.logprobs_T.tolist() == [float(np.float32(-0.1)), -2.5, -0.5, -0.25, 0.0]
    assert packed.lengths_C.tolist() == [2, 0, 3]
    assert packed.finish_reasons == ("stop", "abort", "length")
    assert PackedCompletions.pack([]).token_ids_T.size == 0


def test_joined_parts_equal_what_was_packed_in_that_order() -> None:
    parts = [PackedCompletions.pack(_COMPLETIONS[1:]), PackedCompletions.pack([]), PackedCompletions.pack(_COMPLETIONS[:1])]
    joined, packed = PackedCompletions.joined(parts, [2, 0, 1]), PackedCompletions.pack(_COMPLETIONS)
    for name in ("token_ids_T", "logprobs_T", "lengths_C", "reasons_C"):
        np.testing.assert_array_equal(getattr(joined, name), getattr(packed, name))


def test_digest_depends_on_tokens_lengths_and_reasons_only() -> None:
    base = PackedCompletions.pack(_COMPLETIONS).digest()
    nudged = Completion(token_ids=(5, 2), logprobs=(-0.1, -2.5000002), finish_reason="stop")
    assert PackedCompletions.pack([nudged, *_COMPLETIONS[1:]]).digest() == base
    for changed in (
        Completion(token_ids=(5, 3), logprobs=(-0.1, -2.5), finish_reason="stop"),
        Completion(token_ids=(5, 2), logprobs=(-0.1, -2.5), finish_reason="length"),
        Completion(token_ids=(5,), logprobs=(-0.1,), finish_reason="stop"),
    ):
        assert PackedCompletions.pack([changed, *_COMPLETIONS[1:]]).digest() != base


def test_digest_sees_where_one_response_ends_and_the_next_begins() -> None:
    def of(*groups: tuple[int, ...]) -> bytes:
        return PackedCompletions.pack(
            [Completion(token_ids=g, logprobs=(0.0,) * len(g), finish_reason="stop") for g in groups]
        ).digest()

    assert of((1, 2), (3,)) != of((1,), (2, 3))
