"""A catalogue of configurations that cannot work, each with what the message has to say.

Names starting with ``FILES`` are made by the test: ``prompts.jsonl`` (three rows, the second far too long), ``bad.jsonl``
(a line that is no JSON), ``reward.py``, ``notes.txt``, ``empty`` (a folder).
"""

from __future__ import annotations

from dataclasses import dataclass

GRPO = ("experiment=tiny_cpu",)
PPO = ("experiment=tiny_cpu", "algorithm=ppo")
FILTER = ("algorithm.filter_groups.enable=true",)


@dataclass(frozen=True, slots=True)
class BrokenConfig:
    """Overrides, and a part of the message that they have to produce."""

    overrides: tuple[str, ...]
    says: str


BROKEN = {
    "experiment_is_a_path": BrokenConfig(
        (*GRPO, "trainer.experiment_name=../mine"), 'trainer.experiment_name="../mine": must be the name of one folder'
    ),
    "project_is_empty": BrokenConfig(
        (*GRPO, "trainer.project_name=''"), 'trainer.project_name="": must be the name of one folder'
    ),
    "sbatch_option_without_dash": BrokenConfig(
        (*GRPO, "launcher=slurm", "launcher.requeue=false", "launcher.sbatch_options=[exclusive]"),
        "launcher.sbatch_options: exclusive is no option of sbatch",
    ),
    "actor_tensor": BrokenConfig((*GRPO, "actor.parallel.tensor=4"), "actor.parallel.tensor=4 does not divide the heads"),
    "critic_tensor": BrokenConfig((*PPO, "critic.parallel.tensor=4"), "critic.parallel.tensor=4 does not divide the heads"),
    "ref_tensor": BrokenConfig(
        (*GRPO, "actor.use_kl_loss=true", "ref.parallel.tensor=3"), "ref.parallel.tensor=3 does not divide the heads"
    ),
    "rollout_tensor": BrokenConfig((*GRPO, "rollout.tensor_parallel_size=8"), "legal for the rollout engine: 1, 2, 4"),
    "nine_heads": BrokenConfig((*GRPO, "model=smollm2_135m", "model.tokenizer_path=FILES/empty"), "legal for training: 1, 3"),
    "pipeline": BrokenConfig((*GRPO, "actor.parallel.pipeline=3"), "legal pipeline degrees: 1, 2, 4"),
    "virtual_pipeline": BrokenConfig(
        (*GRPO, "actor.parallel.pipeline=2", "actor.parallel.virtual_pipeline=4"), "actor.parallel.virtual_pipeline=4 does not"
    ),
    "virtual_without_pipeline": BrokenConfig(
        (*GRPO, "actor.parallel.virtual_pipeline=2"), "virtual_pipeline=2 needs actor.parallel.pipeline > 1"
    ),
    "sequence_parallel": BrokenConfig(
        (*PPO, "critic.parallel.sequence_parallel=true"), "critic.parallel.sequence_parallel=true needs"
    ),
    "explicit_data": BrokenConfig((*GRPO, "actor.parallel.data=3", "trainer.n_gpus_per_node=2"), "actor.parallel.data=3"),
    "world_too_small": BrokenConfig((*GRPO, "trainer.n_gpus_per_node=3"), "does not divide the world of 3 ranks"),
    "rollout_data": BrokenConfig(
        (*GRPO, "rollout.data_parallel_size=3", "trainer.n_gpus_per_node=2"), "rollout.data_parallel_size=3"
    ),
    "context": BrokenConfig((*GRPO, "actor.parallel.context=2"), "context parallelism is not trained yet"),
    "expert": BrokenConfig((*GRPO, "actor.parallel.expert=2"), "expert parallelism is not trained yet"),
    "expert_tensor": BrokenConfig((*GRPO, "actor.parallel.expert_tensor=3"), "expert_tensor=3: model tiny has no experts"),
    "moe": BrokenConfig((*GRPO, "model=qwen3_30b_a3b"), "model.moe: mixture-of-experts"),
    "mla": BrokenConfig((*GRPO, "model=deepseek_v3"), "model.mla: latent attention"),
    "kv_heads": BrokenConfig((*GRPO, "model.num_key_value_heads=3"), "model.num_key_value_heads=3 does not divide"),
    "head_dim": BrokenConfig((*GRPO, "model.hidden_size=130"), "set model.head_dim"),
    "cpu_head_dim": BrokenConfig(
        (*GRPO, "model.head_dim=16"), "model.head_dim=16: on CPU the rollout engine has attention for"
    ),
    "reuse_logprobs": BrokenConfig(
        (*GRPO, "actor.reuse_logprobs=true", "actor.ppo_epochs=2"),
        "actor.reuse_logprobs=true with actor.ppo_epochs=2: from the second optimizer step on",
    ),
    "moment_dtype": BrokenConfig(
        (*GRPO, "actor.optim.exp_avg_dtype=bfloat16"), "needs actor.optim.use_precision_aware_optimizer=true"
    ),
    "bfloat16_second_moment": BrokenConfig(
        (*GRPO, "actor.optim.use_precision_aware_optimizer=true", "actor.optim.exp_avg_sq_dtype=bfloat16"),
        "so it could only grow; use float32, or a betas[1] of 0.99 or less",
    ),
    "precision_aware_float32": BrokenConfig(
        (*PPO, "critic.optim.use_precision_aware_optimizer=true", "trainer.dtype=float32"),
        "critic.optim.use_precision_aware_optimizer=true with trainer.dtype=float32",
    ),
    "precision_aware_replicated": BrokenConfig(
        (*GRPO, "actor.optim.use_precision_aware_optimizer=true", "actor.optim.use_distributed_optimizer=false"),
        "needs actor.optim.use_distributed_optimizer=true",
    ),
    "overlap_param_gather": BrokenConfig(
        (*GRPO, "actor.optim.overlap_param_gather=true"), "actor.optim.overlap_grad_reduce=true; set both"
    ),
    "cpu_transport": BrokenConfig((*GRPO, "weight_sync.transport=nccl"), "weight_sync.transport=nccl needs GPUs; use auto"),
    "transformer_engine_on_cpu": BrokenConfig(
        (*GRPO, "model.transformer_impl=transformer_engine"), "transformer_impl=transformer_engine computes on GPUs only"
    ),
    "fp8_on_cpu": BrokenConfig((*GRPO, "rollout.quantization=fp8_per_block"), "quantization=fp8_per_block needs a GPU"),
    "fp8_blocks": BrokenConfig(
        (*GRPO, "rollout.quantization=fp8_per_block", "rollout.tensor_parallel_size=2"),
        "with rollout.tensor_parallel_size=2 a rank holds 64 rows of num_attention_heads * head_dim, no whole blocks of 128",
    ),
    "mini_batch": BrokenConfig((*GRPO, "actor.ppo_mini_batch_size=12"), "nearest legal values: 8 or 16"),
    "critic_mini_batch": BrokenConfig((*PPO, "critic.ppo_mini_batch_size=5"), "nearest legal values: 4 or 8"),
    "micro_batch": BrokenConfig((*GRPO, "actor.use_dynamic_bsz=false"), "needs actor.ppo_micro_batch_size_per_gpu"),
    "token_budget": BrokenConfig((*GRPO, "actor.ppo_max_token_len_per_gpu=16"), "cannot hold one sample of up to 24 tokens"),
    "too_few_samples": BrokenConfig(
        (*GRPO, "data.train_batch_size=1", "rollout.n=2", "trainer.n_gpus_per_node=8"), "so some would have none"
    ),
    "profiler_rank": BrokenConfig((*GRPO, "profiler=torch", "profiler.ranks=[0,9]"), "leave [9] out"),
    "profiler_on_cpu": BrokenConfig((*GRPO, "profiler=nsys"), "profiler.tool=nsys watches GPUs"),
    "profiler_step": BrokenConfig((*GRPO, "profiler=torch", "profiler.steps=[99]"), "choose steps up to 60"),
    "group_of_one": BrokenConfig((*GRPO, "rollout.n=1"), "a group of one has no other answer"),
    "filter_of_one": BrokenConfig((*GRPO, *FILTER, "rollout.n=1"), "one answer differs from no other"),
    "filter_with_critic": BrokenConfig((*PPO, *FILTER, "rollout.n=2"), "groups of equal rewards have a gradient too"),
    "filter_without_end": BrokenConfig(
        (*GRPO, *FILTER, "trainer.total_training_steps=null"), "how many steps trainer.total_epochs give depends"
    ),
    "filter_never_full": BrokenConfig(
        (*GRPO, *FILTER, "algorithm.filter_groups.max_num_gen_batches=3", "data.gen_batch_size=10"), "use at least 4, or 0"
    ),
    "filter_metric": BrokenConfig((*GRPO, *FILTER, "algorithm.filter_groups.metric=score"), "seq_reward"),
    "gen_batch_without_filter": BrokenConfig((*GRPO, "data.gen_batch_size=64"), "use null, or enable it"),
    "gen_batch_too_large": BrokenConfig(
        (*GRPO, *FILTER, "data.gen_batch_size=9", "data.reasoning_gym.train_size=8", "data.train_batch_size=4"),
        "data.gen_batch_size=9 exceeds data.reasoning_gym.train_size=8",
    ),
    "no_critic": BrokenConfig((*PPO, "critic.enable=false"), "GAE needs values"),
    "critic_warmup": BrokenConfig((*GRPO, "critic.warmup_steps=3"), "without a critic"),
    "clip": BrokenConfig((*GRPO, "actor.clip_ratio=1.5"), "actor.clip_ratio=1.5 must be below 1"),
    "top_p": BrokenConfig((*GRPO, "rollout.top_p=0.9"), "importance ratio would compare unlike things"),
    "top_k_zero": BrokenConfig((*GRPO, "rollout.top_k=0"), "rollout.top_k=0: use -1"),
    "temperature": BrokenConfig((*GRPO, "rollout.temperature=0.005"), "rollout.temperature=0.005: the engine would"),
    "greedy_group": BrokenConfig(
        (*GRPO, "rollout.val_kwargs.temperature=0", "rollout.val_kwargs.n=4"), "rollout.val_kwargs.n=4 with rollout.val_kwargs"
    ),
    "many_samples": BrokenConfig((*GRPO, "rollout.n=70000"), "rollout.n=70000: a prompt has seeds for 65536 samples"),
    "engine_length": BrokenConfig((*GRPO, "rollout.max_model_len=20"), "exceeds rollout.max_model_len=20"),
    "model_length": BrokenConfig((*GRPO, "data.max_response_length=2040"), "exceeds model.max_position_embeddings=2048"),
    "engine_tokens": BrokenConfig((*GRPO, "rollout.max_num_batched_tokens=100"), "is below rollout.max_num_seqs=256"),
    "betas": BrokenConfig((*GRPO, "actor.optim.betas=[0.9,1.0]"), "each must lie in [0, 1)"),
    "min_lr": BrokenConfig((*GRPO, "actor.optim.min_lr=1.0"), "actor.optim.min_lr=1.0 exceeds"),
    "decay": BrokenConfig((*GRPO, "actor.optim.lr_decay_steps=5"), "must exceed actor.optim.lr_warmup_steps=11"),
    "save_freq": BrokenConfig((*GRPO, "trainer.save_freq=0"), "trainer.save_freq=0: use -1"),
    "resume_without_path": BrokenConfig((*GRPO, "trainer.resume_mode=path"), "needs trainer.resume_path"),
    "resume_path_ignored": BrokenConfig((*GRPO, "trainer.resume_path=FILES/empty"), "is ignored with trainer.resume_mode=auto"),
    "no_weights": BrokenConfig((*GRPO, "model.path=FILES/nowhere"), "no such folder; weights are read"),
    "empty_weights": BrokenConfig((*GRPO, "model.path=FILES/empty"), "has no config.json"),
    "no_tokenizer": BrokenConfig((*GRPO, "model.tokenizer_path=null"), "model.tokenizer_path: no tokenizer"),
    "tokenizer_path": BrokenConfig((*GRPO, "model.tokenizer_path=FILES/nowhere"), "no such file or folder"),
    "chat_template": BrokenConfig((*GRPO, "model.chat_template=FILES/nowhere.jinja"), "model.chat_template="),
    "no_prompts": BrokenConfig((*GRPO, "data.reasoning_gym=null"), "there are no prompts"),
    "prompt_file": BrokenConfig(
        (*GRPO, "data.reasoning_gym=null", "data.train_files=[FILES/prompt.jsonl]"), "did you mean FILES/prompts.jsonl?"
    ),
    "prompt_suffix": BrokenConfig(
        (*GRPO, "data.reasoning_gym=null", "data.train_files=[FILES/notes.txt]"), "is neither JSONL nor Parquet"
    ),
    "two_sources": BrokenConfig((*GRPO, "data.train_files=[FILES/prompts.jsonl]"), "are both set"),
    "long_prompt": BrokenConfig(
        (*GRPO, "data.reasoning_gym=null", "data.train_files=[FILES/prompts.jsonl]", "data.train_batch_size=1"), "row 1"
    ),
    "too_few_rows": BrokenConfig(
        (*GRPO, "data.reasoning_gym=null", "data.train_files=[FILES/prompts.jsonl]", "data.max_prompt_length=200"),
        "there are only 3 rows",
    ),
    "not_json": BrokenConfig((*GRPO, "data.reasoning_gym=null", "data.train_files=[FILES/bad.jsonl]"), "not valid JSON"),
    "prompt_key": BrokenConfig(
        (*GRPO, "data.reasoning_gym=null", "data.train_files=[FILES/prompts.jsonl]", "data.prompt_key=question"), "question"
    ),
    "task_name": BrokenConfig((*GRPO, "data.reasoning_gym.task=spell_backwards"), "spell_backwards"),
    "pool_too_small": BrokenConfig((*GRPO, "data.reasoning_gym.train_size=8"), "not one step has enough prompts"),
    "no_validation": BrokenConfig(
        (*GRPO, "data.reasoning_gym=null", "data.train_files=[FILES/prompts.jsonl]", "trainer.test_freq=5"),
        "set data.val_files",
    ),
    "vocabulary": BrokenConfig((*GRPO, "model.vocab_size=100"), "the embedding needs at least 260 rows"),
    "reward_spec": BrokenConfig((*GRPO, "reward.function=exact_match"), "write module:function"),
    "reward_module": BrokenConfig((*GRPO, "reward.function=no_such_module:score"), "no module no_such_module"),
    "reward_file": BrokenConfig((*GRPO, 'reward.function="FILES/nowhere.py:score"'), "nowhere.py:score: no such file"),
    "reward_name": BrokenConfig((*GRPO, 'reward.function="FILES/reward.py:scor"'), "did you mean score?"),
    "reward_arguments": BrokenConfig((*GRPO, 'reward.function="FILES/reward.py:two_arguments"'), "it is called with answer"),
    "reward_kwargs": BrokenConfig(
        (*GRPO, 'reward.function="FILES/reward.py:score"', "reward.function_kwargs.scale=2"),
        "reward.function_kwargs gives scale",
    ),
    "reward_missing_kwargs": BrokenConfig((*GRPO, 'reward.function="FILES/reward.py:needs_scale"'), "needs scale; give"),
    "reward_syntax": BrokenConfig((*GRPO, 'reward.function="FILES/notes.py:score"'), "is not valid Python"),
    "output_is_a_file": BrokenConfig((*GRPO, "trainer.output_dir=FILES/notes.txt"), "is a file, not a folder"),
    "memory": BrokenConfig(
        (*GRPO, "model=llama3_8b", "trainer.device=cuda", "launcher.gpu_memory_gib=80"), "one rank needs about"
    ),
}
