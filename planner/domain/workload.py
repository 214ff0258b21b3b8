"""What the user wants to run: algorithm, models, batch, lengths, precision and limits."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from planner.domain.algorithm import Algorithm
from planner.domain.hardware import Precision
from planner.domain.lengths import LengthLaw
from planner.domain.model import Model


class RewardKind(StrEnum):
    """How a response is scored."""

    RULE = "rule"
    """A function on the host; its time is negligible."""
    MODEL = "model"
    """Outcome reward model: one forward pass."""
    PROCESS_MODEL = "process-model"
    """Process reward model: one forward pass, a score per step."""
    JUDGE = "judge"
    """Generative judge: an engine writes a verdict of `judge_tokens`."""
    SANDBOX = "sandbox"
    """Tool or code execution on the host with a latency per response."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reward:
    """Scoring of responses. `model` is set exactly for MODEL, PROCESS_MODEL and JUDGE."""

    kind: RewardKind
    model: Model | None = None
    judge_tokens: int = 512
    latency_s: float = 0.0
    """SANDBOX: seconds per response."""
    num_parallel: int = 256
    """SANDBOX: responses scored at the same time."""

    def __post_init__(self) -> None:
        needs_model = self.kind in (RewardKind.MODEL, RewardKind.PROCESS_MODEL, RewardKind.JUDGE)
        if needs_model != (self.model is not None):
            raise ValueError(f"reward kind {self.kind.value!r} {'needs' if needs_model else 'takes no'} model")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLoad:
    """Sequences that a forward pass or a training step works on, over one iteration.

    Attention cost needs the second moment: a batch of unequal sequences costs
    num_sequences * mean_square_tokens, not (sum of tokens)**2 / num_sequences.
    """

    num_sequences: float
    mean_tokens: float
    mean_square_tokens: float
    max_tokens: int

    @property
    def num_tokens(self) -> float:
        return self.num_sequences * self.mean_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationLoad:
    """Sequences that an engine generates in one iteration; `num_shared` of them share one prompt."""

    num_sequences: int
    num_shared: int
    prompt_mean_tokens: float
    prompt_max_tokens: int
    response: LengthLaw


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One RL iteration. Token counts per sequence; batch sizes in prompts."""

    algorithm: Algorithm
    actor: Model
    critic: Model | None
    reward: Reward
    num_prompts: int
    group_size: int
    prompt_mean_tokens: float
    prompt_max_tokens: int
    response: LengthLaw
    num_optimizer_steps: int
    """Mini-batches per epoch; the policy changes after each."""
    num_epochs: int
    kl_coefficient: float
    """0 removes the reference model."""
    needs_old_logprob: bool
    """The trainer recomputes log-probs under the policy that generated."""
    train_precision: Precision
    rollout_precision: Precision
    lora_rank: int | None
    memory_margin_ratio: float
    """Share of GPU memory that no plan may use."""

    def __post_init__(self) -> None:
        for name in ("num_prompts", "group_size", "prompt_max_tokens", "num_optimizer_steps", "num_epochs"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.algorithm.has_critic != (self.critic is not None):
            raise ValueError(f"{self.algorithm.title} {'needs' if self.algorithm.has_critic else 'has no'} critic")

    @property
    def has_reference(self) -> bool:
        return self.kl_coefficient > 0

    @property
    def num_samples(self) -> int:
        """Responses that are trained on per iteration."""
        return self.num_prompts * self.group_size

    @property
    def num_generated(self) -> int:
        """Responses generated per iteration, discarded groups and greedy baselines included."""
        kept = self.num_samples + self.num_prompts * self.algorithm.num_greedy_baselines
        return round(kept * self.algorithm.oversampling_ratio)

    @property
    def max_tokens(self) -> int:
        """Longest sequence: prompt and response."""
        return self.prompt_max_tokens + self.response.max_tokens

    @property
    def mean_tokens(self) -> float:
        return self.prompt_mean_tokens + self.response.mean_tokens

    @property
    def mean_square_tokens(self) -> float:
        """E[(P + L)**2] with prompt and response independent; the prompt law is taken as its mean."""
        mean = self.response.mean_tokens
        return self.prompt_mean_tokens**2 + 2 * self.prompt_mean_tokens * mean + self.response.mean_square_tokens

    def token_load(self, num_sequences: float) -> TokenLoad:
        return TokenLoad(
            num_sequences=num_sequences,
            mean_tokens=self.mean_tokens,
            mean_square_tokens=self.mean_square_tokens,
            max_tokens=self.max_tokens,
        )

    @property
    def rollout_load(self) -> GenerationLoad:
        return GenerationLoad(
            num_sequences=self.num_generated,
            num_shared=self.group_size,
            prompt_mean_tokens=self.prompt_mean_tokens,
            prompt_max_tokens=self.prompt_max_tokens,
            response=self.response,
        )

    @property
    def judge_load(self) -> GenerationLoad:
        """Generation work of a judge: reads prompt and response, writes a short verdict."""
        return GenerationLoad(
            num_sequences=self.num_generated,
            num_shared=1,
            prompt_mean_tokens=self.mean_tokens,
            prompt_max_tokens=self.max_tokens,
            response=LengthLaw(mean_tokens=self.reward.judge_tokens, cv=0.0, max_tokens=self.reward.judge_tokens),
        )
