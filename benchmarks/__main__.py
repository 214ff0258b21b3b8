"""Print candidates per second, and `rlplan plan` against the import time of its own solver stack.

Times are ratios within one run, since machines differ: the yardstick is a Python process that only imports
numpy, networkx and CP-SAT.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass

from benchmarks.pricing import PricingRate, pricing_rates

YARDSTICK = [sys.executable, "-c", "import numpy, networkx, ortools.sat.python.cp_model"]
BATCH = ["--prompt", "1024", "--response", "8192", "--prompts", "256"]
REPEATS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One `rlplan plan` call, and the largest ratio to the yardstick that we aim at (None: reported only)."""

    title: str
    arguments: tuple[str, ...]
    target_ratio: float | None


INSTANCES = (
    Instance(title="GRPO 8 H100", arguments=("--gpus", "8xh100", "--group", "16"), target_ratio=None),
    Instance(title="GRPO 32 H100", arguments=("--gpus", "32xh100", "--group", "16"), target_ratio=3.0),
    Instance(title="GRPO 256 H100", arguments=("--gpus", "256xh100", "--group", "16"), target_ratio=None),
    Instance(title="GRPO 1,024 H100", arguments=("--gpus", "1024xh100", "--group", "16"), target_ratio=8.0),
    Instance(
        title="PPO + critic, reference, reward model, 256 H100",
        arguments=("--algorithm", "ppo", "--reward", "model", "--gpus", "256xh100", "--group", "16"),
        target_ratio=None,
    ),
)


def process_s(command: list[str]) -> tuple[float, str]:
    """Median wall seconds of a whole process, and what it printed last."""
    seconds, output = [], ""
    for _ in range(REPEATS):
        start = time.perf_counter()
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds), output


def print_rates(rates: list[PricingRate]) -> None:
    print(f"{'pricing, one core':46} {'candidates':>11} {'per second':>12} {'target':>10}")
    for rate in rates:
        verdict = "met" if rate.per_s >= rate.target_per_s else "MISSED"
        print(f"{rate.title:46} {rate.num_priced:11,} {rate.per_s:12,.0f} {rate.target_per_s:10,.0f} {verdict}")


def print_instances() -> None:
    yardstick_s, _ = process_s(YARDSTICK)
    print(f"\nyardstick (imports only): {yardstick_s:.2f} s; whole `rlplan plan` processes, median of {REPEATS}:")
    print(
        f"{'Qwen3-32B, 1024 + 8192 tokens, 256 x 16':50} {'wall s':>7} {'ratio':>6} {'target':>7} "
        f"{'first s':>8} {'total s':>8} {'RSS MB':>7} {'priced':>9} {'status':>9} {'gap':>7}"
    )
    for instance in INSTANCES:
        command = [sys.executable, "-m", "planner", "plan", "qwen3-32b", *BATCH, *instance.arguments, "--json"]
        wall_s, output = process_s(command)
        plan = json.loads(output)
        ratio = wall_s / yardstick_s
        target = "" if instance.target_ratio is None else f"<= {instance.target_ratio:g}"
        run = plan["run"]
        print(
            f"{instance.title:50} {wall_s:7.2f} {ratio:6.2f} {target:>7} {run['time_to_first_s']:8.2f} "
            f"{run['time_s']:8.2f} {run['peak_rss_bytes'] / 1e6:7.0f} {plan['search']['num_priced']:9,} "
            f"{plan['status']:>9} {plan['objective']['gap_ratio']:7.2%}"
        )


if __name__ == "__main__":
    print_rates(pricing_rates())
    print_instances()
