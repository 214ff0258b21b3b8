"""What a user gave -> a complete request, with every default recorded as an assumption.

Defaults are those of a common reasoning run: they exist so that one command gives a plan, and are printed so
that nobody takes them for facts.
"""

from __future__ import annotations

import math
from dataclasses import replace
from enum import StrEnum
from typing import TypeVar

from planner.domain.algorithm import Algorithm, algorithm_names, find_algorithm
from planner.domain.hardware import Precision
from planner.domain.lengths import LengthLaw
from planner.domain.model import Model
from planner.domain.plan import Assumption, Limits, Objective
from planner.domain.request import PlanRequest
from planner.domain.workload import Reward, RewardKind, Workload
from planner.errors import InvalidInputError, nearest
from planner.files.gpus import Hardware, read_hardware
from planner.files.permissions import check_policy, check_workers, read_permissions
from planner.files.problems import Problems
from planner.files.spec import WorkloadSpec
from planner.units import Dimension, parse

DEFAULT_ALGORITHM = "grpo"
DEFAULT_PROMPTS = 256
DEFAULT_PROMPT_TOKENS = 1024
DEFAULT_RESPONSE_TOKENS = 8192
DEFAULT_MEAN_SHARE = 0.5
DEFAULT_RESPONSE_CV = 0.6
DEFAULT_OPTIMIZER_STEPS = 4
DEFAULT_MEMORY_MARGIN = 0.10
DEFAULT_TIME_LIMIT_S = 60.0

MAX_TOKENS = 2**24
MAX_PROMPTS = 2**20
MAX_GROUP = 2**16
MAX_STEPS = 10**9
SOLVERS = ("auto", "cpsat", "ilp")

KEY_INPUTS = frozenset({"algorithm", "prompts", "longest prompt", "longest response", "mean response"})
"""Names of the assumptions that are all present when a plan rests on defaults alone."""

E = TypeVar("E", bound=StrEnum)


def build_request(spec: WorkloadSpec) -> PlanRequest:
    """The request that `spec` describes; raises InvalidInputError with every problem at once."""
    reader = _Reader(spec)
    actor = reader.model("model", None, "a catalog id, a Hugging Face id or a path; see rlplan models")
    lengths = _read_lengths(reader, actor)
    algorithm = reader.algorithm()
    hardware = read_hardware(spec, reader.problems)
    num_prompts = reader.count(
        "num_prompts", DEFAULT_PROMPTS, MAX_PROMPTS, "prompts", "more prompts, longer iterations"
    )
    group_size = _read_group(reader, algorithm)
    steps, epochs = _read_optimizer(reader, num_prompts)
    kl = _read_kl(reader, algorithm)
    critic = _read_critic(reader, algorithm, actor)
    reward = _read_reward(reader, actor, hardware)
    train, rollout = _read_precisions(reader, hardware)
    lora = reader.count("lora_rank", None, 4096, "", "")
    margin = _read_margin(reader)
    limits = _read_limits(reader, hardware)
    if reader.problems or actor is None or algorithm is None or hardware is None or lengths is None or reward is None:
        reader.problems.raise_if_any()
        raise AssertionError("a missing value without a problem")
    prompt_max, prompt_mean, response = lengths
    workload = Workload(
        algorithm=algorithm,
        actor=actor,
        critic=critic,
        reward=reward,
        num_prompts=num_prompts or DEFAULT_PROMPTS,
        group_size=group_size,
        prompt_mean_tokens=prompt_mean,
        prompt_max_tokens=prompt_max,
        response=response,
        num_optimizer_steps=steps,
        num_epochs=epochs,
        kl_coefficient=kl,
        needs_old_logprob=algorithm.uses_ratio and steps * epochs > 1,
        train_precision=train,
        rollout_precision=rollout,
        lora_rank=lora,
        memory_margin_ratio=margin,
    )
    check_workers(spec, reader.problems, limits, workload)
    reader.problems.raise_if_any()
    request = PlanRequest(
        workload=workload,
        cluster=hardware.cluster,
        gpu_type_when_open=hardware.open_node,
        open_usd_per_gpu_hour=hardware.open_usd_per_gpu_hour,
        limits=limits,
        assumptions=(*reader.assumptions, *hardware.assumptions),
    )
    if spec.profile is None:
        return request
    from planner.files.calibrated import with_profile

    return with_profile(request, spec.profile)


