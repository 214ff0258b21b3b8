"""A leaf solved by CP-SAT: one Boolean per option, one linear row per path and per memory instant.

No interval variables: ortools 9.15 returns wrong optima for optional intervals with shared ends.
"""

from __future__ import annotations

from collections.abc import Sequence

from ortools.sat.python import cp_model

from planner.domain.strategy import IntArray
from planner.search.integer import IntegerProblem, IntegerResult


class _Model:
    """Variables of the model; rows are added by the methods."""

    def __init__(self, problem: IntegerProblem) -> None:
        self.problem = problem
        self.model = cp_model.CpModel()
        self.pick = [[self.model.new_bool_var("") for _ in range(item.num_gpus.shape[0])] for item in problem.options]
        for row in self.pick:
            self.model.add_exactly_one(row)
        self.makespan = self.model.new_int_var(0, problem.cutoff_ticks, "makespan")
        self.model.minimize(self.makespan)

    def value(self, worker: int, column: IntArray) -> cp_model.LinearExprT:
        """The entry of `column` at the chosen option."""
        return cp_model.LinearExpr.weighted_sum(self.pick[worker], column.tolist())

    def add_paths(self) -> None:
        for p, host in enumerate(self.problem.host_ticks.tolist()):
            terms = [self.value(w, item.path_ticks[p]) for w, item in enumerate(self.problem.options)]
            self.model.add(cp_model.LinearExpr.sum(terms) + host <= self.makespan)

    def add_memory(self) -> None:
        problem, limit = self.problem, self.problem.memory_capacity
        for members, synced in zip(problem.groups, problem.group_syncs, strict=True):
            for active in members:
                self._limit(
                    [
                        self.value(w, problem.options[w].active if w == active else problem.options[w].idle)
                        for w in members
                    ],
                    limit,
                )
            if synced:
                self._limit([self.value(w, problem.options[w].at_sync) for w in members], limit)
            self._limit([self.value(w, problem.options[w].host) for w in members], limit)

    def _limit(self, terms: Sequence[cp_model.LinearExprT], limit: int) -> None:
        self.model.add(cp_model.LinearExpr.sum(list(terms)) <= limit)

    def add_sizes(self) -> None:
        problem = self.problem
        size = [
            self.model.new_int_var(int(low), int(problem.capacity[pool]), "")
            for low, pool in zip(problem.low, problem.slot_pool, strict=True)
        ]
        whole = {
            pool: self.model.new_int_var(0, int(problem.capacity[pool]), "")
            for pool, slot in zip(problem.worker_pool, problem.slot, strict=True)
            if slot < 0
        }
        for w, item in enumerate(problem.options):
            group = size[problem.slot[w]] if problem.slot[w] >= 0 else whole[problem.worker_pool[w]]
            own = self.value(w, item.num_gpus)
            self.model.add(own == group if problem.equal_size else own <= group)
        for pool in set(problem.slot_pool):
            blocks = [size[s] for s, slot_pool in enumerate(problem.slot_pool) if slot_pool == pool]
            room = whole[pool] if problem.equal_size and pool in whole else int(problem.capacity[pool])
            self.model.add(cp_model.LinearExpr.sum(blocks) <= room)


def solve_leaf(problem: IntegerProblem, *, time_limit_s: float, seed: int, num_workers: int = 1) -> IntegerResult:
    """The least makespan within the cutoff. Deterministic for equal input unless the time limit ends it."""
    model = _Model(problem)
    model.add_paths()
    model.add_memory()
    model.add_sizes()
    solver = cp_model.CpSolver()
    solver.parameters.random_seed = seed
    solver.parameters.num_workers = num_workers
    solver.parameters.interleave_search = num_workers > 1
    solver.parameters.max_time_in_seconds = max(time_limit_s, 0.01)
    status = solver.solve(model.model)
    if status == cp_model.INFEASIBLE:
        return IntegerResult(choice=None, bound_ticks=None, is_complete=True)
    if status == cp_model.MODEL_INVALID:
        raise ValueError(f"CP-SAT rejects the model: {model.model.validate()}")
    if status == cp_model.UNKNOWN:
        return IntegerResult(choice=None, bound_ticks=solver.best_objective_bound, is_complete=False)
    choice = tuple(next(i for i, var in enumerate(row) if solver.boolean_value(var)) for row in model.pick)
    return IntegerResult(choice=choice, bound_ticks=solver.best_objective_bound, is_complete=status == cp_model.OPTIMAL)
