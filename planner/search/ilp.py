"""A leaf solved as a mixed-integer program through PuLP and CBC, as a check that shares nothing with CP-SAT but
the integer data.

Block sizes are not variables here: with free sizes a capacity row per combination of one worker per block says the
same thing, and equal sizes are rows between pairs of workers.
"""

from __future__ import annotations

from itertools import pairwise, product

import pulp

from planner.domain.strategy import IntArray
from planner.search.integer import IntegerProblem, IntegerResult


class _Program:
    """Binary variables `x[worker][option]` and the expressions over them."""

    def __init__(self, problem: IntegerProblem) -> None:
        self.problem = problem
        self.program = pulp.LpProblem("leaf", pulp.LpMinimize)
        self.x = [
            [pulp.LpVariable(f"x_{w}_{i}", cat=pulp.LpBinary) for i in range(item.num_gpus.shape[0])]
            for w, item in enumerate(problem.options)
        ]
        self.makespan = pulp.LpVariable("makespan", lowBound=0, upBound=problem.cutoff_ticks)
        self.program += self.makespan
        for row in self.x:
            self.program += pulp.lpSum(row) == 1

    def chosen(self, worker: int, column: IntArray) -> pulp.LpAffineExpression:
        return pulp.LpAffineExpression(
            [(variable, float(value)) for variable, value in zip(self.x[worker], column.tolist(), strict=True)]
        )

    def add_time_rows(self) -> None:
        problem = self.problem
        for p in range(problem.host_ticks.shape[0]):
            work = pulp.lpSum(self.chosen(w, item.path_ticks[p]) for w, item in enumerate(problem.options))
            self.program += self.makespan - work >= int(problem.host_ticks[p])

    def add_memory_rows(self) -> None:
        problem = self.problem
        for members, synced in zip(problem.groups, problem.group_syncs, strict=True):
            resident = pulp.lpSum(self.chosen(w, problem.options[w].idle) for w in members)
            for w in members:
                extra = self.chosen(w, problem.options[w].active - problem.options[w].idle)
                self.program += resident + extra <= problem.memory_capacity
            self.program += (
                pulp.lpSum(self.chosen(w, problem.options[w].host) for w in members) <= problem.memory_capacity
            )
            if synced:
                held = pulp.lpSum(self.chosen(w, problem.options[w].at_sync) for w in members)
                self.program += held <= problem.memory_capacity

    def add_size_rows(self) -> None:
        problem = self.problem
        gpus = [self.chosen(w, item.num_gpus) for w, item in enumerate(problem.options)]
        for pool in sorted(set(problem.slot_pool)):
            blocks = [
                [w for w, slot in enumerate(problem.slot) if slot == s]
                for s, slot_pool in enumerate(problem.slot_pool)
                if slot_pool == pool
            ]
            whole = [w for w, slot in enumerate(problem.slot) if slot < 0 and problem.worker_pool[w] == pool]
            if problem.equal_size:
                for members in [*blocks, whole]:
                    for first, second in pairwise(members):
                        self.program += gpus[first] - gpus[second] == 0
            for representatives in product(*blocks):
                used = pulp.lpSum(gpus[w] for w in representatives)
                self.program += used <= int(problem.capacity[pool])
                if problem.equal_size and whole:
                    self.program += used - gpus[whole[0]] <= 0


def solve_leaf(problem: IntegerProblem, *, time_limit_s: float, seed: int) -> IntegerResult:
    """The least makespan within the cutoff, as `cpsat.solve_leaf` returns it."""
    program = _Program(problem)
    program.add_time_rows()
    program.add_memory_rows()
    program.add_size_rows()
    solver = pulp.PULP_CBC_CMD(
        msg=False, threads=1, timeLimit=max(time_limit_s, 0.1), gapRel=0.0, options=[f"randomSeed {seed}"]
    )
    program.program.solve(solver)
    status = program.program.sol_status
    # CBC's preprocessing may say "infeasible or unbounded"; the makespan is bounded, so that means infeasible.
    if pulp.LpStatusInfeasible in (program.program.status, status):
        return IntegerResult(choice=None, bound_ticks=None, is_complete=True)
    if status not in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible):
        return IntegerResult(choice=None, bound_ticks=0.0, is_complete=False)
    choice = tuple(max(range(len(row)), key=lambda i: row[i].varValue or 0.0) for row in program.x)
    if status == pulp.LpSolutionIntegerFeasible:
        return IntegerResult(choice=choice, bound_ticks=0.0, is_complete=False)
    return IntegerResult(choice=choice, bound_ticks=float(program.makespan.varValue), is_complete=True)