class _Reader:
    """Takes single values out of a spec, noting problems and defaults."""

    def __init__(self, spec: WorkloadSpec) -> None:
        self.spec = spec
        self.problems = Problems()
        self.assumptions: list[Assumption] = []
        self.wrong: set[str] = set()
        """Fields with a problem of their own: nothing that follows from their values is worth saying."""

    def fail(self, name: str, message: str, accepted: str = "", suggestion: str = "") -> None:
        self.wrong.add(name)
        self.problems.add(
            InvalidInputError(message, where=self.spec.place(name), accepted=accepted, suggestion=suggestion)
        )

    def assume(self, what: str, value: str, effect: str = "", source: str = "default") -> None:
        self.assumptions.append(Assumption(what=what, value=value, source=source, effect=effect))

    def count(self, name: str, default: int | None, maximum: int, what: str, effect: str) -> int | None:
        """An integer from 1 to `maximum`."""
        value: int | None = getattr(self.spec, name)
        if value is None:
            if default is not None:
                self.assume(what, f"{default:,}", effect)
            return default
        if not 1 <= value <= maximum:
            self.fail(name, f"{value} is out of range", f"an integer from 1 to {maximum:,}")
            return default or 1
        return value

    def number(self, name: str, low: float, high: float) -> float | None:
        """A finite number in [low, high], or None when not given or wrong."""
        value: float | None = getattr(self.spec, name)
        if value is None:
            return None
        if not math.isfinite(value) or not low <= value <= high:
            self.fail(name, f"{value:g} is out of range", f"a number from {low:g} to {high:,.12g}")
            return None
        return float(value)

    def quantity(self, name: str, dimension: Dimension) -> float | None:
        value = getattr(self.spec, name)
        if value is None:
            return None
        return self.problems.attempt(lambda: parse(value, dimension, where=self.spec.place(name)), None)

    def choice(self, name: str, kind: type[E]) -> E | None:
        """A member of `kind` by its value."""
        value: str | None = getattr(self.spec, name)
        if value is None:
            return None
        names = [member.value for member in kind]
        if value.lower() not in names:
            self.fail(name, f"{value[:60]!r} is not known", ", ".join(names), nearest(value, names))
            return None
        return kind(value.lower())

    def model(self, name: str, default: Model | None, accepted: str) -> Model | None:
        """A model by reference."""
        reference: str | None = getattr(self.spec, name)
        if reference is None:
            if default is None:
                self.fail(name, "is missing", accepted)
            return default
        return self.problems.attempt(lambda: _load_model(reference, self.spec.place(name)), None)

    def algorithm(self) -> Algorithm | None:
        name = self.spec.algorithm
        if name is None:
            self.assume("algorithm", DEFAULT_ALGORITHM, "PPO and VAPO add a critic; give --algorithm")
            name = DEFAULT_ALGORITHM
        found = find_algorithm(name)
        if found is None:
            names = algorithm_names()
            self.fail("algorithm", f"{name[:60]!r} is not known", ", ".join(names), nearest(name, names))
            return None
        oversampling = self.number("oversampling_ratio", 1.0, 100.0)
        if oversampling is not None:
            return replace(found, oversampling_ratio=oversampling)
        if found.oversampling_ratio != 1.0:
            self.assume(
                "oversampling",
                f"{found.oversampling_ratio:g} prompts generated per prompt kept",
                "scales the rollout; give --oversampling",
                f"{found.title} default",
            )
        return found


