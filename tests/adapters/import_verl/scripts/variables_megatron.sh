# Variables, arithmetic, arrays, --config-name and added keys: a mixture of experts on Megatron.
set -xeuo pipefail
export CUDA_DEVICE_MAX_CONNECTIONS=1
NNODES=${NNODES:-4}
TP=4; PP=1; EP=8
max_prompt_length=$((1024 * 2))
max_response_length=$((1024 * 8))
n_resp=16
MODEL=(
    actor_rollout_ref.model.path="${MODEL_PATH:-$HOME/models/Qwen/Qwen3-30B-A3B}"
)
ACTOR=(
    actor_rollout_ref.actor.megatron.tensor_model_parallel_size=$TP
    actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=$PP
    actor_rollout_ref.actor.megatron.expert_model_parallel_size=$EP
    actor_rollout_ref.actor.megatron.param_offload=True
    actor_rollout_ref.actor.megatron.grad_offload=True
    actor_rollout_ref.actor.megatron.optimizer_offload=True
    +actor_rollout_ref.actor.megatron.override_transformer_config.moe_router_dtype=fp32
    actor_rollout_ref.actor.megatron.override_transformer_config.recompute_granularity=full
    actor_rollout_ref.actor.use_dynamic_bsz=True
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=$((max_prompt_length + max_response_length))
    actor_rollout_ref.actor.ppo_mini_batch_size=32
)
python3 -m verl.trainer.main_ppo --config-path=./config --config-name='ppo_megatron_trainer.yaml' \
    algorithm.adv_estimator=grpo \
    data.train_batch_size=128 \
    data.max_prompt_length=${max_prompt_length} \
    data.max_response_length=${max_response_length} \
    "${MODEL[@]}" "${ACTOR[@]}" \
    actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.rollout.n=${n_resp} \
    actor_rollout_ref.rollout.tensor_model_parallel_size=4 \
    reward_model.reward_manager=dapo \
    trainer.nnodes="${NNODES}" \
    trainer.n_gpus_per_node=8
