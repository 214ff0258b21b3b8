"""The fast score of peers must be the evaluation of the search."""

import random

import pytest

from planner.peers.meshes import structure_of
from planner.peers.real_search import Sampler, State, candidates
from planner.peers.scoring import Scorer
from planner.peers.task import PeerTask, configured, with_rows
from tests.unit.peers.cases import task_of, with_memory


def random_states(task: PeerTask, number: int) -> list[State]:
    source = random.Random(7)
    sampler = Sampler([candidates(task, worker) for worker in task.workers])
    state, states = sampler.start(), []
    for _ in range(number):
        for _ in range(3):
            state = state.moved(*sampler.draw(source))
        states.append(state)
    return states


@pytest.mark.parametrize(
    ("task", "least_fitting", "least_unfit"),
    [
        (with_memory(task_of("ppo", ("a100-80gb", 2)), 4.0), 20, 0),
        (task_of("ppo", ("a100-80gb", 2)), 0, 10),
        (task_of("grpo", ("h100", 1), ("h20", 1)), 5, 1),
    ],
    ids=["plenty of memory", "as it is", "two pools"],
)
def test_a_score_is_the_time_of_the_search_or_a_misfit_of_the_search(
    task: PeerTask, least_fitting: int, least_unfit: int
) -> None:
    scorer = Scorer(task)
    fitting = unfit = 0
    for state in random_states(task, 30):
        score = scorer.score([(c.pool, c.row) for c in state.candidates], state.meshes)
        chosen = zip(task.workers, state.candidates, strict=True)
        items = with_rows(task, {worker: (c.pool, c.row) for worker, c in chosen})
        found = configured(task, structure_of(dict(zip(task.workers, state.meshes, strict=True))), items)
        assert score.fits == (found is not None)
        if found is not None:
            assert score.time_s == pytest.approx(found.solution.time_s, rel=1e-9)
            fitting += 1
        unfit += not score.fits
    assert fitting >= least_fitting
    assert unfit >= least_unfit
