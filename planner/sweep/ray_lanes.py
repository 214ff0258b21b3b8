"""Lanes on a Ray cluster: actors, so that each keeps its pricing."""

from __future__ import annotations

import os
from concurrent.futures import Future
from typing import TYPE_CHECKING

from planner.domain.budget import Row
from planner.errors import InvalidInputError
from planner.sweep.lanes import Lane, hand_over
from planner.sweep.points import Planner, Task

if TYPE_CHECKING:
    import ray

ADDRESS_VARIABLE = "RAY_ADDRESS"


def ray_lanes(num_workers: int | None) -> list[Lane]:
    """An actor per worker; None: one per CPU of the cluster. A local cluster is started where none is named."""
    try:
        import ray
    except ImportError:
        raise InvalidInputError(
            "Ray is not installed", where="--executor ray", accepted="pip install 'rlplan[ray]', or --executor local"
        ) from None
    if not ray.is_initialized():
        address = os.environ.get(ADDRESS_VARIABLE)
        try:
            if address:
                ray.init(address=address, log_to_driver=False, logging_level="ERROR")
            else:
                ray.init(num_cpus=num_workers, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        except (ConnectionError, RuntimeError, ValueError) as error:
            reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
            raise InvalidInputError(
                f"no Ray cluster: {reason}", where="--executor ray", accepted=f"{ADDRESS_VARIABLE} of a running one"
            ) from None
    count = num_workers or max(1, int(ray.cluster_resources().get("CPU", 1.0)))
    return [RayLane() for _ in range(count)]


class RayLane:
    """One actor."""

    def __init__(self) -> None:
        self._actor = _new_actor()

    def submit(self, task: Task) -> Future[Row]:
        from ray.exceptions import RayActorError, WorkerCrashedError

        answer: Future[Row] = Future()
        asked: Future[Row] = self._actor.plan.remote(task).future()
        asked.add_done_callback(lambda done: hand_over(done, answer, (RayActorError, WorkerCrashedError)))
        return answer

    def restart(self) -> None:
        self.close()
        self._actor = _new_actor()

    def close(self) -> None:
        import ray

        ray.kill(self._actor)


def _new_actor() -> ray.actor.ActorHandle:
    import ray

    # One CPU each: numpy's own threads would only get in each other's way.
    return ray.remote(num_cpus=1)(Planner).remote()
