"""A model on its own layout: scoring, values, one optimizer step. Callers see global batches and no ranks.

Shape suffixes: B samples, S padded tokens, N predicted tokens of a pack.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from megatron_rl.config.model import ModelConfig
from megatron_rl.config.training import TrainedRoleConfig
from megatron_rl.data.packing import CutRule, Packer, Rows, cut_rows, pack_lengths, pack_mini_batch, packing_metrics
from megatron_rl.models.gpt import Head, TransformerStage, build_stage, named_local_parameters
from megatron_rl.models.initialise import initialise
from megatron_rl.parallel.collectives import (
    broadcast_from_last_stage,
    broadcast_object_from_last_stage,
    first_difference,
    max_over_data,
    sum_over_data,
)
from megatron_rl.parallel.groups import GroupRegistry, RoleGroups
from megatron_rl.parallel.layout import ParallelLayout
from megatron_rl.runtime.platform import Platform
from megatron_rl.training.heads import lm_loss, lm_outputs, value_outputs, vocab_shard
from megatron_rl.training.loss_closures import LossFunction
from megatron_rl.training.optimizer import RoleOptimizer, require_optimizer, wrap_data_parallel
from megatron_rl.training.pipeline import run_pipeline
from megatron_rl.types.batches import MicroBatch, MiniBatch, PackedTokens
from megatron_rl.types.masks import response_mask
from megatron_rl.types.metrics import Metric, Metrics


class Samples(Protocol):
    """What scoring needs of a batch; ``RolloutBatch`` and ``MiniBatch`` are such."""

    @property
    def tokens_BS(self) -> Tensor:
        """i64, prompt + response + right padding."""

    @property
    def prompt_lengths_B(self) -> Tensor:
        """i64."""

    @property
    def response_lengths_B(self) -> Tensor:
        """i64."""


class MegatronRole:
    """Actor, critic or reference on this rank.

    All ranks of the role call every method together, with the same arguments, and get the same answers.
    """

    def __init__(
        self,
        *,
        model_config: ModelConfig,
        role_config: TrainedRoleConfig,
        groups: RoleGroups,
        platform: Platform,
        chunks: list[TransformerStage],
        total_optimizer_steps: int | None,
        temperature: float,
    ) -> None:
        """Use ``MegatronRole.build``."""
        self.model_config = model_config
        self.config = role_config
        self.groups = groups
        self.platform = platform
        self.temperature = temperature
        self.chunks = chunks
        self.parameters = named_local_parameters(chunks, groups)
        self.optimizer: RoleOptimizer | None = None
        if total_optimizer_steps is None:
            for parameter in self.parameters.values():
                parameter.requires_grad_(False)
        else:
            self._wrapped = wrap_data_parallel(chunks, groups, role_config.optim)
            self.optimizer = RoleOptimizer(self._wrapped, groups, role_config.optim, platform, total_optimizer_steps)

    @classmethod
    def build(
        cls,
        model_config: ModelConfig,
        role_config: TrainedRoleConfig | None,
        layout: ParallelLayout,
        registry: GroupRegistry,
        platform: Platform,
        *,
        head: Head = "lm",
        total_optimizer_steps: int = 1,
        seed: int = 0,
        temperature: float = 1.0,
    ) -> MegatronRole:
        """Make the role with random weights that depend on the seed only, not on the layout.

        Load other weights through ``named_local_parameters`` and then call ``weights_changed``.

        Args:
            model_config: shape.
            role_config: training settings; None = frozen, no gradients and no optimizer.
            layout: degrees and ranks; must cover this rank.
            registry: of process groups, shared by all roles.
            platform: device and dtype.
            head: token probabilities or one value per token.
            total_optimizer_steps: length of the learning-rate schedule.
            seed: of the initial weights.
            temperature: divides the logits, in scoring and in updates alike.

        Collectives: all ranks of the job (creation of groups).
        Raises ValueError where the layout fits neither the shape nor the job.
        """
        groups = RoleGroups.build(layout, registry)
        frozen = role_config is None
        config = role_config or TrainedRoleConfig()
        require_optimizer(config.optim, platform)
        chunks = build_stage(model_config, groups, platform, head=head, recompute=config.recompute)
        initialise(named_local_parameters(chunks, groups), model_config, groups, seed)
        return cls(
            model_config=model_config,
            role_config=config,
            groups=groups,
            platform=platform,
            chunks=chunks,
            total_optimizer_steps=None if frozen else total_optimizer_steps,
            temperature=temperature,
        )

    def named_local_parameters(self) -> dict[str, torch.nn.Parameter]:
        """This rank's parameters by global name (see ``models.gpt.named_local_parameters``); live, not copies."""
        return dict(self.parameters)

    def weights_changed(self) -> None:
        """Tell the role that its parameters were written from outside: f32 master copies follow, padding is zeroed."""
        self._zero_vocabulary_padding()
        if self.optimizer is not None:
            self.optimizer.weights_changed()

    def score(self, samples: Samples, *, with_entropy: bool = False, temperature: float | None = None) -> tuple[Tensor, Tensor]:
        """Log-probs (and entropies) of the response tokens.

        Args:
            samples: global batch.
            with_entropy: also compute entropies; otherwise they are returned as zeros.
            temperature: None = the role's own.

        Returns f32 ``[B, S]`` twice, token coordinates, 0 outside responses.

        Collectives: all ranks of the role.
        """
        temperature = self.temperature if temperature is None else temperature

        def outputs(stage: TransformerStage, hidden: Tensor, packed: PackedTokens) -> list[Tensor]:
            shard = vocab_shard(stage, self.groups, self.model_config.vocab_size)
            logprobs_N, entropy_N = lm_outputs(stage, hidden, packed, shard, temperature=temperature, with_entropy=with_entropy)
            return [logprobs_N] if entropy_N is None else [logprobs_N, entropy_N]

        answers = self._evaluate(samples, outputs, 2 if with_entropy else 1)
        return answers[0], answers[1] if with_entropy else torch.zeros_like(answers[0])

    def values(self, samples: Samples) -> Tensor:
        """Value of the state in which each response token was chosen.

        Returns f32 ``[B, S]``, token coordinates, 0 outside responses.

        Collectives: all ranks of the role.
        """
        return self._evaluate(samples, lambda *args: [value_outputs(*args)], 1)[0]

    def update(self, batch: MiniBatch, loss: LossFunction, *, another_follows: bool = False) -> Metrics:
        """One optimizer step on ``sum(weights * token loss)`` over the global mini-batch.

        Args:
            batch: samples of this step.
            loss: of their predicted tokens.
            another_follows: the role's next call is another update, so its weights need not be whole before it.

        Returns the loss's metrics, ``grad_norm``, ``lr`` and ``update_skipped``, the same on every rank.

        Collectives: all ranks of the role.
        """
        metrics = self._update(batch, loss, num_outputs=0)[0]
        if not another_follows:
            self._require_optimizer().complete_weights()
        return metrics

    def update_and_score(self, batch: MiniBatch, loss: LossFunction) -> tuple[Metrics, Tensor, Tensor]:
        """One optimizer step, and what its forward pass saw: the policy before the step.

        Returns metrics as :meth:`update`, log-probs and entropies of the counted tokens as :meth:`score`.

        Collectives: all ranks of the role.
        """
        metrics, outputs_2BS = self._update(batch, loss, num_outputs=2)
        self._require_optimizer().complete_weights()
        return metrics, outputs_2BS[0], outputs_2BS[1]

    def check_replicas(self) -> None:
        """Verify that parameters held by several ranks are bit-equal on them.

        Raises RuntimeError naming those that are not: tensor-parallel replicas (norms, biases that are not cut),
        data-parallel replicas, and the two copies of tied embeddings.

        Collectives: all ranks of the role.
        """
        groups = self.groups.collection
        whole = {name: p for name, p in self.parameters.items() if not _is_cut(p)}
        differing = first_difference(whole, groups.tp) + first_difference(self.parameters, groups.dp_cp)
        differing += first_difference(self._tied_copy(), groups.embd) if self._tied_copy() else []
        if differing:
            raise RuntimeError(
                f"replicated parameters differ between ranks: {', '.join(sorted(set(differing)))}. "
                "The weights have drifted apart; resume from the last checkpoint and report this."
            )

    def _require_optimizer(self) -> RoleOptimizer:
        assert self.optimizer is not None, "a frozen role cannot be updated"
        return self.optimizer

    def _update(self, batch: MiniBatch, loss: LossFunction, num_outputs: int) -> tuple[Metrics, Tensor]:
        """One optimizer step; metrics, and the first outputs of the forward pass, f32 ``[num_outputs, B, S]``."""
        optimizer = self._require_optimizer()
        self._set_training(True)
        optimizer.zero_grad()
        shares = self._shares(batch.lengths_B)
        cut = self._own(shares)
        packer = self._packer(batch, batch.response_mask_BS, cut)
        micro_batches = pack_mini_batch(batch, packer, cut)
        packs = [micro_batch.packed for micro_batch in micro_batches]
        kept = run_pipeline(
            self._wrapped,
            packs,
            lambda hidden, index: self._loss(hidden, micro_batches[index], loss, num_outputs),
            self.groups,
            forward_only=False,
        )
        # Before anything is read back from the device, which would leave it idle until the step is queued.
        outcome = optimizer.step()
        metrics = self._reduce_metrics(kept)
        outputs = self._collect(packer, packs, kept, num_outputs) if num_outputs else batch.loss_weights_BS.new_zeros(0)
        return {
            **metrics,
            **packing_metrics(shares, packer.lengths, packer.multiple, equal=self._packs_are_equal),
            "grad_norm": Metric(outcome.grad_norm),
            "lr": Metric(outcome.lr, "last"),
            "update_skipped": Metric(float(outcome.skipped), "sum"),
        }, outputs

    @property
    def _packs_are_equal(self) -> bool:
        """An interleaved pipeline cannot tell its stages how long each pack is."""
        return self.groups.layout.virtual_pipeline > 1

    def _packer(self, samples: Samples, mask_BS: Tensor, cut: Sequence[Rows]) -> Packer:
        layout = self.groups.layout
        lengths = tuple((samples.prompt_lengths_B + samples.response_lengths_B).tolist())
        multiple = layout.tensor if layout.sequence_parallel else 1
        return Packer(
            tokens_BS=samples.tokens_BS,
            mask_BS=mask_BS,
            lengths=lengths,
            multiple=multiple,
            device=self.platform.device,
            fixed_length=pack_lengths(cut, lengths, multiple, equal=True)[0] if self._packs_are_equal else None,
        )

    def _own(self, shares: list[list[Rows]]) -> list[Rows]:
        """Rows of this rank's micro-batches."""
        assert self.groups.coordinates is not None
        return shares[self.groups.coordinates.data]

    def _shares(self, lengths_B: Tensor) -> list[list[Rows]]:
        """Rows by ``[data rank][micro-batch]``."""
        layout = self.groups.layout
        dynamic = self.config.use_dynamic_bsz
        rule = CutRule(
            data=layout.data,
            hidden_size=self.model_config.hidden_size,
            max_tokens=self.config.ppo_max_token_len_per_gpu if dynamic else None,
            max_sequences=None if dynamic else self.config.ppo_micro_batch_size_per_gpu or 1,
            count_multiple=layout.pipeline if layout.virtual_pipeline > 1 else 1,
        )
        return cut_rows(lengths_B.tolist(), rule)

    def _set_training(self, training: bool) -> None:
        for chunk in self.chunks:
            chunk.train(training)

    @torch.no_grad()
    def _evaluate(self, samples: Samples, outputs: _Outputs, num_outputs: int) -> Tensor:
        """Forward pass over a global batch; f32 ``[num_outputs, B, S]`` on every rank."""
        self._set_training(False)
        if self.optimizer is not None:
            self.optimizer.complete_weights()
        tokens_BS = samples.tokens_BS
        cut = self._own(self._shares(samples.prompt_lengths_B + samples.response_lengths_B))
        mask_BS = response_mask(samples.prompt_lengths_B, samples.response_lengths_B, tokens_BS.shape[1])
        packer = self._packer(samples, mask_BS, cut)
        packs = [packer.pack_tokens(rows) for rows in cut]
        last = self.chunks[-1]

        def last_stage(hidden: Tensor, index: int) -> tuple[Tensor, dict[str, Tensor]]:
            answers = outputs(last, hidden, packs[index])
            return answers[0].sum(), {f"{_OUTPUT}{i}": answer for i, answer in enumerate(answers)}

        kept = run_pipeline(self.chunks, packs, last_stage, self.groups, forward_only=True)
        return self._collect(packer, packs, kept, num_outputs)

    def _collect(
        self, packer: Packer, packs: Sequence[PackedTokens], kept: Sequence[dict[str, Tensor]], num_outputs: int
    ) -> Tensor:
        """Outputs of all micro-batches, data-parallel ranks and the last stage; f32 ``[num_outputs, B, S]`` on every rank."""
        answers = torch.zeros((num_outputs, *packer.tokens_BS.shape), device=self.platform.device)
        if self.groups.is_last_stage:
            for i in range(num_outputs):
                answers[i] = packer.unpack((pack, part[f"{_OUTPUT}{i}"]) for pack, part in zip(packs, kept, strict=True))
            sum_over_data(answers, self.groups)
        return broadcast_from_last_stage(answers, self.groups).to(packer.tokens_BS.device)

    def _loss(
        self, hidden: Tensor, batch: MicroBatch, loss: LossFunction, num_outputs: int
    ) -> tuple[Tensor, dict[str, Tensor]]:
        stage, outputs = self.chunks[-1], {}
        if stage.head == "value":
            scalar, metrics = loss(value_outputs(stage, hidden, batch.packed), None, batch.loss_inputs)
        else:
            self._require_optimizer().wait_for(stage.head_weight())
            shard = vocab_shard(stage, self.groups, self.model_config.vocab_size)
            answer = lm_loss(stage, hidden, batch, loss, shard, temperature=self.temperature, with_entropy=num_outputs > 1)
            scalar, metrics = answer.total, answer.metrics
            seen = (answer.logprobs_N, answer.entropy_N)[:num_outputs]
            outputs = {f"{_OUTPUT}{i}": output for i, output in enumerate(seen) if output is not None}
        return scalar, outputs | {f"{kind}:{name}": value.detach().float() for name, (value, kind) in metrics.items()}

    def _reduce_metrics(self, kept: Sequence[dict[str, Tensor]]) -> Metrics:
        """Join the metrics of all micro-batches and data-parallel ranks, and tell every stage."""
        values: object = None
        if self.groups.is_last_stage:
            keys = sorted(key for key in kept[0] if not key.startswith(_OUTPUT))
            table = torch.stack([torch.stack([part[key].reshape(()) for key in keys]) for part in kept]) if keys else None
            values = {} if table is None else self._joined(keys, table)
        joined = broadcast_object_from_last_stage(values, self.groups)
        assert isinstance(joined, dict)
        return joined

    def _joined(self, keys: list[str], table: Tensor) -> Metrics:
        sums = sum_over_data(table.sum(0), self.groups).tolist()
        tops = max_over_data(table.amax(0), self.groups).tolist()
        metrics: Metrics = {}
        for key, total, top in zip(keys, sums, tops, strict=True):
            kind, name = key.split(":", 1)
            if kind == "sum":
                # Parts of one optimizer step add up; several steps are averaged.
                metrics[name] = Metric(total)
            else:
                assert kind == "max", f"metric {name}: only sum and max can be joined over micro-batches, got {kind}"
                metrics[name] = Metric(top, "max")
        return metrics

    def _tied_copy(self) -> dict[str, Tensor]:
        """The embedding under one name on the first and on the last stage, where there are two copies."""
        has_copy = self.chunks[0].share_embeddings_and_output_weights and self.groups.layout.pipeline > 1
        if not has_copy:
            return {}
        for name in ("embedding.word_embeddings.weight", "output_layer.weight"):
            if name in self.parameters:
                return {"tied embedding": self.parameters[name]}
        return {}

    @torch.no_grad()
    def _zero_vocabulary_padding(self) -> None:
        """Padded vocabulary rows are zero, whatever was loaded; they get no gradient, so updates leave them there."""
        assert self.groups.coordinates is not None
        for name in ("embedding.word_embeddings.weight", "output_layer.weight"):
            if name in self.parameters:
                weight = self.parameters[name]
                start = self.groups.coordinates.tensor * weight.shape[0]
                weight[max(0, self.model_config.vocab_size - start) :] = 0


_OUTPUT = "output:"
"""Marks values per token among what the last stage keeps of a micro-batch; the rest are metrics."""


class _Outputs(Protocol):
    def __call__(self, stage: TransformerStage, hidden: Tensor, packed: PackedTokens) -> list[Tensor]: ...


def _is_cut(parameter: Tensor) -> bool:
    """Whether tensor parallelism cuts the parameter (Megatron marks those; the others are replicated)."""
    return bool(vars(parameter).get("tensor_model_parallel", False))
