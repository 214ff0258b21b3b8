# A misspelt key, one that nothing reads, one given twice, and a dead section.
python3 -m verl.trainer.main_ppo \
    algorithm.adv_estimator=grpo \
    actor_rollout_ref.model.path=Qwen/Qwen3-8B \
    actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.rollout.n=8 \
    actor_rollout_ref.actor.ppo_minibatch_size=128 \
    +actor_rollout_ref.actor.my_flag=True \
    actor_rollout_ref.actor.use_dynamic_bsz=True \
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=1000 \
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=512 \
    actor_rollout_ref.actor.megatron.tensor_model_parallel_size=4 \
    actor_rollout_ref.rollout.tensor_model_parallel_size=3 \
    data.train_batch_size=1000
