"""Our plan and those of the peers on each instance, every instance in a process of its own (for its peak memory).

    python -m benchmarks.peers [--instances 01,03-ppo] [--seconds 10] [--markdown]

Exit code 5 when a peer found a plan that our proof rules out: then the proof, the search or the pricing is wrong.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from planner.errors import DifferenceError, RlplanError
from planner.report.baselines import relative_words

INSTANCES = Path(__file__).parent / "instances"


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerRow:
    """What one peer reached on one instance; `relative` is its seconds per iteration over the optimum's."""

    name: str
    relative: float | None
    own_ratio: float | None
    """What its own objective said of its plan, over our pricing of the same plan."""
    num_gpus: int
    verdict: str
    structure: str
    problem: str
    found_after_s: float
    took_s: float
    evaluations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceRow:
    """What we reached on one instance, and the peers."""

    name: str
    problem: str
    time_s: float = 0.0
    bound_s: float = 0.0
    gap_ratio: float = 0.0
    status: str = ""
    first_s: float = 0.0
    proof_s: float = 0.0
    num_priced: int = 0
    peak_rss_bytes: float = 0.0
    num_gpus: int = 0
    structure: str = ""
    relative: float = 1.0
    """Our plan over the optimum: what was given up for fewer GPUs, headroom or simplicity."""
    peers: tuple[PeerRow, ...] = ()
    impossible: tuple[str, ...] = ()


def measure(file: Path, search_s: float) -> InstanceRow:
    """Plans an instance, then runs the peers on the same request."""
    from planner.domain.plan import Status
    from planner.files.workload import build_request
    from planner.files.workload_file import read_workload
    from planner.peers.compare import compare_request, synchronous
    from planner.pipeline import make_plan

    request = synchronous(build_request(read_workload(file)))
    try:
        plan = make_plan(request)
    except RlplanError as error:
        return InstanceRow(name=file.stem, problem=str(error))
    assert plan.run is not None
    comparison = compare_request(request, search_s=search_s)
    assert comparison is not None
    reference_s = plan.bound if plan.status is Status.OPTIMAL else plan.time_s
    return InstanceRow(
        name=file.stem,
        problem="",
        time_s=plan.time_s,
        bound_s=plan.bound,
        gap_ratio=plan.gap_ratio,
        status=plan.status.value,
        first_s=plan.run.time_to_first_s,
        proof_s=plan.run.time_s,
        num_priced=plan.search.num_priced,
        peak_rss_bytes=plan.run.peak_rss_bytes,
        num_gpus=plan.num_gpus,
        structure=comparison.ours.structure,
        relative=plan.time_s / reference_s,
        peers=tuple(
            PeerRow(
                name=peer.name,
                relative=None if peer.time_s is None else peer.time_s / reference_s,
                own_ratio=None
                if peer.time_s is None or not peer.own_objective_s
                else peer.own_objective_s / peer.time_s,
                num_gpus=peer.num_gpus,
                verdict="" if peer.verdict is None else peer.verdict.value,
                structure=peer.structure,
                problem=peer.problem,
                found_after_s=peer.found_after_s,
                took_s=peer.took_s,
                evaluations=peer.evaluations,
            )
            for peer in comparison.peers
        ),
        impossible=tuple(peer.name for peer in comparison.impossible()),
    )


def in_process(file: Path, search_s: float) -> InstanceRow:
    """`measure` in a fresh process."""
    command = [sys.executable, "-m", "benchmarks.peers", "--one", str(file), "--seconds", str(search_s)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    values = json.loads(output)
    peers = tuple(PeerRow(**peer) for peer in values.pop("peers"))
    return InstanceRow(**{**values, "impossible": tuple(values["impossible"])}, peers=peers)


def print_row(row: InstanceRow) -> None:
    """As text: our plan in one line, each peer in one."""
    if row.problem:
        print(f"{row.name}\n  no plan: {row.problem}\n")
        return
    print(
        f"{row.name}\n  rlplan {row.time_s:.1f} s, bound {row.bound_s:.1f} s, gap {row.gap_ratio:.2%} ({row.status}); "
        f"first plan after {row.first_s:.2f} s, proof after {row.proof_s:.2f} s; {row.num_priced:,} candidates; "
        f"peak {row.peak_rss_bytes / 1e6:.0f} MB; {row.num_gpus:,} GPUs\n  {row.structure}"
    )
    for peer in row.peers:
        if peer.relative is None:
            print(f"    {peer.name:32} no plan: {peer.problem}")
            continue
        print(
            f"    {peer.name:32} {relative_words(peer.relative):>8}  {peer.verdict:9} found after "
            f"{peer.found_after_s:6.2f} s of {peer.took_s:6.2f} s, {peer.evaluations:9,} looked at  {peer.structure}"
        )
    for name in row.impossible:
        print(f"    FAULT: {name} is below the proven bound")
    print(flush=True)


def print_markdown(rows: list[InstanceRow]) -> None:
    """As two tables."""
    print("| instance | s per iteration | gap | first plan s | proof s | candidates | peak MB |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        print(
            f"| {row.name} | {row.time_s:.1f} | {row.gap_ratio:.2%} | {row.first_s:.2f} | {row.proof_s:.2f} "
            f"| {row.num_priced:,} | {row.peak_rss_bytes / 1e6:.0f} |"
        )
    names = list(dict.fromkeys(peer.name for row in rows for peer in row.peers))
    print(f"\n| instance | rlplan | {' | '.join(names)} |\n|{'---|' * (2 + len(names))}")
    for row in rows:
        cells = {
            peer.name: "none" if peer.relative is None else f"{relative_words(peer.relative)} ({peer.took_s:.2g} s)"
            for peer in row.peers
        }
        print(f"| {row.name} | {relative_words(row.relative)} | {' | '.join(cells.get(name, '') for name in names)} |")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--instances", default="", help="beginnings of names, joined by commas [all]")
    parser.add_argument("--seconds", type=float, default=10.0, help="for peers that search until they are stopped [10]")
    parser.add_argument("--markdown", action="store_true", help="tables for a document")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one is not None:
        print(json.dumps(asdict(measure(arguments.one, arguments.seconds))))
        return
    wanted = tuple(arguments.instances.split(","))
    files = [file for file in sorted(INSTANCES.glob("*.yaml")) if file.stem.startswith(wanted)]
    if not files:
        parser.error(f"no instance begins with {arguments.instances!r}; there are {sorted(INSTANCES.glob('*.yaml'))}")
    rows = []
    for file in files:
        rows.append(in_process(file, arguments.seconds))
        if not arguments.markdown:
            print_row(rows[-1])
    if arguments.markdown:
        print_markdown(rows)
    if any(row.impossible for row in rows):
        sys.exit(DifferenceError.exit_code)


if __name__ == "__main__":
    main()
