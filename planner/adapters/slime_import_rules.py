"""Rules of slime and Megatron-LM that flags can break. Sources are named at each."""

from __future__ import annotations

from collections.abc import Mapping

from planner.adapters.findings import Severity
from planner.adapters.import_values import Values
from planner.adapters.slime_import_plan import MODEL, ReadPlan
from planner.files.catalog import load_model
from planner.files.framework import load_framework


def check_rules(values: Values, plan: ReadPlan, environment: Mapping[str, str], program: str) -> None:
    """Notes every broken rule."""
    _model(values, plan)
    _algorithm(values)
    _sync(values, program)
    _batches(values, plan)
    _layout(values, plan)
    _tokens(values, plan)


def _model(values: Values, plan: ReadPlan) -> None:
    """slime/backends/megatron_utils/megatron_to_hf/__init__.py: the weight sync renames weights by the model's name."""
    if plan.spec.model is None or values.config.get("model-name") is not None:
        return
    model = load_model(plan.spec.model)
    tp, architecture = values.whole("tensor-model-parallel-size", 1, minimum=1), model.architecture
    if model.needs_whole_sequence and tp > 1:
        # slime_plugins/models/hf_attention.py
        values.find(
            "tensor-model-parallel-size", Severity.NOTE,
            f"slime computes linear attention whole on each of {tp} ranks: priced as if they divided it",
        )  # fmt: skip
    if architecture not in load_framework("slime").model_architectures:
        values.find(
            MODEL, Severity.WARNING,
            f"slime itself converts no {architecture}: without code of your own the first weight sync fails",
            "a converter for it, or --model-name of a family with the same weights",
        )  # fmt: skip


def _algorithm(values: Values) -> None:
    """slime/utils/arguments.py slime_validate_args."""
    if values.number("kl-coef", 0.0) and values.number("kl-loss-coef", 0.0):
        values.find(
            "kl-coef", Severity.ERROR, "only one of --kl-coef and --kl-loss-coef may be other than 0",
            "leave one of them out",
        )  # fmt: skip
    estimator = values.text("advantage-estimator", "grpo")
    if estimator.startswith("reinforce_plus_plus") and not values.flag("normalize-advantages"):
        values.find(
            "advantage-estimator", Severity.ERROR, f"{estimator} needs normalised advantages", "--normalize-advantages"
        )
    if values.flag("use-rollout-logprobs") and values.flag("use-tis"):
        values.find("use-tis", Severity.ERROR, "cannot be combined with --use-rollout-logprobs", "remove one")


def _sync(values: Values, program: str) -> None:
    """slime/utils/arguments.py; train_async.py."""
    shared = values.flag("colocate")
    if program.rpartition(".")[2] == "train_async":
        if shared:
            values.find("colocate", Severity.ERROR, "train_async.py refuses it", "train.py, or GPUs of their own")
        if not values.flag("use-tis") and not values.flag("use-rollout-logprobs"):
            values.find(
                "use-tis",
                Severity.NOTE,
                "no off-policy correction is chosen for responses of older weights",
                "--use-tis",
            )
    delta = values.text("update-weight-mode", "full") == "delta"
    if delta and shared:
        values.find(
            "update-weight-mode", Severity.ERROR, "delta is refused with --colocate", "--update-weight-mode full"
        )
    if delta and values.text("update-weight-transport", "nccl") != "disk":
        values.find("update-weight-transport", Severity.ERROR, "delta needs disk", "--update-weight-transport disk")
    if values.text("update-weight-transport", "nccl") == "disk":
        values.find(
            "update-weight-transport", Severity.NOTE, "weights through a disk are priced as through the network"
        )


