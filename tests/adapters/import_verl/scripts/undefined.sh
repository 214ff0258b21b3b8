# WORLD_SIZE comes from a cluster, the token budget from nowhere.
python3 -m verl.trainer.main_ppo model_engine=dp \
    algorithm.adv_estimator=grpo \
    actor_rollout_ref.model.path=Qwen/Qwen3-8B \
    actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.actor.use_dynamic_bsz=True \
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=$MAX_TOKENS \
    trainer.nnodes=$WORLD_SIZE \
    trainer.experiment_name=$NAME
