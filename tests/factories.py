"""Small valid domain values for tests; every argument that a test cares about can be given."""

from __future__ import annotations

from planner.domain.algorithm import find_algorithm
from planner.domain.hardware import Precision
from planner.domain.lengths import LengthLaw
from planner.domain.model import Attention, LayerClass, Mlp, Model
from planner.domain.workload import Reward, RewardKind, Workload


def dense_model(
    *, hidden: int = 5120, layers: int = 64, heads: int = 64, kv_heads: int = 8, width: int = 25600, vocab: int = 151936
) -> Model:
    """A GQA model with gated MLP; the defaults are Qwen3-32B (32.76 B parameters)."""
    head_dim = 128
    attention = Attention(
        kind="gqa",
        num_heads=heads,
        num_kv_heads=kv_heads,
        matmul_params=hidden * (heads + 2 * kv_heads) * head_dim + heads * head_dim * hidden,
        other_params=2 * head_dim,
        num_gemms=2,
        score_flop_per_pair=4 * heads * head_dim,
        window_tokens=None,
        state_flop_per_token=0,
        kv_elements_per_token=2 * kv_heads * head_dim,
        kv_is_sharded_by_tp=True,
        state_elements_per_sequence=0,
        saved_elements_per_token=(2 * heads + 2 * kv_heads) * head_dim,
        replicated_saved_elements_per_token=2 * hidden,
    )
    mlp = Mlp(
        dense_params=3 * hidden * width,
        other_params=0,
        num_gemms=2,
        num_experts=0,
        num_active_experts=0,
        params_per_expert=0,
        expert_hidden_size=0,
        saved_elements_per_token=3 * width,
        saved_elements_per_routed_token=0,
        replicated_saved_elements_per_token=2 * hidden,
    )
    layer = LayerClass(name="block", num_layers=layers, attention=attention, mlp=mlp, norm_params=2 * hidden)
    return Model(
        id="dense-test",
        hf_repo="test/dense",
        architecture="qwen3",
        hidden_size=hidden,
        vocab_size=vocab,
        is_embedding_tied=False,
        layers=(layer,),
        extra_params=hidden,
        mtp_params=0,
        max_positions=40960,
    )


def workload(
    algorithm: str = "grpo",
    *,
    kl: float | None = None,
    reward: RewardKind = RewardKind.RULE,
    lora_rank: int | None = None,
    old_logprob: bool = True,
    prompts: int = 256,
    group: int = 16,
) -> Workload:
    """A workload on the dense test model with 1024 + 8192 tokens."""
    found = find_algorithm(algorithm)
    assert found is not None
    model = dense_model()
    needs_model = reward in (RewardKind.MODEL, RewardKind.PROCESS_MODEL, RewardKind.JUDGE)
    return Workload(
        algorithm=found,
        actor=model,
        critic=model if found.has_critic else None,
        reward=Reward(kind=reward, model=model if needs_model else None),
        num_prompts=prompts,
        group_size=group,
        prompt_mean_tokens=512,
        prompt_max_tokens=1024,
        response=LengthLaw(mean_tokens=4096, cv=0.6, max_tokens=8192),
        num_optimizer_steps=4,
        num_epochs=1,
        kl_coefficient=found.default_kl_coefficient if kl is None else kl,
        needs_old_logprob=old_logprob,
        train_precision=Precision.BF16,
        rollout_precision=Precision.BF16,
        lora_rank=lora_rank,
        memory_margin_ratio=0.1,
    )
