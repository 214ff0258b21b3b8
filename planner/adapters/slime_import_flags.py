"""slime's flags: its own, Megatron-LM's and SGLang's. Its parser ignores what it does not know."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from planner.adapters.findings import Finding, Severity
from planner.adapters.hydra import Config, Value, parse_value
from planner.adapters.import_flags import FlagUse, nearest_flag, repeated_findings
from planner.adapters.shell_script import shown

DATA = Path(__file__).parent / "data" / "imports" / "slime_flags.json"
ALIASES = {
    "sglang-data-parallel-size": "sglang-dp-size",
    "sglang-expert-parallel-size": "sglang-ep-size",
    "sglang-pipeline-parallel-size": "sglang-pp-size",
    "sglang-ep": "sglang-ep-size",
    "sglang-dp": "sglang-dp-size",
}
"""Other spellings of one flag in SGLang's parser (sglang/srt/server_args.py)."""
GONE: dict[str, str | None] = {
    "rollout-num-engines": None,
    "offload-train-mode": None,
    "use-kl": "use-kl-loss",
    "sglang-enable-ep-moe": "sglang-ep-size",
    "update-weight-encoding": "update-weight-delta-encoding",
    "update-weight-buffer-size": None,
    "update-weight-interval": "update-weights-interval",
}
"""Flags of earlier checkouts, which nothing reads any more."""
DEFAULTS: dict[str, Value] = {
    "actor-num-nodes": 1, "actor-num-gpus-per-node": 8, "rollout-num-gpus": None, "rollout-num-gpus-per-engine": 1,
    "num-gpus-per-node": 8, "colocate": False, "offload": False, "offload-train": None, "offload-rollout": None,
    "tensor-model-parallel-size": 1, "pipeline-model-parallel-size": 1, "context-parallel-size": 1,
    "expert-model-parallel-size": 1, "expert-tensor-parallel-size": None, "sequence-parallel": False,
    "n-samples-per-prompt": 1, "global-batch-size": None, "micro-batch-size": 1, "use-dynamic-batch-size": False,
    "max-tokens-per-gpu": None, "log-probs-max-tokens-per-gpu": None, "advantage-estimator": "grpo",
    "kl-coef": 0.0, "kl-loss-coef": 0.0, "use-kl-loss": False, "update-weights-interval": 1,
    "loss-type": "policy_loss", "sglang-server-concurrency": 512, "optimizer-offload-fraction": 1.0,
    "sglang-pp-size": 1, "sglang-dp-size": 1, "sglang-ep-size": 1, "sglang-enable-dp-attention": False,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """Flags that slime's parsers know."""

    version: str
    flags: frozenset[str]
    switches: frozenset[str]


@cache
def load_tables() -> Tables:
    """The shipped table, read once."""
    data = json.loads(DATA.read_text(encoding="utf-8"))
    return Tables(version=data["version"], flags=frozenset(data["flags"]), switches=frozenset(data["switches"]))


def apply(config: Config, uses: Iterable[FlagUse], tables: Tables) -> list[Finding]:
    """Sets all flags; says which ones nothing reads."""
    found = tuple(uses)
    findings = repeated_findings(found)
    for use in found:
        name = ALIASES.get(use.name, use.name)
        if use.name not in tables.flags:
            findings.append(_unread(use, tables))
            continue
        if name.startswith("no-") and name[3:] in tables.flags and name[3:].startswith("offload-"):
            config.set(name[3:], False, use.place)
        else:
            config.set(name, use.value, use.place)
    return findings


def apply_given(config: Config, given: Mapping[str, str], tables: Tables) -> None:
    """Values of `--set` that name a flag."""
    for key, text in given.items():
        name = key.lstrip("-")
        if name in tables.flags or name in DEFAULTS:
            config.set(ALIASES.get(name, name), parse_value(text), "--set")


def _unread(use: FlagUse, tables: Tables) -> Finding:
    if use.name in GONE:
        new = GONE[use.name]
        return Finding(
            place=use.place, severity=Severity.WARNING,
            message=f"--{use.name} is of an earlier slime: nothing reads it any more, and slime says nothing",
            remedy=f"write --{new}" if new else "remove it",
        )  # fmt: skip
    return Finding(
        place=use.place,
        severity=Severity.WARNING,
        message=f"nothing in slime {tables.version} reads --{shown(use.name)[:60]}, and slime says nothing",
        remedy=nearest_flag(use.name, sorted(tables.flags)) or "remove it",
    )
