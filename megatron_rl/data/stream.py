"""A resumable stream of prompt batches. Every rank runs the same stream and gets the same global batch."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from megatron_rl.types.prompts import Prompt, PromptBatch

_FIXES_THE_ORDER = {"num_rows": "the data", "batch_size": "the batch size", "seed": "data.seed", "shuffle": "data.shuffle"}


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamState:
    """Where a stream stands. Example: ``StreamState(epoch=1, position=8, num_rows=10, fingerprint="9f..", ...)``."""

    epoch: int
    """Pass of the next batch."""
    position: int
    """Rows already taken from that pass."""
    num_rows: int
    """Rows of the data."""
    fingerprint: str
    """SHA-256 of the rows as rendered."""
    batch_size: int
    """Rows per batch."""
    seed: int
    """Seed of the order."""
    shuffle: bool
    """Whether each pass has its own order."""


def require_one_batch(num_rows: int, batch_size: int, size_key: str) -> None:
    """Refuse data that does not fill one batch.

    Raises:
        ValueError: ``num_rows < batch_size``; names ``size_key``, the dotted configuration key of the batch size.
    """
    if num_rows < batch_size:
        raise ValueError(
            f"{size_key}={batch_size}: there are only {num_rows} rows, not enough for one batch. "
            f"Set {size_key} to at most {num_rows}, or add data."
        )


class BatchOrder:
    """Which rows make up which batch: a pure function of (seed, epoch, position), independent of any global RNG.

    Remainder rule: a pass has ``num_rows // batch_size`` batches; the last ``num_rows % batch_size`` rows *of that pass's
    order* are left out, so with shuffling other rows are left out each time.
    """

    def __init__(self, num_rows: int, batch_size: int, *, seed: int, shuffle: bool, size_key: str) -> None:
        """Start at the first batch.

        Args:
            num_rows: Rows of the data.
            batch_size: Rows per batch.
            seed: Seed of the order.
            shuffle: A new order each pass; False = source order.
            size_key: Dotted configuration key of ``batch_size``, for messages.

        Raises:
            ValueError: Not even one batch fits.
        """
        require_one_batch(num_rows, batch_size, size_key)
        self.num_rows, self.batch_size, self.seed, self.shuffle = num_rows, batch_size, seed, shuffle
        self.epoch = 0
        self.position = 0
        self._order = self.order_of(0)

    @property
    def batches_per_epoch(self) -> int:
        """Batches of one pass."""
        return self.num_rows // self.batch_size

    @property
    def num_dropped_per_epoch(self) -> int:
        """Rows left out of each pass."""
        return self.num_rows % self.batch_size

    def order_of(self, epoch: int) -> list[int]:
        """Return the row order of a pass."""
        order = list(range(self.num_rows))
        if self.shuffle:
            random.Random(f"{self.seed}:{epoch}").shuffle(order)
        return order

    def next_batch(self) -> tuple[int, list[int]]:
        """Return (epoch, rows) of the next batch and move on."""
        epoch = self.epoch
        rows = self._order[self.position : self.position + self.batch_size]
        if self.position + 2 * self.batch_size <= self.num_rows:
            self.position += self.batch_size
        else:
            self.seek(epoch + 1, 0)
        return epoch, rows

    def seek(self, epoch: int, position: int) -> None:
        """Make the batch at row ``position`` of pass ``epoch`` the next one."""
        if epoch != self.epoch:
            self._order = self.order_of(epoch)
        self.epoch, self.position = epoch, position


def fingerprint_of(prompts: Sequence[Prompt]) -> str:
    """Return a SHA-256 over the ids and source rows, in order; file names do not count."""
    digest = hashlib.sha256()
    for prompt in prompts:
        digest.update(json.dumps([prompt.token_ids, prompt.row], sort_keys=True, default=_stable).encode())
    return digest.hexdigest()


def _stable(value: Any) -> Any:
    """JSON stand-in of a value that has none: never its repr, which may hold an address."""
    return sorted(map(str, value)) if isinstance(value, (set, frozenset)) else type(value).__name__


class PromptStream:
    """Endless batches of rendered prompts.

    Example: 10 prompts and ``batch_size=4`` give two batches a pass and leave out two rows.
    """

    def __init__(
        self,
        prompts: Sequence[Prompt],
        batch_size: int,
        *,
        seed: int,
        shuffle: bool,
        size_key: str = "data.train_batch_size",
    ) -> None:
        """Start at the first batch of pass 0.

        Args:
            prompts: All of them.
            batch_size: Prompts that are sampled at once.
            seed: Seed of the order.
            shuffle: A new order each pass; False = source order.
            size_key: Dotted configuration key of ``batch_size``, for messages.

        Raises:
            ValueError: Fewer prompts than ``batch_size``, or repeated uids.
        """
        self._prompts = tuple(prompts)
        if len({prompt.uid for prompt in self._prompts}) != len(self._prompts):
            raise ValueError("prompt uids are not unique; rewards could not be joined to prompts.")
        self._order = BatchOrder(len(self._prompts), batch_size, seed=seed, shuffle=shuffle, size_key=size_key)
        self.fingerprint = fingerprint_of(self._prompts)

    @property
    def batches_per_epoch(self) -> int:
        """Batches of one pass."""
        return self._order.batches_per_epoch

    @property
    def summary(self) -> str:
        """One line for the log: what a pass consists of."""
        order = self._order
        return (
            f"{order.num_rows} prompts in batches of {order.batch_size}: {order.batches_per_epoch} batches per epoch, "
            f"{order.num_dropped_per_epoch} rows dropped per epoch"
        )

    def next_batch(self) -> PromptBatch:
        """Return the next batch and move on."""
        epoch, rows = self._order.next_batch()
        return PromptBatch(prompts=tuple(self._prompts[row] for row in rows), epoch=epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the position as plain values; it does not depend on the number of ranks."""
        order = self._order
        state = StreamState(
            epoch=order.epoch,
            position=order.position,
            num_rows=order.num_rows,
            fingerprint=self.fingerprint,
            batch_size=order.batch_size,
            seed=order.seed,
            shuffle=order.shuffle,
        )
        return asdict(state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where ``state`` was taken.

        Raises:
            ValueError: The data, its rendering, or what fixes the order has changed since.
        """
        saved, mine = StreamState(**state), StreamState(**self.state_dict())
        for field, key in _FIXES_THE_ORDER.items():
            if getattr(saved, field) != getattr(mine, field):
                raise ValueError(
                    f"cannot resume: {key} changed since the checkpoint ({field} was {getattr(saved, field)}, is now "
                    f"{getattr(mine, field)}), so the position in the data has no meaning. Restore it, or start with "
                    "trainer.resume_mode=disable."
                )
        if saved.fingerprint != mine.fingerprint:
            raise ValueError(
                "cannot resume: the prompts changed since the checkpoint (same number of rows, other content or other "
                f"rendering: fingerprint {saved.fingerprint[:12]} then, {mine.fingerprint[:12]} now). A row, the tokenizer, "
                "the chat template or a length limit differs. Restore them, or start with trainer.resume_mode=disable."
            )
        self._order.seek(saved.epoch, saved.position)


def validation_batches(prompts: Sequence[Prompt], batch_size: int | None) -> list[PromptBatch]:
    """Cut validation prompts, in order; none is dropped, so the last batch may be short.

    Args:
        prompts: All validation prompts.
        batch_size: ``data.val_batch_size``; None = one batch.
    """
    if not prompts:
        return []
    size = len(prompts) if batch_size is None else batch_size
    return [PromptBatch(prompts=tuple(prompts[start : start + size]), epoch=0) for start in range(0, len(prompts), size)]
