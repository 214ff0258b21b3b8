"""Two trainers whose pipelines share GPUs: each fills the bubbles of the other (RLHFuse, arXiv 2409.13221).

The pipelines run in opposite directions, so that the ranks which one of them leaves idle at its ends are those that the
other needs first. Every rank keeps the order of passes that each model has on its own (`pipeline_order`), which bounds
what activations it holds; whenever a rank is free it takes a pass whose input is there, from the model with more work
left. A pass occupies all GPUs of its pipeline rank and data-parallel rank: a slice of a stage's GPUs, whose width may
differ between the models.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from math import lcm

from planner.domain.strategy import FloatArray
from planner.simulate.pipeline_order import FORWARD_SHARE, Pass, training_order


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """One optimizer step of a model. `body_s` and `head_s` have shape (num_micro_batches, dp): what a pipeline rank
    needs for all its layers of a micro-batch, forward and backward, and what the last rank needs besides."""

    body_s: FloatArray
    head_s: FloatArray
    num_ranks: int
    num_chunks: int


@dataclass(slots=True, eq=False)
class _Line:
    """One data-parallel rank of one model: its passes on every pipeline rank."""

    model: int
    orders: tuple[tuple[Pass, ...], ...]
    seconds: dict[tuple[bool, bool], list[float]]
    """(is backward, has the head) -> seconds by micro-batch."""
    stages: list[int]
    """Place of each pipeline rank among the GPUs."""
    slots: range
    """What it occupies there."""
    last: int
    """Place of the last chunk in the model."""
    left_s: float
    next: list[int] = field(default_factory=list)
    """By pipeline rank: the number of its next pass."""
    done: set[tuple[bool, int, int]] = field(default_factory=set)
    """(is backward, micro-batch, place of the chunk in the model) of passes that have ended."""

    def ready(self, rank: int) -> Pass | None:
        """The next pass of a rank, if its input is there."""
        if self.next[rank] == len(self.orders[rank]):
            return None
        item = self.orders[rank][self.next[rank]]
        place = self.place(item, rank)
        if item.is_backward:
            needed = (False, item.micro_batch, place) if place == self.last else (True, item.micro_batch, place + 1)
        else:
            needed = (False, item.micro_batch, place - 1)
        return item if (place == 0 and not item.is_backward) or needed in self.done else None

    def place(self, item: Pass, rank: int) -> int:
        return item.chunk * len(self.stages) + rank

    def pass_s(self, item: Pass, rank: int) -> float:
        return self.seconds[item.is_backward, self.place(item, rank) == self.last][item.micro_batch]


def interleaved_s(first: Pipeline, second: Pipeline) -> tuple[float, float]:
    """Seconds until the last pass of each of two models, started together on the same GPUs.

    Raises ValueError when they do not have the same number of pipeline ranks.
    """
    if first.num_ranks != second.num_ranks:
        raise ValueError("interleaved pipelines have the same number of ranks")
    num_slots = lcm(first.body_s.shape[1], second.body_s.shape[1])
    lines = [*_lines(0, first, num_slots), *_lines(1, second, num_slots)]
    ends = [0.0, 0.0]
    left_s = [sum(line.left_s for line in lines if line.model == model) for model in range(2)]
    free = [[True] * num_slots for _ in range(first.num_ranks)]
    running: list[tuple[float, int, int, Pass]] = []
    now = 0.0
    touched = set(range(first.num_ranks))
    while True:
        for stage in touched:
            _fill(stage, now, lines, free[stage], left_s, running)
        if not running:
            break
        now, touched = running[0][0], set()
        while running and running[0][0] <= now:
            _, number, rank, item = heapq.heappop(running)
            line = lines[number]
            line.done.add((item.is_backward, item.micro_batch, line.place(item, rank)))
            for slot in line.slots:
                free[line.stages[rank]][slot] = True
            ends[line.model] = now
            # Its neighbours may have their input now; with chunks the first and the last rank are neighbours too.
            touched |= {line.stages[r % len(line.stages)] for r in (rank - 1, rank, rank + 1)}
    if any(line.next[rank] < len(order) for line in lines for rank, order in enumerate(line.orders)):
        raise ValueError("a pipeline order waits for itself")
    return ends[0], ends[1]


def _fill(
    stage: int,
    now: float,
    lines: list[_Line],
    free: list[bool],
    left_s: list[float],
    running: list[tuple[float, int, int, Pass]],
) -> None:
    """Starts what can start on a stage's GPUs: the model with more work left first, and of one model backward."""
    waiting = []
    for number, line in enumerate(lines):
        rank = line.stages.index(stage)
        item = line.ready(rank)
        if item is not None:
            waiting.append((-left_s[line.model], not item.is_backward, number, rank, item))
    for _, _, number, rank, item in sorted(waiting, key=lambda entry: entry[:3]):
        line = lines[number]
        if not all(free[slot] for slot in line.slots):
            continue
        seconds = line.pass_s(item, rank)
        for slot in line.slots:
            free[slot] = False
        line.next[rank] += 1
        left_s[line.model] -= seconds * len(line.slots)
        heapq.heappush(running, (now + seconds, number, rank, item))


def _lines(model: int, pipeline: Pipeline, num_slots: int) -> list[_Line]:
    """The data-parallel ranks of a model; that of the second one runs from the last stage to the first."""
    ranks, chunks = pipeline.num_ranks, pipeline.num_chunks
    number, dp = pipeline.body_s.shape
    orders = training_order(number, ranks, chunks)
    result = []
    for column in range(dp):
        body, head = pipeline.body_s[:, column], pipeline.head_s[:, column]
        parts = {}
        for is_backward, share in ((False, FORWARD_SHARE), (True, 1.0 - FORWARD_SHARE)):
            parts[is_backward, False] = (body * (share / chunks)).tolist()
            parts[is_backward, True] = (body * (share / chunks) + head * share).tolist()
        width = num_slots // dp
        result.append(
            _Line(
                model=model,
                orders=orders,
                seconds=parts,
                stages=list(range(ranks)) if model == 0 else list(reversed(range(ranks))),
                slots=range(column * width, (column + 1) * width),
                last=ranks * chunks - 1,
                left_s=float((body * ranks + head).sum()) * width,
                next=[0] * ranks,
            )
        )
    return result
