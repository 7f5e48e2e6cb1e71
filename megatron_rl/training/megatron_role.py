"""A model on its own layout: scoring, values, one optimizer step. Callers see global batches and no ranks.

Shape suffixes: B samples, S padded tokens, N predicted tokens of a pack.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from megatron_rl.config.model import ModelConfig
from megatron_rl.config.training import TrainedRoleConfig
from megatron_rl.data.packing import pack_mini_batch
from megatron_rl.models.gpt import Head, TransformerStage, build_stage, named_local_parameters
from megatron_rl.models.initialise import initialise
from megatron_rl.parallel.groups import GroupRegistry, RoleGroups
from megatron_rl.parallel.layout import ParallelLayout
from megatron_rl.runtime.platform import Platform
from megatron_rl.training.heads import lm_loss, lm_outputs, value_outputs, vocab_shard
from megatron_rl.training.loss_closures import LossFunction
from megatron_rl.training.micro_batches import RoleCut, Samples, cut_for_role
from megatron_rl.training.optimizer import RoleOptimizer, require_optimizer, wrap_data_parallel
from megatron_rl.training.parameter_invariants import check_replicas, zero_vocabulary_padding
from megatron_rl.training.pipeline import run_pipeline
from megatron_rl.training.stage_outputs import gather_outputs, keep_metrics, keep_outputs, reduce_metrics
from megatron_rl.types.batches import MicroBatch, MiniBatch, PackedTokens
from megatron_rl.types.masks import response_mask
from megatron_rl.types.metrics import Metric, Metrics


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
        role_config: TrainedRoleConfig,
        layout: ParallelLayout,
        registry: GroupRegistry,
        platform: Platform,
        *,
        head: Head = "lm",
        frozen: bool = False,
        total_optimizer_steps: int = 1,
        seed: int = 0,
        temperature: float = 1.0,
    ) -> MegatronRole:
        """Make the role with random weights that depend on the seed only, not on the layout.

        Load other weights through ``named_local_parameters`` and then call ``weights_changed``.

        Args:
            model_config: shape.
            role_config: micro-batches, optimizer and recomputation.
            layout: degrees and ranks; must cover this rank.
            registry: of process groups, shared by all roles.
            platform: device and dtype.
            head: token probabilities or one value per token.
            frozen: it only scores; no gradients and no optimizer.
            total_optimizer_steps: length of the learning-rate schedule.
            seed: of the initial weights.
            temperature: divides the logits, in scoring and in updates alike.

        Collectives: all ranks of the job (creation of groups).
        Raises ValueError where the layout fits neither the shape nor the job.
        """
        groups = RoleGroups.build(layout, registry)
        if not frozen:
            require_optimizer(role_config.optim, platform)
        recompute = None if frozen else role_config.recompute
        chunks = build_stage(model_config, groups, platform, head=head, recompute=recompute)
        initialise(named_local_parameters(chunks, groups), model_config, groups, seed)
        return cls(
            model_config=model_config,
            role_config=role_config,
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
        zero_vocabulary_padding(self.parameters, self.groups, self.model_config.vocab_size)
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
        """Verify that parameters held by several ranks are bit-equal on them; see ``parameter_invariants``.

        Raises RuntimeError naming those that are not.

        Collectives: all ranks of the role.
        """
        tied = self.chunks[0].share_embeddings_and_output_weights
        check_replicas(self.parameters, self.groups, tied_embeddings=tied)

    def _require_optimizer(self) -> RoleOptimizer:
        assert self.optimizer is not None, "a frozen role cannot be updated"
        return self.optimizer

    def _update(self, batch: MiniBatch, loss: LossFunction, num_outputs: int) -> tuple[Metrics, Tensor]:
        """One optimizer step; metrics, and the first outputs of the forward pass, f32 ``[num_outputs, B, S]``."""
        optimizer = self._require_optimizer()
        self._set_training(True)
        optimizer.zero_grad()
        cut = self._cut(batch, batch.response_mask_BS)
        micro_batches = pack_mini_batch(batch, cut.packer, cut.rows)
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
        metrics = reduce_metrics(kept, self.groups)
        outputs = batch.loss_weights_BS.new_zeros(0)
        if num_outputs:
            outputs = gather_outputs(cut.packer, packs, kept, num_outputs, self.groups)
        return {
            **metrics,
            **cut.metrics(),
            "grad_norm": Metric(outcome.grad_norm),
            "lr": Metric(outcome.lr, "last"),
            "update_skipped": Metric(float(outcome.skipped), "sum"),
        }, outputs

    def _cut(self, samples: Samples, mask_BS: Tensor) -> RoleCut:
        return cut_for_role(
            samples,
            mask_BS,
            config=self.config,
            hidden_size=self.model_config.hidden_size,
            groups=self.groups,
            device=self.platform.device,
        )

    def _set_training(self, training: bool) -> None:
        for chunk in self.chunks:
            chunk.train(training)

    @torch.no_grad()
    def _evaluate(self, samples: Samples, outputs: _Outputs, num_outputs: int) -> Tensor:
        """Forward pass over a global batch; f32 ``[num_outputs, B, S]`` on every rank."""
        self._set_training(False)
        if self.optimizer is not None:
            self.optimizer.complete_weights()
        mask_BS = response_mask(samples.prompt_lengths_B, samples.response_lengths_B, samples.tokens_BS.shape[1])
        cut = self._cut(samples, mask_BS)
        packs = [cut.packer.pack_tokens(rows) for rows in cut.rows]
        last = self.chunks[-1]

        def last_stage(hidden: Tensor, index: int) -> tuple[Tensor, dict[str, Tensor]]:
            answers = outputs(last, hidden, packs[index])
            return answers[0].sum(), keep_outputs(answers)

        kept = run_pipeline(self.chunks, packs, last_stage, self.groups, forward_only=True)
        return gather_outputs(cut.packer, packs, kept, num_outputs, self.groups)

    def _loss(
        self, hidden: Tensor, batch: MicroBatch, loss: LossFunction, num_outputs: int
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Share of one micro-batch in the loss, and what to keep of it; on the last stage."""
        stage = self.chunks[-1]
        if stage.head == "value":
            scalar, metrics = loss(value_outputs(stage, hidden, batch.packed), None, batch.loss_inputs)
            return scalar, keep_metrics(metrics)
        self._require_optimizer().wait_for(stage.head_weight())
        shard = vocab_shard(stage, self.groups, self.model_config.vocab_size)
        answer = lm_loss(stage, hidden, batch, loss, shard, temperature=self.temperature, with_entropy=num_outputs > 1)
        seen = (answer.logprobs_N, answer.entropy_N)[:num_outputs]
        return answer.total, keep_outputs(x_N for x_N in seen if x_N is not None) | keep_metrics(answer.metrics)


class _Outputs(Protocol):
    def __call__(self, stage: TransformerStage, hidden: Tensor, packed: PackedTokens) -> list[Tensor]: ...
