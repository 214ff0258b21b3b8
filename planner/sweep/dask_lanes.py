"""Lanes on a Dask cluster: one per worker process, to which its tasks are pinned."""

from __future__ import annotations

import os
from concurrent.futures import Future
from typing import TYPE_CHECKING

from planner.domain.budget import Row
from planner.errors import InvalidInputError
from planner.sweep.lanes import Lane, hand_over, plan_here
from planner.sweep.points import Task

if TYPE_CHECKING:
    from distributed import Client

ADDRESS_VARIABLE = "DASK_SCHEDULER_ADDRESS"


def dask_lanes(num_workers: int | None) -> list[Lane]:
    """A lane per worker of the cluster, up to `num_workers`. A local cluster is started where none is named."""
    try:
        from distributed import Client
    except ImportError:
        raise InvalidInputError(
            "Dask is not installed", where="--executor dask", accepted="pip install 'rlplan[dask]', or --executor local"
        ) from None
    address = os.environ.get(ADDRESS_VARIABLE)
    try:
        if address:
            client = Client(address)
        else:
            client = Client(n_workers=num_workers or 1, threads_per_worker=1, dashboard_address=None)
    except (OSError, ValueError, TimeoutError) as error:
        raise InvalidInputError(
            f"no Dask cluster: {str(error)[:200]}",
            where="--executor dask",
            accepted=f"{ADDRESS_VARIABLE} of a running one",
        ) from None
    addresses = sorted(client.scheduler_info(n_workers=-1)["workers"])
    if not addresses:
        raise InvalidInputError("the cluster has no workers", where="--executor dask")
    return [DaskLane(client, address) for address in addresses[:num_workers]]


class DaskLane:
    """One worker of a cluster."""

    def __init__(self, client: Client, worker: str) -> None:
        self._client = client
        self._worker = worker

    def submit(self, task: Task) -> Future[Row]:
        from distributed import CancelledError, KilledWorker

        answer: Future[Row] = Future()
        executor = self._client.get_executor(workers=[self._worker], pure=False, retries=0)
        asked: Future[Row] = executor.submit(plan_here, task)
        asked.add_done_callback(lambda done: hand_over(done, answer, (KilledWorker, CancelledError)))
        return answer

    def restart(self) -> None:
        # The scheduler starts workers again under new addresses.
        addresses = sorted(self._client.scheduler_info(n_workers=-1)["workers"])
        if addresses and self._worker not in addresses:
            self._worker = addresses[0]

    def close(self) -> None:
        self._client.close()
