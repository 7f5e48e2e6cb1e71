"""Completions and their packed form."""

from __future__ import annotations

import numpy as np

from megatron_rl.rollout.outputs import Completion, PackedCompletions

_COMPLETIONS = [
    Completion(token_ids=(5, 2), logprobs=(float(np.float32(-0.1)), -2.5), finish_reason="stop"),
    Completion(token_ids=(), logprobs=(), finish_reason="abort"),
    Completion(token_ids=(7, 7, 7), logprobs=(-0.5, -0.25, 0.0), finish_reason="length"),
]


def test_pack_roundtrips() -> None:
    assert PackedCompletions.pack(_COMPLETIONS).unpack() == _COMPLETIONS
    assert PackedCompletions.pack([]).unpack() == []


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
