"""Rules of OpenRLHF that flags can break: they fire at start-up. Sources are named at each, in OpenRLHF 0.11.2."""

from __future__ import annotations

from planner.adapters.findings import Severity
from planner.adapters.import_values import Values
from planner.adapters.openrlhf_import_plan import ReadPlan

_GROUPED = ("rloo", "reinforce_baseline", "group_norm", "dr_grpo")


def check_rules(values: Values, plan: ReadPlan) -> None:
    """Notes every broken rule."""
    _placement(values, plan)
    _sampling(values, plan)
    _asynchrony(values)
    _packing(values, plan)
    _precision(values)


def _placement(values: Values, plan: ReadPlan) -> None:
    """cli/train_ppo_ray.py train."""
    layout = plan.layout
    all_together = values.flag("train.colocate_all")
    if layout.engines is None:
        values.find(
            "vllm.num_engines", Severity.ERROR, "no engine generates: the number of engines is 0 or not given",
            "--vllm.num_engines=N",
        )  # fmt: skip
    elif layout.engines_share and layout.engines[1] != layout.actor[1]:
        values.find(
            "vllm.num_engines", Severity.ERROR,
            f"with --train.colocate_all engines need the actor's {layout.actor[1]} GPUs, they have {layout.engines[1]}",
            f"--vllm.num_engines={max(1, layout.actor[1] // values.whole('vllm.tensor_parallel_size', 1, minimum=1))}",
        )  # fmt: skip
    pairs = [
        ("actor", "ref", layout.reference, all_together or values.flag("train.colocate_actor_ref")),
        ("critic", "reward", layout.reward, layout.critic is not None and values.flag("train.colocate_critic_reward")),
    ]
    for one, other, where, joined in pairs:
        if where is None or not joined:
            continue
        for key in ("num_nodes", "num_gpus_per_node"):
            first, second = values.whole(f"{one}.{key}", 1), values.whole(f"{other}.{key}", 1)
            if first != second:
                values.find(
                    f"{other}.{key}", Severity.ERROR, f"{second} differs from --{one}.{key}, {first}, with which it is "
                    "colocated", f"--{other}.{key}={first}",
                )  # fmt: skip
    if all_together and layout.critic is not None and layout.critic[1] != layout.actor[1]:
        values.find(
            "critic.num_gpus_per_node", Severity.ERROR,
            f"the critic has {layout.critic[1]} GPUs and shares the placement group of the actor's {layout.actor[1]}",
            "equal --critic.num_nodes and --critic.num_gpus_per_node",
        )  # fmt: skip


def _sampling(values: Values, plan: ReadPlan) -> None:
    """cli/train_ppo_ray.py, the checks after the parser."""
    group = plan.spec.group_size or 1
    estimator = values.text("algo.advantage.estimator", "gae")
    if estimator in _GROUPED and group < 2:
        values.find(
            "rollout.n_samples_per_prompt", Severity.ERROR, f"{estimator} compares the responses to one prompt, and "
            "there is one", "--rollout.n_samples_per_prompt=8",
        )  # fmt: skip
    if values.flag("algo.dynamic_filtering_enable"):
        if group < 2:
            values.find(
                "rollout.n_samples_per_prompt", Severity.ERROR, "dynamic filtering needs more than one response"
            )
        if plan.spec.reward == "model":
            values.find(
                "algo.dynamic_filtering_enable", Severity.ERROR, "needs a reward function or server, no reward model",
                "--reward.remote_url or --train.agent_func_path",
            )  # fmt: skip
    micro = values.whole("rollout.micro_batch_size", 1, minimum=1)
    ranks = plan.layout.actor[1] // values.whole("ds.ring_attn_size", 1, minimum=1)
    ranks //= values.whole("ds.tensor_parallel_size", 1, minimum=1)
    if plan.num_samples // micro < ranks:
        values.find(
            "rollout.micro_batch_size", Severity.ERROR,
            f"{plan.num_samples} samples in micro-batches of {micro} are fewer than {ranks} data-parallel ranks",
            f"--rollout.micro_batch_size={max(1, plan.num_samples // max(ranks, 1))} or less",
        )  # fmt: skip
    train_micro = values.whole("train.micro_batch_size", 1, minimum=1)
    if not values.flag("train.dynamic_batch_enable") and plan.samples_per_update < train_micro * ranks:
        # utils/deepspeed/deepspeed.py: accumulation = batch * ring * TP // micro // world
        values.find(
            "train.batch_size", Severity.ERROR,
            f"{plan.samples_per_update} samples are fewer than {ranks} data-parallel ranks x {train_micro}: not one "
            "micro-batch for each", f"--train.batch_size={train_micro * ranks} or more",
        )  # fmt: skip


