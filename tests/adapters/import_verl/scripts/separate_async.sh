# Engines on nodes of their own, responses of older weights.
python3 -m verl.trainer.main_ppo \
    algorithm.adv_estimator=grpo \
    actor_rollout_ref.model.path=Qwen/Qwen3-8B \
    trainer.v1.trainer_mode=separate_async \
    trainer.v1.separate_async.parameter_sync_step=2 \
    trainer.v1.sampler.max_off_policy_threshold=3 \
    trainer.nnodes=1 trainer.n_gpus_per_node=8 \
    actor_rollout_ref.hybrid_engine=False \
    actor_rollout_ref.rollout.nnodes=1 \
    actor_rollout_ref.rollout.checkpoint_engine.backend=nccl \
    actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=8 \
    actor_rollout_ref.actor.use_dynamic_bsz=True \
    actor_rollout_ref.actor.ppo_mini_batch_size=64 \
    algorithm.rollout_correction.bypass_mode=True \
    data.train_batch_size=128 data.max_prompt_length=1024 data.max_response_length=8192