def _batches(values: Values, plan: ReadPlan) -> None:
    oversampled = values.optional_whole("over-sampling-batch-size", minimum=1)
    prompts = plan.spec.num_prompts or 1
    if oversampled is not None and oversampled < prompts:
        values.find(
            "over-sampling-batch-size", Severity.ERROR, f"{oversampled} is less than --rollout-batch-size, {prompts}",
            f"--over-sampling-batch-size {prompts}",
        )  # fmt: skip
    ranks = plan.pools.trainer_gpus // (
        values.whole("tensor-model-parallel-size", 1, minimum=1)
        * values.whole("pipeline-model-parallel-size", 1, minimum=1)
        * values.whole("context-parallel-size", 1, minimum=1)
    )
    if ranks and plan.samples_per_update % ranks:
        # megatron/core/num_microbatches_calculator.py
        values.find(
            "global-batch-size", Severity.ERROR,
            f"{plan.samples_per_update} samples do not divide over {ranks} data-parallel ranks",
            f"a multiple of {ranks}",
        )  # fmt: skip
    if values.config.get("num-rollout") is None and values.config.get("num-epoch") is None:
        values.find("num-rollout", Severity.ERROR, "is missing, and so is --num-epoch", "--num-rollout N")


def _layout(values: Values, plan: ReadPlan) -> None:
    """megatron/training/arguments.py validate_args; megatron/core/transformer/moe/moe_layer.py."""
    tp = values.whole("tensor-model-parallel-size", 1, minimum=1)
    pp = values.whole("pipeline-model-parallel-size", 1, minimum=1)
    experts = values.optional_whole("num-experts", minimum=1)
    ep = values.whole("expert-model-parallel-size", 1, minimum=1)
    if experts and tp > 1 and not values.flag("sequence-parallel"):
        values.find(
            "sequence-parallel", Severity.ERROR,
            "experts with tensor parallelism need it: Megatron refuses at the first training step",
            "--sequence-parallel",
        )  # fmt: skip
    if experts and experts % ep:
        values.find(
            "expert-model-parallel-size", Severity.ERROR, f"{ep} does not divide {experts} experts", "a divisor"
        )
    layers = values.optional_whole("num-layers", minimum=1)
    ends = [f"decoder-{end}-pipeline-num-layers" for end in ("first", "last")]
    given = [values.optional_whole(name) for name in ends]
    is_uneven = (
        any(item is not None for item in given) or values.config.get("pipeline-model-parallel-layout") is not None
    )
    if layers and pp > 1 and layers % pp and not is_uneven:
        values.find(
            "pipeline-model-parallel-size", Severity.ERROR,
            f"{layers} layers do not divide over {pp} pipeline ranks", f"--{ends[1]} N, or another degree",
        )  # fmt: skip
    if layers and pp > 1 and any(item is not None for item in given):
        inner = pp - sum(item is not None for item in given)
        rest = layers - sum(item or 0 for item in given)
        if rest < 0 or (inner and rest % inner) or (not inner and rest):
            values.find(
                ends[1], Severity.ERROR,
                f"{rest} of {layers} layers do not divide over the other {inner} pipeline ranks",
                "ends that leave a multiple of the other ranks",
            )  # fmt: skip
    if pp == 1 and any(item is not None for item in given):
        values.find(ends[1], Severity.ERROR, "needs more than one pipeline rank", f"remove --{ends[1]}")
    if values.flag("sequence-parallel") and tp == 1:
        values.find("sequence-parallel", Severity.NOTE, "has no effect without tensor parallelism")


def _tokens(values: Values, plan: ReadPlan) -> None:
    budget = values.optional_whole("max-tokens-per-gpu", minimum=1)
    longest = (plan.spec.prompt_max or 0) + (plan.spec.response_max or 0)
    cp = values.whole("context-parallel-size", 1, minimum=1)
    if budget is None or not values.flag("use-dynamic-batch-size"):
        return
    if budget * cp < (plan.spec.response_max or 0):
        values.find(
            "max-tokens-per-gpu", Severity.WARNING,
            f"{budget:,} tokens x {cp} context-parallel ranks are less than one response of "
            f"{plan.spec.response_max:,}: a longer sequence makes a micro-batch of its own beyond the budget",
            f"--max-tokens-per-gpu {-(-longest // cp)}",
        )  # fmt: skip