def _asynchrony(values: Values) -> None:
    is_async = values.flag("train.async_enable")
    if is_async and values.flag("vllm.enable_sleep") and values.flag("train.colocate_all"):
        values.find(
            "vllm.enable_sleep", Severity.ERROR, "asynchronous training is refused with sleeping engines", "remove it"
        )
    if values.flag("train.partial_rollout_enable") and not is_async:
        values.find(
            "train.partial_rollout_enable", Severity.ERROR, "needs asynchronous training", "--train.async_enable"
        )
    wanted = values.optional_whole("rollout.vllm_generate_batch_size", minimum=1) or 0
    if wanted > values.whole("rollout.batch_size", 1024) and not is_async:
        values.find(
            "rollout.vllm_generate_batch_size", Severity.ERROR,
            f"{wanted} prompts are more than --rollout.batch_size, which needs asynchronous training",
            "--train.async_enable, or --rollout.batch_size or less",
        )  # fmt: skip
    if is_async and values.text("algo.advantage.is_correction_level", "off") == "off":
        values.find(
            "algo.advantage.is_correction_level", Severity.WARNING,
            "no off-policy correction is chosen for responses of older weights",
            "--algo.advantage.is_correction_level=token",
        )  # fmt: skip
    if is_async and values.flag("train.colocate_all"):
        values.find(
            "train.colocate_all", Severity.NOTE,
            "with asynchronous training only the DeepSpeed models share GPUs; engines have their own",
        )  # fmt: skip


def _packing(values: Values, plan: ReadPlan) -> None:
    packs = values.flag("ds.packing_samples") or values.flag("train.dynamic_batch_enable")
    ring = values.whole("ds.ring_attn_size", 1, minimum=1)
    if ring > 1 and not packs:
        values.find("ds.ring_attn_size", Severity.NOTE, "above 1 switches --ds.packing_samples on")
    elif not packs:
        values.find(
            "ds.packing_samples", Severity.WARNING,
            "sequences of a micro-batch are padded to its longest, and padding is computed; the prediction assumes "
            "packing", "--ds.packing_samples",
        )  # fmt: skip
    budget = values.whole("train.max_tokens_per_gpu", 16192, minimum=1)
    ranks = ring * values.whole("ds.tensor_parallel_size", 1, minimum=1)
    if values.flag("train.dynamic_batch_enable") and budget * ranks < plan.max_tokens:
        values.find(
            "train.max_tokens_per_gpu", Severity.WARNING,
            f"{budget:,} tokens x {ranks} ranks are less than the longest sequence, {plan.max_tokens:,}",
            f"--train.max_tokens_per_gpu={-(-plan.max_tokens // ranks)}",
        )  # fmt: skip


def _precision(values: Values) -> None:
    """utils/deepspeed/deepspeed.py."""
    if values.whole("ds.tensor_parallel_size", 1) > 1 and values.text("ds.param_dtype", "bf16") != "bf16":
        values.find("ds.param_dtype", Severity.ERROR, "tensor parallelism needs bf16", "--ds.param_dtype=bf16")
    if values.whole("ds.zpg", 1) > 1:
        values.find("ds.zpg", Severity.NOTE, "a second copy of the shards per node is priced as none")
    if values.flag("ds.load_in_4bit"):
        values.find("ds.load_in_4bit", Severity.NOTE, "4-bit base weights are priced as bf16")
