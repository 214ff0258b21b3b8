# --config-path with a file that builds on verl's own configuration.
python3 -m verl.trainer.main_ppo \
    --config-path="$PWD/scripts/config" \
    --config-name='own_trainer' \
    algorithm.adv_estimator=grpo \
    actor_rollout_ref.model.path=Qwen/Qwen3-8B \
    actor_rollout_ref.actor.ppo_mini_batch_size=${MINI:-256} \
    actor_rollout_ref.actor.use_dynamic_bsz=True
