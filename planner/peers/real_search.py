"""ReaL's plan search (Metropolis sampling over one candidate per worker) over our tables, with its defects repaired.

A state gives every worker an option and a range of GPUs that fits it. A move draws a (worker, other candidate) pair
uniformly; a faster state is taken, a slower one with probability exp(-beta * floor(delta / 0.1 s)), delta being that of
five iterations as in ReaL. Repaired or tuned, so that it is no straw man: one unit of time; iterations follow each
other; memory is a hard filter on acceptance (a start that does not fit is first walked to one that does); candidates
are sorted before the cut, the best of every group size first; several temperatures and seeds share the time. Memory
and times are those of our tables, and orders of stages are chosen best, where ReaL takes them as they become ready.
"""

from __future__ import annotations

import random
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import exp, floor

import numpy as np

from planner.domain.stages import WorkerName
from planner.peers.meshes import Mesh, structure_of
from planner.peers.scoring import Score, Scorer
from planner.peers.task import (
    PeerPlan,
    PeerTask,
    Stopwatch,
    configured,
    no_plan,
    peer_plan,
    with_rows,
)

NAME = "ReaL, search"
DESCRIPTION = "Metropolis sampling over options and ranges of GPUs"
BETAS = (0.001, 0.01, 0.1, 1.0)
"""Inverse temperatures per tenth of a second; ReaL's default is the first, and the second was best at 128 GPUs."""
NUM_SEEDS = 2
MAX_OPTIONS = 1000
"""Options of a worker that survive the cut, as in ReaL (there with their ranges of GPUs)."""
NUM_ITERATIONS = 5
"""Iterations that ReaL's simulator unrolls; delta counts all of them."""
TICK_S = 0.1
_CHECK_EVERY = 64
"""Moves between two looks at the clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """An option of a worker on a pool; `num_places` is how many aligned ranges of GPUs it can take there."""

    pool: str
    row: int
    num_gpus: int
    num_places: int
    step: int
    """GPUs between two ranges."""

    def mesh(self, place: int) -> Mesh:
        return Mesh(pool=self.pool, first_gpu=place * self.step, num_gpus=self.num_gpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A candidate and a range of GPUs per worker, in the order of the task's workers."""

    candidates: tuple[Candidate, ...]
    meshes: tuple[Mesh, ...]

    def moved(self, worker: int, candidate: Candidate, place: int) -> State:
        i = worker
        return State(
            candidates=(*self.candidates[:i], candidate, *self.candidates[i + 1 :]),
            meshes=(*self.meshes[:i], candidate.mesh(place), *self.meshes[i + 1 :]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The fastest state that fits, and when it was found."""

    state: State
    time_s: float
    after_s: float


def real_search(
    task: PeerTask, *, search_s: float, seed: int = 0, betas: Sequence[float] = BETAS, max_moves: int | None = None
) -> PeerPlan:
    """The best plan of all chains within `search_s` seconds, or `max_moves` moves per chain if that comes first.

    With `max_moves` and time to spare, equal seeds give equal plans.
    """
    watch = Stopwatch()
    workers = task.workers
    pools = [candidates(task, worker) for worker in workers]
    if not all(pools):
        lacking = next(w for w, found in zip(workers, pools, strict=True) if not found)
        problem = f"{lacking.value} has no option"
        return no_plan(name=NAME, description=DESCRIPTION, problem=problem, took_s=watch.elapsed_s, evaluations=0)
    scorer = Scorer(task)
    sampler = Sampler(pools)
    chains = [(beta, seed * NUM_SEEDS + k) for k in range(NUM_SEEDS) for beta in betas]
    best: Found | None = None
    moves = 0
    for i, (beta, number) in enumerate(chains):
        share_s = (search_s - watch.elapsed_s) / (len(chains) - i)
        chain = Chain(scorer, sampler, beta=beta, random_source=random.Random(number))
        found = chain.run(time.perf_counter() + share_s, max_moves, watch)
        moves += chain.moves
        if found is not None and (best is None or found.time_s < best.time_s):
            best = found
    if best is None:
        problem = f"no state that fits in {moves:,} moves"
        return no_plan(name=NAME, description=DESCRIPTION, problem=problem, took_s=watch.elapsed_s, evaluations=moves)
    took_s = watch.elapsed_s
    chosen = zip(workers, best.state.candidates, strict=True)
    items = with_rows(task, {worker: (candidate.pool, candidate.row) for worker, candidate in chosen})
    structure = structure_of(dict(zip(workers, best.state.meshes, strict=True)))
    priced = configured(task, structure, items)
    if priced is None or abs(priced.solution.time_s - best.time_s) > 1e-6 * best.time_s:
        raise RuntimeError(
            f"the sampled plan takes {best.time_s} s by its own count, which our pricing does not confirm"
        )
    return peer_plan(
        task, priced, name=NAME, description=DESCRIPTION, found_after_s=best.after_s, took_s=took_s, evaluations=moves
    )


def candidates(task: PeerTask, worker: WorkerName) -> tuple[Candidate, ...]:
    """The options of a worker on all pools, cut to MAX_OPTIONS: fastest of each size first, then second, ..."""
    ranked: list[tuple[int, float, Candidate]] = []
    for pool in task.pools:
        table = task.problem.table(worker, pool.name)
        if table is None:
            continue
        seconds = table.stage_time_s.sum(axis=0)
        seen: dict[int, int] = {}
        for row in np.argsort(seconds, kind="stable"):
            num_gpus = int(table.num_gpus[row])
            step = min(num_gpus, pool.node.gpus_per_node)
            item = Candidate(
                pool=pool.name,
                row=int(row),
                num_gpus=num_gpus,
                num_places=(pool.num_gpus - num_gpus) // step + 1,
                step=step,
            )
            rank = seen.get(num_gpus, 0)
            seen[num_gpus] = rank + 1
            ranked.append((rank, float(seconds[row]), item))
    ranked.sort(key=lambda entry: entry[:2])
    kept = ranked[:MAX_OPTIONS]
    return tuple(item for _, _, item in sorted(kept, key=lambda entry: entry[1]))


class Sampler:
    """Draws (worker, candidate, range) uniformly."""

    def __init__(self, pools: Sequence[tuple[Candidate, ...]]) -> None:
        self.pools = pools
        self._flat = [(w, item) for w, pool in enumerate(pools) for item in pool]
        self._ends = list(accumulate(item.num_places for _, item in self._flat))

    def start(self) -> State:
        """The fastest candidate of every worker."""
        first = tuple(pool[0] for pool in self.pools)
        return State(candidates=first, meshes=tuple(item.mesh(0) for item in first))

    def draw(self, source: random.Random) -> tuple[int, Candidate, int]:
        number = int(source.random() * self._ends[-1])
        index = bisect_right(self._ends, number)
        worker, item = self._flat[index]
        return worker, item, number - (self._ends[index] - item.num_places)


class Chain:
    """One Markov chain."""

    def __init__(self, scorer: Scorer, sampler: Sampler, *, beta: float, random_source: random.Random) -> None:
        self._scorer = scorer
        self._sampler = sampler
        self._beta = beta
        self._random = random_source
        self.moves = 0

    def run(self, deadline: float, max_moves: int | None, watch: Stopwatch) -> Found | None:
        """The fastest state that fits, until `deadline` (of time.perf_counter) or `max_moves`."""
        state = self._sampler.start()
        score = self._score(state)
        best = Found(state=state, time_s=score.time_s, after_s=watch.elapsed_s) if score.fits else None
        for _ in self._moves(deadline, max_moves):
            worker, candidate, place = self._sampler.draw(self._random)
            trial = state.moved(worker, candidate, place)
            found = self._score(trial)
            if not self._accepts(score, found):
                continue
            state, score = trial, found
            if found.fits and (best is None or found.time_s < best.time_s):
                best = Found(state=state, time_s=found.time_s, after_s=watch.elapsed_s)
        return best

    def _moves(self, deadline: float, max_moves: int | None) -> Iterator[None]:
        while max_moves is None or self.moves < max_moves:
            if self.moves % _CHECK_EVERY == 0 and time.perf_counter() > deadline:
                return
            self.moves += 1
            yield

    def _score(self, state: State) -> Score:
        return self._scorer.score([(c.pool, c.row) for c in state.candidates], state.meshes)

    def _accepts(self, old: Score, new: Score) -> bool:
        if not new.fits:
            # Only on the way from a start that does not fit.
            return not old.fits and new.excess_ratio <= old.excess_ratio
        if not old.fits or new.time_s <= old.time_s:
            return True
        ticks = floor(NUM_ITERATIONS * (new.time_s - old.time_s) / TICK_S)
        return self._random.random() < exp(-self._beta * ticks)
