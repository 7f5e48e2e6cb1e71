"""From a padded global batch to packed micro-batches, and back.

Cutting is a pure function of the sequence lengths: every rank knows every rank's micro-batches without a collective,
and all ranks run the same number of them.

Shape suffixes: B samples, S padded tokens, T packed tokens, N predicted tokens, D documents.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from megatron_rl.data.balance import balanced_partition
from megatron_rl.types.batches import LossInputs, MicroBatch, MiniBatch, PackedTokens
from megatron_rl.types.metrics import Metric, Metrics

Rows = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CutRule:
    """How a role cuts its share of a batch into micro-batches. Exactly one of the two limits is set.

    Example: ``CutRule(data=2, max_tokens=4096, hidden_size=1024)``.
    """

    data: int
    """Data-parallel ranks the samples are dealt to."""
    hidden_size: int
    """Of the model: weighs attention against the rest when work is balanced."""
    max_tokens: int | None = None
    """Tokens in one micro-batch (a longer single sequence still makes one)."""
    max_sequences: int | None = None
    """Sequences in one micro-batch."""
    count_multiple: int = 1
    """The number of micro-batches is a multiple of this (interleaved pipelines need their stage count)."""

    def __post_init__(self) -> None:
        assert (self.max_tokens is None) != (self.max_sequences is None)


def _work(length: int, hidden_size: int) -> int:
    """Relative cost of a sequence: linear layers take 24 H^2 FLOPs a token and attention 4 H a token pair."""
    return 6 * hidden_size * length + length * length


def _split(rows: Rows, lengths: Sequence[int], num_parts: int, hidden_size: int) -> list[Rows]:
    """Balanced parts of some rows, each ascending, by their first row; empty parts last."""
    parts = balanced_partition([_work(lengths[row], hidden_size) for row in rows], num_parts)
    return sorted((tuple(rows[i] for i in part) for part in parts), key=lambda part: (not part, part))


def _fits(part: Rows, lengths: Sequence[int], rule: CutRule) -> bool:
    if rule.max_tokens is not None:
        return len(part) <= 1 or sum(lengths[row] for row in part) <= rule.max_tokens
    assert rule.max_sequences is not None
    return len(part) <= rule.max_sequences


def _fewest(share: Rows, lengths: Sequence[int], rule: CutRule) -> int:
    """Lower bound on the micro-batches of one data-parallel share."""
    if rule.max_tokens is not None:
        return -(-sum(lengths[row] for row in share) // rule.max_tokens)
    assert rule.max_sequences is not None
    return -(-len(share) // rule.max_sequences)


def _parts_of(share: Rows, lengths: Sequence[int], num_parts: int, rule: CutRule) -> list[Rows]:
    if rule.max_tokens is not None:
        return _split(share, lengths, num_parts, rule.hidden_size)
    size = rule.max_sequences
    assert size is not None
    pieces = [share[i : i + size] for i in range(0, len(share), size)]
    return pieces + [()] * (num_parts - len(pieces))


def cut_rows(lengths: Sequence[int], rule: CutRule) -> list[list[Rows]]:
    """Deal samples to data-parallel ranks and cut each share into micro-batches.

    Samples without a token are left out. Where a share is too small for the common count, it gets empty micro-batches.

    Args:
        lengths: tokens of each sample of the global batch.
        rule: limits and counts.

    Returns rows by ``[data rank][micro-batch]``; all ranks have the same number of micro-batches, at least one.
    """
    rows = tuple(row for row, length in enumerate(lengths) if length > 0)
    if rule.max_sequences is not None and len(rows) % rule.data == 0:
        works = [_work(lengths[row], rule.hidden_size) for row in rows]
        dealt = balanced_partition(works, rule.data, equal_counts=True)
        shares = [tuple(rows[i] for i in part) for part in dealt]
    else:
        shares = _split(rows, lengths, rule.data, rule.hidden_size)
    count = max(1, *(_fewest(share, lengths, rule) for share in shares))
    while True:
        count = -(-count // rule.count_multiple) * rule.count_multiple
        cut = [_parts_of(share, lengths, count, rule) for share in shares]
        if all(_fits(part, lengths, rule) for parts in cut for part in parts):
            return cut
        count += 1


def packed_length(lengths: Iterable[int], multiple: int) -> int:
    """T of a pack of documents: their sum rounded up to ``multiple``, never 0."""
    return max(1, -(-sum(lengths) // multiple)) * multiple


def pack_lengths(parts: Sequence[Rows], lengths: Sequence[int], multiple: int, *, equal: bool) -> list[int]:
    """T of each pack of one data-parallel rank, padding included.

    Args:
        parts: rows of each pack.
        lengths: tokens of each row.
        multiple: every T is rounded up to it.
        equal: all get the longest T.
    """
    own = [packed_length((lengths[row] for row in rows), multiple) for rows in parts]
    return [max(own)] * len(own) if equal else own


def packing_metrics(cut: Sequence[Sequence[Rows]], lengths: Sequence[int], multiple: int, *, equal: bool) -> Metrics:
    """How much of the packs is padding, and how unevenly the tokens lie on the data-parallel ranks.

    Args:
        cut: rows by ``[data rank][micro-batch]``.
        lengths: tokens of each row.
        multiple: see ``pack_lengths``.
        equal: see ``pack_lengths``.
    """
    tokens = [sum(lengths[row] for rows in parts for row in rows) for parts in cut]
    packed = sum(sum(pack_lengths(parts, lengths, multiple, equal=equal)) for parts in cut)
    mean = sum(tokens) / len(tokens)
    return {
        "packing/padding_frac": Metric(1 - sum(tokens) / packed, weight=float(packed)),
        "balance/imbalance": Metric(max(tokens) / mean - 1 if mean else 0.0, "max"),
    }


def _flat_index(lengths: Sequence[int], rows: Rows, width: int) -> NDArray[np.int64]:
    """Positions of the rows' tokens in a flattened ``[B, width]`` array."""
    lengths_D = np.array(lengths, dtype=np.int64)
    starts_D = lengths_D.cumsum() - lengths_D
    shifts_D = np.array(rows, dtype=np.int64) * width - starts_D
    flat: NDArray[np.int64] = np.arange(lengths_D.sum()) + shifts_D.repeat(lengths_D)
    return flat


