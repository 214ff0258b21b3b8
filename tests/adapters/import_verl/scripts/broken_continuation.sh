# The backslash after the mini-batch is followed by a blank: all later arguments are lost.
python3 -m verl.trainer.main_ppo \
    algorithm.adv_estimator=grpo \
    actor_rollout_ref.model.path=Qwen/Qwen3-8B \
    actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.actor.use_dynamic_bsz=True \
    actor_rollout_ref.actor.ppo_mini_batch_size=64 \ 
    actor_rollout_ref.rollout.n=8 \
    trainer.nnodes=2
