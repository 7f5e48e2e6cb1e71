"""Cutting and packing: equal counts on all ranks, budgets kept, every token exactly once, padding never seen."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from megatron_rl.data.packing import CutRule, Packer, cut_rows, pack_mini_batch, packing_metrics
from megatron_rl.types.masks import response_mask
from tests.support.tiny_models import ragged_batch

_LENGTHS = st.lists(st.integers(0, 60), max_size=24)
_RULES = st.builds(
    lambda data, limit, multiple, by_tokens: CutRule(
        data=data,
        hidden_size=32,
        max_tokens=limit * 10 if by_tokens else None,
        max_sequences=None if by_tokens else limit,
        count_multiple=multiple,
    ),
    st.integers(1, 5),
    st.integers(1, 8),
    st.integers(1, 4),
    st.booleans(),
)


@given(_LENGTHS, _RULES)
def test_cut_rows_gives_all_ranks_the_same_count_within_limits(lengths: list[int], rule: CutRule) -> None:
    cut = cut_rows(lengths, rule)
    counts = {len(parts) for parts in cut}
    assert len(cut) == rule.data
    assert len(counts) == 1
    count = counts.pop()
    assert count >= 1
    assert count % rule.count_multiple == 0
    rows = sorted(row for parts in cut for part in parts for row in part)
    assert rows == [row for row, length in enumerate(lengths) if length > 0]
    for part in (part for parts in cut for part in parts):
        tokens = sum(lengths[row] for row in part)
        assert len(part) <= 1 or tokens <= (rule.max_tokens or tokens)
        assert len(part) <= (rule.max_sequences or len(part))


def test_cut_rows_matches_reference() -> None:
    lengths = [100, 900, 300, 700, 500, 200, 800, 400]
    (cut,) = cut_rows(lengths, CutRule(data=1, hidden_size=4096, max_tokens=1500))
    assert cut == [(0, 6, 7), (1, 2), (3, 4, 5)]


@pytest.mark.parametrize("lengths", [[50] * 5 + [2] * 5, [50] * 5 + [2] * 2], ids=["5_long_5_short", "5_long_2_short"])
def test_cut_rows_pads_light_ranks_with_empty_micro_batches(lengths: list[int]) -> None:
    first, second = cut_rows(lengths, CutRule(data=2, hidden_size=32, max_sequences=1, count_multiple=2))
    assert len(first) == len(second)
    assert all(len(part) <= 1 for part in first + second)


def test_packing_metrics_match_hand_computed() -> None:
    # Rank 0 packs 7 + 3 tokens, rank 1 packs 5 and nothing; rounded up to 4 these are 8 + 4 and 8 + 4.
    cut, lengths = [[(0, 1), (2,)], [(3,), ()]], [4, 3, 3, 5]
    rounded = packing_metrics(cut, lengths, 4, equal=False)
    assert rounded["packing/padding_frac"].value == pytest.approx(1 - 15 / 24)
    assert rounded["balance/imbalance"].value == pytest.approx(10 / 7.5 - 1)
    equal = packing_metrics(cut, lengths, 4, equal=True)
    assert equal["packing/padding_frac"].value == pytest.approx(1 - 15 / 32)


@pytest.mark.parametrize("stages", [1, 4], ids=["plain", "interleaved"])
def test_packing_of_skewed_lengths_wastes_under_five_percent(stages: int) -> None:
    """256 samples, most of them short and a few near the limit, on 4 data-parallel ranks of TP 2."""
    spread = torch.randn(256, generator=torch.Generator().manual_seed(0)).exp()
    lengths = (64 + 200 * spread).clamp(max=1536).int().tolist()
    rule = CutRule(data=4, hidden_size=1536, max_tokens=4096, count_multiple=stages)
    metrics = packing_metrics(cut_rows(lengths, rule), lengths, 2, equal=stages > 1)
    assert metrics["packing/padding_frac"].value < 0.05
    assert metrics["balance/imbalance"].value < 0.05


def _packer(multiple: int = 1, fixed_length: int | None = None) -> Packer:
    tokens = torch.tensor([[5, 6, 7, 99], [8, 9, 99, 99], [4, 99, 99, 99]])
    prompts, responses = torch.tensor([1, 1, 1]), torch.tensor([2, 1, 0])
    return Packer(
        tokens_BS=tokens,
        mask_BS=response_mask(prompts, responses, 4),
        lengths=(3, 2, 1),
        multiple=multiple,
        device=torch.device("cpu"),
        fixed_length=fixed_length,
    )


def test_pack_tokens_matches_hand_computed() -> None:
    packed = _packer().pack_tokens((0, 1, 2))
    assert packed.tokens_T.tolist() == [5, 6, 7, 8, 9, 4]
    assert packed.predicting_N.tolist() == [0, 1, 3]
    assert packed.targets_N.tolist() == [6, 7, 9]
    assert packed.cu_seqlens.tolist() == [0, 3, 5, 6]
    assert packed.cu_seqlens.dtype == torch.int32
    assert packed.lengths == (3, 2, 1)
    assert packed.max_seqlen == 3


@pytest.mark.parametrize(
    ("rows", "multiple", "fixed_length", "lengths"),
    [
        ((0, 1), 4, None, (3, 2, 3)),
        ((0, 1), 1, 9, (3, 2, 4)),
        ((), 4, None, (4,)),
        ((), 1, None, (1,)),
        ((0, 2), 4, None, (3, 1)),
    ],
    ids=["rounded_up", "fixed_length", "empty_rounded_up", "empty", "already_round"],
)
def test_pack_tokens_pads_with_a_document_that_predicts_nothing(
    rows: tuple[int, ...], multiple: int, fixed_length: int | None, lengths: tuple[int, ...]
) -> None:
    packed = _packer(multiple, fixed_length).pack_tokens(rows)
    assert packed.lengths == lengths
    assert packed.tokens_T.numel() == sum(lengths) == int(packed.cu_seqlens[-1])
    assert bool((packed.predicting_N < sum(lengths[: len(rows)])).all())
    assert packed.rows == rows


def test_pack_tokens_never_predicts_the_first_token_of_a_document() -> None:
    packer = replace(_packer(), mask_BS=torch.ones(3, 4, dtype=torch.bool))
    assert packer.pack_tokens((0, 1, 2)).predicting_N.tolist() == [0, 1, 3]


def test_pack_loss_inputs_matches_hand_computed() -> None:
    batch = replace(ragged_batch(3, width=12), advantages_BS=torch.arange(12.0).reshape(3, 4))
    inputs = _packer().pack_loss_inputs(batch, (2, 1, 0))
    assert inputs.advantages_N.tolist() == [5.0, 1.0, 2.0]
    assert inputs.samples_N.tolist() == [1, 2, 2]
    assert inputs.num_samples == 3
    assert inputs[1:3].samples_N.tolist() == [2, 2]
    assert inputs[1:3].num_response_tokens == batch.num_response_tokens


def test_unpack_inverts_packing() -> None:
    packer = _packer(multiple=4)
    field = torch.arange(12, dtype=torch.float32).reshape(3, 4) + 1
    batch = replace(ragged_batch(3), advantages_BS=field)
    packs = [packer.pack_tokens(rows) for rows in ((2, 0), (1,), ())]
    restored = packer.unpack((pack, packer.pack_loss_inputs(batch, pack.rows).advantages_N) for pack in packs)
    assert torch.equal(restored, field.where(packer.mask_BS, 0.0))


def test_pack_mini_batch_rejects_padding_content() -> None:
    rubbish, clean = ragged_batch(garbage=True), ragged_batch(garbage=False)
    packs = []
    for batch in (rubbish, clean):
        packer = Packer(
            tokens_BS=batch.tokens_BS,
            mask_BS=batch.response_mask_BS,
            lengths=tuple(batch.lengths_B.tolist()),
            multiple=2,
            device=torch.device("cpu"),
        )
        packs.append(pack_mini_batch(batch, packer, [(0, 1, 2), (3, 4, 5, 6, 7)]))
    for a, b in zip(*packs, strict=True):
        assert torch.equal(a.packed.tokens_T, b.packed.tokens_T)
        assert torch.equal(a.packed.targets_N, b.packed.targets_N)
        for name in ("loss_weights_N", "old_logprobs_N", "ref_logprobs_N", "values_N", "advantages_N", "returns_N"):
            assert torch.equal(getattr(a.loss_inputs, name), getattr(b.loss_inputs, name)), name
    total = sum(float(micro.loss_inputs.loss_weights_N.sum()) for micro in packs[0])
    assert total == pytest.approx(1.0)