def _picked(x_BS: Tensor, flat: NDArray[np.int64]) -> NDArray[Any]:
    return x_BS.cpu().numpy().reshape(-1)[flat]


def _on_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """Copy without waiting for what the device has still to do."""
    host = torch.from_numpy(array)
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host


@dataclass(frozen=True, slots=True)
class _Predicted:
    """The N counted tokens of a pack."""

    predicting_N: NDArray[np.int64]
    """Position in the pack of the token before."""
    flat_N: NDArray[np.int64]
    """Position in the flattened padded batch."""
    document_N: NDArray[np.int64]
    """Document of the pack."""


@dataclass(frozen=True, slots=True)
class Packer:
    """Lays chosen rows of one padded batch, which is on the host, end to end.

    NumPy does the index work: torch would start all its threads for each of many tiny gathers.

    ``multiple``: T is rounded up to it by a padding document (sequence parallelism needs multiples of TP).
    """

    tokens_BS: Tensor
    mask_BS: Tensor
    """bool, tokens to be predicted, in token coordinates."""
    lengths: tuple[int, ...]
    """Tokens of each of the B rows, on the host."""
    multiple: int
    device: torch.device
    fixed_length: int | None = None
    """T of every pack (at least what its rows need); None = as long as the rows."""

    def _index(self, rows: Rows) -> NDArray[np.int64]:
        return _flat_index([self.lengths[row] for row in rows], rows, self.tokens_BS.shape[1])

    def _predicted(self, rows: Rows) -> _Predicted:
        lengths_D = np.array([self.lengths[row] for row in rows], dtype=np.int64)
        flat_T = self._index(rows)
        counted_T = _picked(self.mask_BS, flat_T)
        # Nothing precedes the first token of a document.
        counted_T[lengths_D.cumsum() - lengths_D] = False
        (positions_N,) = counted_T.nonzero()
        document_T = np.arange(len(rows)).repeat(lengths_D)
        return _Predicted(positions_N - 1, flat_T[positions_N], document_T[positions_N])

    def pack_tokens(self, rows: Rows) -> PackedTokens:
        """Pack ``rows``; no rows make one padding document, so that a rank without work still joins the others."""
        lengths = tuple(self.lengths[row] for row in rows)
        num_padding = (self.fixed_length or packed_length(lengths, self.multiple)) - sum(lengths)
        assert num_padding >= 0
        lengths = (*lengths, num_padding) if num_padding else lengths
        predicted = self._predicted(rows)
        tokens_T = np.pad(_picked(self.tokens_BS, self._index(rows)), (0, num_padding))
        pairs_2N = np.stack([predicted.predicting_N, _picked(self.tokens_BS, predicted.flat_N)])
        predicting_N, targets_N = _on_device(pairs_2N, self.device).unbind()
        return PackedTokens(
            tokens_T=_on_device(tokens_T, self.device),
            predicting_N=predicting_N,
            targets_N=targets_N,
            cu_seqlens=_on_device(np.array([0, *lengths]).cumsum().astype(np.int32), self.device),
            lengths=lengths,
            rows=rows,
        )

    def pack_loss_inputs(self, batch: MiniBatch, rows: Rows) -> LossInputs:
        """What the loss needs of the tokens that a pack of ``rows`` predicts."""
        predicted = self._predicted(rows)
        fields: dict[str, Any] = {f"{name}_N": getattr(batch, f"{name}_BS") for name in _LOSS_FIELDS}
        present = {name: _picked(x_BS, predicted.flat_N) for name, x_BS in fields.items() if x_BS is not None}
        packed_FN = _on_device(np.stack(list(present.values())), self.device)
        fields = dict.fromkeys(fields) | dict(zip(present, packed_FN.unbind(), strict=True))
        return LossInputs(
            **fields,
            samples_N=_on_device(predicted.document_N, self.device),
            num_samples=len(rows),
            num_response_tokens=batch.num_response_tokens,
        )

    def unpack(self, parts: Iterable[tuple[PackedTokens, Tensor]]) -> Tensor:
        """Put ``[N]`` values of several packs back: f32 ``[B, S]`` in token coordinates, 0 where nothing was predicted."""
        flat = torch.zeros(self.tokens_BS.numel(), dtype=torch.float32, device=self.device)
        for packed, values_N in parts:
            flat[_on_device(self._predicted(packed.rows).flat_N, self.device)] = values_N.float()
        return flat.view(self.tokens_BS.shape)


_LOSS_FIELDS = (
    "loss_weights",
    "old_logprobs",
    "ref_logprobs",
    "values",
    "advantages",
    "returns",
    "importance_weights",
)
"""F32 numbers of each token that a mini-batch has and a loss may read."""


def pack_mini_batch(batch: MiniBatch, packer: Packer, cut: Sequence[Rows]) -> list[MicroBatch]:
    """Pack one data-parallel share of a mini-batch.

    Args:
        batch: the global mini-batch.
        packer: over the batch's tokens, predicting its counted response tokens.
        cut: rows of each micro-batch of this rank, see ``cut_rows``.
    """
    return [MicroBatch(packed=packer.pack_tokens(rows), loss_inputs=packer.pack_loss_inputs(batch, rows)) for rows in cut]