def _load_model(reference: str, where: str) -> Model:
    from planner.files import catalog

    try:
        model = catalog.load_model(reference)
    except InvalidInputError as error:
        # The catalog does not know which flag or key named the model.
        raise InvalidInputError(str(error), where="" if where == "MODEL" else where) from None
    path = f"{model.id} {model.hf_repo}"
    if any("\ud800" <= c <= "\udfff" for c in path):
        # A file name of bytes that are no text: no plan and no script could hold it.
        raise InvalidInputError(f"{model.hf_repo!r} is not UTF-8", where=where, accepted="a path in UTF-8")
    return model


def _read_lengths(reader: _Reader, actor: Model | None) -> tuple[int, float, LengthLaw] | None:
    """Longest prompt, mean prompt, response law."""
    # The mean response decides more than anything else, so that it is stated first.
    given = reader.spec.response_max
    response_max = given if given is not None and 1 <= given <= MAX_TOKENS else DEFAULT_RESPONSE_TOKENS
    mean = reader.number("response_mean", 1.0, MAX_TOKENS)
    if reader.spec.response_mean is None:
        mean = max(1.0, response_max * DEFAULT_MEAN_SHARE)
        reader.assume(
            "mean response",
            f"{mean:g} tokens, half of the longest",
            "rollout and update time grow with it; measure yours and give --response-mean",
        )
    cv = reader.number("response_cv", 0.0, 5.0)
    if reader.spec.response_cv is None:
        cv = DEFAULT_RESPONSE_CV
        reader.assume("response spread", f"CV {cv:g}, clipped lognormal", "a wider spread lengthens the rollout tail")
    longest = reader.count("response_max", DEFAULT_RESPONSE_TOKENS, MAX_TOKENS, "longest response", "give --response")
    prompt_max = reader.count("prompt_max", DEFAULT_PROMPT_TOKENS, MAX_TOKENS, "longest prompt", "give --prompt")
    prompt_mean = _read_prompt_mean(reader, prompt_max or DEFAULT_PROMPT_TOKENS)
    if longest is None or prompt_max is None or mean is None or cv is None or "response_max" in reader.wrong:
        return None
    if mean > longest:
        reader.fail("response_mean", f"mean {mean:g} is above the longest response", f"at most {longest}")
        return None
    _note_positions(reader, actor, prompt_max + longest)
    return prompt_max, prompt_mean, LengthLaw(mean_tokens=mean, cv=cv, max_tokens=longest)


def _read_prompt_mean(reader: _Reader, prompt_max: int) -> float:
    mean = reader.number("prompt_mean", 1.0, MAX_TOKENS)
    if mean is not None and mean > prompt_max and "prompt_max" not in reader.wrong:
        reader.fail("prompt_mean", f"mean {mean:g} is above the longest prompt", f"at most {prompt_max}")
    if mean is not None:
        return mean
    default = max(1.0, prompt_max * DEFAULT_MEAN_SHARE)
    if reader.spec.prompt_mean is None:
        reader.assume("mean prompt", f"{default:g} tokens, half of the longest", "prefill only; give --prompt-mean")
    return default


def _note_positions(reader: _Reader, actor: Model | None, longest: int) -> None:
    """Longer than the model's positions is legal with RoPE scaling, but should not go unnoticed."""
    if actor is not None and actor.max_positions is not None and longest > actor.max_positions:
        reader.assume(
            "positions",
            f"{longest:,} tokens with RoPE scaling",
            f"the model's configuration ends at {actor.max_positions:,}; change it first: engines refuse more",
            "given lengths",
        )


def _read_group(reader: _Reader, algorithm: Algorithm | None) -> int:
    if algorithm is None:
        return reader.spec.group_size or 1
    group = reader.count("group_size", None, MAX_GROUP, "", "")
    if group is None:
        group = algorithm.default_group_size
        reader.assume(
            "group size", f"{group}", "scales samples per iteration; give --group", f"{algorithm.title} default"
        )
    if group < algorithm.min_group_size and "group_size" not in reader.wrong:
        reader.fail("group_size", f"{group} is too small for {algorithm.title}", f"at least {algorithm.min_group_size}")
    return group


def _read_optimizer(reader: _Reader, num_prompts: int | None) -> tuple[int, int]:
    """Optimizer steps per epoch and epochs."""
    prompts = num_prompts or DEFAULT_PROMPTS
    steps = reader.count("num_optimizer_steps", None, MAX_PROMPTS, "", "")
    if steps is None:
        steps = max(k for k in range(1, DEFAULT_OPTIMIZER_STEPS + 1) if prompts % k == 0)
        reader.assume(
            "optimizer steps",
            f"{steps} per iteration",
            "1 is on-policy and needs no old log-probs; more wait for gradients more often",
        )
    elif prompts % steps and not reader.wrong & {"num_prompts", "num_optimizer_steps"}:
        divisors = [k for k in range(1, prompts + 1) if prompts % k == 0] if prompts <= MAX_PROMPTS else []
        close = sorted(divisors, key=lambda k: abs(k - steps))[:2]
        reader.fail(
            "num_optimizer_steps",
            f"{prompts} prompts cannot be split into {steps} equal mini-batches",
            f"a divisor of {prompts}, such as {' or '.join(str(k) for k in sorted(close))}",
        )
    epochs = reader.count("num_epochs", 1, 64, "epochs", "")
    return steps, epochs or 1


def _read_kl(reader: _Reader, algorithm: Algorithm | None) -> float:
    value = reader.number("kl_coefficient", 0.0, 100.0)
    if value is not None or algorithm is None:
        return value or 0.0
    default = algorithm.default_kl_coefficient
    effect = "0 removes the reference model and its stage; give --kl" if default else "no reference model; give --kl"
    if reader.spec.kl_coefficient is None:
        reader.assume("KL coefficient", f"{default:g}", effect, f"{algorithm.title} default")
    return default


def _read_critic(reader: _Reader, algorithm: Algorithm | None, actor: Model | None) -> Model | None:
    if algorithm is None or not algorithm.has_critic:
        if reader.spec.critic is not None and algorithm is not None:
            users = ", ".join(name for name in algorithm_names() if (a := find_algorithm(name)) and a.has_critic)
            reader.fail("critic", f"{algorithm.title} has no critic", f"only for {users}")
        return None
    if reader.spec.critic is None:
        if actor is not None:
            reader.assume("critic", actor.id, "a smaller critic saves GPU memory and time; give --critic")
        return actor
    return reader.model("critic", actor, "")


_NEEDS_MODEL = (RewardKind.MODEL, RewardKind.PROCESS_MODEL, RewardKind.JUDGE)


def _read_reward(reader: _Reader, actor: Model | None, hardware: Hardware | None) -> Reward | None:
    spec = reader.spec
    kind = reader.choice("reward", RewardKind)
    if spec.reward is None:
        kind = RewardKind.RULE if spec.reward_model is None else RewardKind.MODEL
        value = "rule on the host, time negligible" if kind is RewardKind.RULE else "model: one forward pass"
        reader.assume("reward", value, "a reward model or judge adds a stage and a model; give --reward")
    if kind is None:
        return None
    _reject_unused(reader, kind)
    model = None
    if kind in _NEEDS_MODEL:
        if spec.reward_model is None and actor is not None:
            reader.assume("reward model", actor.id, "a smaller model saves GPU memory and time; give --reward-model")
        model = reader.model("reward_model", actor, "")
    latency = reader.quantity("reward_latency", Dimension.TIME)
    judge_tokens = reader.count("judge_tokens", None, MAX_TOKENS, "", "")
    parallel = reader.count("reward_parallel", None, MAX_PROMPTS, "", "")
    if kind is RewardKind.SANDBOX and spec.reward_latency is None:
        reader.fail("reward_latency", "is missing for a sandbox reward", "time per response, such as '2 s'")
    if reader.problems:
        return None
    reward = Reward(kind=kind, model=model, latency_s=latency or 0.0)
    if judge_tokens is not None:
        reward = replace(reward, judge_tokens=judge_tokens)
    elif kind is RewardKind.JUDGE:
        reader.assume("judge", f"{reward.judge_tokens} tokens per verdict", "scales the reward stage; --judge-tokens")
    if parallel is not None:
        reward = replace(reward, num_parallel=parallel)
    elif kind is RewardKind.SANDBOX:
        reader.assume("sandboxes", f"{reward.num_parallel} at a time", "scales the reward stage; --reward-parallel")
    return _within_cores(reader, reward, hardware)


def _within_cores(reader: _Reader, reward: Reward, hardware: Hardware | None) -> Reward:
    """No more sandboxes at a time than the usable nodes have CPU cores, where these are known for every pool."""
    cluster = hardware.cluster if hardware is not None else None
    if cluster is None or reward.kind is not RewardKind.SANDBOX:
        return reward
    num_cores = cluster.num_cpu_cores
    if num_cores is None or reward.num_parallel <= num_cores:
        return reward
    reader.assume(
        "sandboxes within CPU cores",
        f"{num_cores:,} at a time instead of {reward.num_parallel:,}",
        "one core each; more cores per node shorten the reward stage",
        "CPU cores of the cluster",
    )
    return replace(reward, num_parallel=num_cores)


def _reject_unused(reader: _Reader, kind: RewardKind) -> None:
    """A value that this kind of reward would ignore is a contradiction."""
    used = {
        "reward_model": kind in _NEEDS_MODEL,
        "judge_tokens": kind is RewardKind.JUDGE,
        "reward_latency": kind is RewardKind.SANDBOX,
        "reward_parallel": kind is RewardKind.SANDBOX,
    }
    for name, is_used in used.items():
        if not is_used and getattr(reader.spec, name) is not None:
            reader.fail(name, f"has no meaning for reward kind {kind.value!r}")


def _read_precisions(reader: _Reader, hardware: Hardware | None) -> tuple[Precision, Precision]:
    """Precision of training and of rollout; each must exist on at least one pool."""
    train = reader.choice("train_precision", Precision)
    rollout = reader.choice("rollout_precision", Precision)
    if reader.spec.train_precision is None:
        reader.assume("training precision", Precision.BF16.value, "changes what is learned, so never changed unasked")
    if reader.spec.rollout_precision is None:
        reader.assume("rollout precision", Precision.BF16.value, "fp8 is faster and changes what is sampled")
    nodes = [hardware.open_node] if hardware is not None and hardware.open_node is not None else []
    if hardware is not None and hardware.cluster is not None:
        nodes = [pool.node for pool in hardware.cluster.pools]
    for name, value in (("train_precision", train), ("rollout_precision", rollout)):
        if value is not None and nodes and not any(node.gpu.supports(value) for node in nodes):
            known = [p.value for p in Precision if any(node.gpu.supports(p) for node in nodes)]
            reader.fail(name, f"{nodes[0].gpu.name} cannot compute in {value.value}", ", ".join(known))
    default = Precision.BF16
    lacks_default = bool(nodes) and not any(node.gpu.supports(default) for node in nodes)
    if lacks_default and None in (train, rollout) and not reader.wrong & {"train_precision", "rollout_precision"}:
        lacking = " and ".join(dict.fromkeys(node.gpu.name for node in nodes))
        reader.fail("gpus", f"{lacking} cannot compute in {default.value}, the default precision", "a GPU that can")
    return train or Precision.BF16, rollout or Precision.BF16


def _read_margin(reader: _Reader) -> float:
    text = reader.spec.memory_margin
    if text is None:
        reader.assume(
            "memory margin",
            f"{DEFAULT_MEMORY_MARGIN:.0%} of GPU memory and host RAM kept free",
            "less allows denser plans and more risk",
        )
        return DEFAULT_MEMORY_MARGIN
    stripped = text.strip()
    try:
        value = float(stripped[:-1]) / 100 if stripped.endswith("%") else float(stripped)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 0.9:
        reader.fail("memory_margin", f"{text[:40]!r} is no share", "0% to 90%, such as 10%")
        return DEFAULT_MEMORY_MARGIN
    return value


def _read_limits(reader: _Reader, hardware: Hardware | None) -> Limits:
    spec = reader.spec
    objective = reader.choice("objective", Objective)
    if spec.objective is None:
        is_open = hardware is not None and hardware.cluster is None
        objective = Objective.GPUS if is_open else Objective.TIME
        reader.assume(
            "objective",
            "fewest GPUs, then time" if is_open else "time: a given cluster is billed whole, so fastest is cheapest",
            "give --objective time, cost or gpus",
        )
    deadline_s = reader.quantity("deadline", Dimension.TIME)
    budget_usd = reader.quantity("budget", Dimension.MONEY)
    steps = reader.count("steps", None, MAX_STEPS, "", "")
    if steps is None:
        for name in ("deadline", "budget"):
            if getattr(spec, name) is not None:
                reader.fail("steps", f"is missing: a {name} is for the whole run", "--steps N")
    elif spec.deadline is None and spec.budget is None:
        reader.fail("steps", "has no effect without a deadline or a budget", "--deadline 12h or --budget '5000 USD'")
    if budget_usd is not None:
        _require_prices(reader, hardware)
    max_gpus = reader.count("max_gpus", None, 10**6, "", "")
    time_limit = reader.quantity("time_limit", Dimension.TIME)
    permitted = read_permissions(spec, reader.problems)
    framework = _read_framework(reader)
    check_policy(spec, reader.problems, permitted.policy, framework)
    return Limits(
        max_staleness=permitted.max_staleness,
        allow_partial_rollouts=permitted.allow_partial_rollouts,
        fusions=permitted.fusions,
        sharded_syncs=permitted.sharded_syncs,
        policy=permitted.policy,
        must_share=permitted.must_share,
        must_not_share=permitted.must_not_share,
        fixed=permitted.fixed,
        num_alternatives=permitted.num_alternatives,
        objective=objective or Objective.TIME,
        max_iteration_s=deadline_s / steps if deadline_s and steps else None,
        max_gpus=max_gpus,
        max_usd_per_iteration=budget_usd / steps if budget_usd and steps else None,
        framework=framework,
        time_limit_s=time_limit or DEFAULT_TIME_LIMIT_S,
        solver=_read_solver(reader),
        seed=_read_seed(reader),
    )


def _read_framework(reader: _Reader) -> str | None:
    """The name as the rules spell it."""
    from planner.files.framework import load_framework

    name, where = reader.spec.framework, reader.spec.place("framework")
    if name is None:
        return None
    try:
        return load_framework(name).name
    except InvalidInputError as error:
        reader.problems.add(InvalidInputError(str(error), where=where))
        return None


def _require_prices(reader: _Reader, hardware: Hardware | None) -> None:
    """A budget in USD needs a price for everything that is billed; an unknown price is never zero."""
    if hardware is None:
        return
    missing = (
        [pool.name for pool in hardware.cluster.pools if pool.usd_per_gpu_hour is None] if hardware.cluster else []
    )
    if hardware.open_node is not None and hardware.open_usd_per_gpu_hour is None:
        missing = [hardware.open_node.gpu.id]
    for name in missing:
        reader.fail("budget", f"no price is known for {name}", f"--price {name}=2.50 (USD per GPU-hour)")


def _read_solver(reader: _Reader) -> str:
    solver = reader.spec.solver
    if solver is not None and solver not in SOLVERS:
        reader.fail("solver", f"{solver[:60]!r} is not known", ", ".join(SOLVERS), nearest(solver, SOLVERS))
    return solver or SOLVERS[0]


def _read_seed(reader: _Reader) -> int:
    seed = reader.spec.seed
    if seed is not None and not 0 <= seed < 2**31:
        reader.fail("seed", f"{seed} is out of range", "an integer from 0 to 2147483647")
    return seed or 0
