"""A batch job on a Ray cluster: Ray Data hands partitions to workers, each of which is an engine of its own.

Only the names of partitions travel through Ray; every worker reads its rows and writes its file itself, so that no memory grows
with the table. All machines have to see the same paths (a shared file system), and have leafbeam installed.
"""

import os
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leafbeam import errors
from leafbeam.errors import ArgumentError, LeafbeamError, MissingExtraError
from leafbeam.integrations.batch import BatchJob, Done, Partition, PartitionRunner, Progress

try:
    import ray
    from ray.data import ActorPoolStrategy, DataContext
except ImportError as error:
    raise MissingExtraError("batch jobs on a cluster need Ray: pip install 'leafbeam[ray]'") from error

__all__ = ["recommend_users_on_ray"]


class _Worker:
    """An actor of the pool. What is wrong comes back as a row, by name: what Ray raises of it keeps the text only."""

    def __init__(self, job: BatchJob) -> None:
        self._job = job
        self._runner: PartitionRunner | None = None

    def __call__(self, batch: dict[str, NDArray[Any]]) -> dict[str, list[Any]]:
        (number,), (file,), (row_group,), (first,), (rows,) = (
            batch[name].tolist() for name in ("number", "file", "row_group", "first", "rows")
        )
        done, error, message = Done(number=number, users=0, short=0, unknown_items=0, seconds=0.0), "", ""
        try:
            self._runner = self._runner or PartitionRunner(self._job)
            done = self._runner.run(Partition(number=number, file=str(file), row_group=row_group, first=first, rows=rows))
        except LeafbeamError as raised:
            error, message = type(raised).__name__, str(raised)
        return {name: [value] for name, value in (asdict(done) | {"error": error, "message": message}).items()}


def recommend_users_on_ray(
    job: BatchJob,
    *,
    address: str | None = None,
    workers: int | None = None,
    cpus_per_worker: float = 1,
    gpus_per_worker: float = 0,
    progress: Progress | None = None,
) -> list[Done]:
    """Do what is left of a job on a Ray cluster; returns what was done now. The output is that of `recommend_users`.

    address: of the cluster; None takes RAY_ADDRESS, then a cluster on this machine, then starts one. workers: at most so many
    engines; None fills the cluster's CPUs (or its GPUs, where workers have any). A worker that dies is replaced and its
    partition done again; one that cannot be answered ends the job with its error, and a later call goes on from what is there.

    Raises what `BatchJob.plan` and `PartitionRunner.run` raise, wherever it happened.
    """
    if cpus_per_worker <= 0 or gpus_per_worker < 0 or (workers is not None and workers < 1):
        raise ArgumentError(
            f"workers={workers}, cpus_per_worker={cpus_per_worker}, gpus_per_worker={gpus_per_worker}: expected workers >= 1, "
            "cpus_per_worker > 0 and gpus_per_worker >= 0"
        )
    plan = job.plan()
    if not plan.pending:
        return []
    started = not ray.is_initialized()
    if started:
        ray.init(address=address, log_to_driver=False, include_dashboard=False if _starts_one(address) else None)
    context = DataContext.get_current()
    bars = context.enable_progress_bars
    context.enable_progress_bars = False
    try:
        return _run(job, plan.pending, len(plan.partitions), workers, cpus_per_worker, gpus_per_worker, progress)
    finally:
        context.enable_progress_bars = bars
        if started:
            ray.shutdown()


def _run(
    job: BatchJob,
    pending: tuple[Partition, ...],
    total: int,
    workers: int | None,
    cpus: float,
    gpus: float,
    progress: Progress | None,
) -> list[Done]:
    resources = ray.cluster_resources()
    room = int(resources.get("GPU", 0) / gpus) if gpus else int(resources.get("CPU", 0) / cpus)
    if room < 1:
        has = f"{resources.get('CPU', 0):g} CPUs and {resources.get('GPU', 0):g} GPUs"
        raise ArgumentError(f"the cluster has {has}, too few for one worker of {cpus:g} CPUs and {gpus:g} GPUs")
    size = min(workers or room, len(pending))
    rows = [
        {"number": one.number, "file": one.file, "row_group": one.row_group, "first": one.first, "rows": one.rows}
        for one in pending
    ]
    answered = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
        _Worker,
        fn_constructor_kwargs={"job": job},
        batch_size=1,
        compute=ActorPoolStrategy(min_size=1, max_size=size),
        num_cpus=cpus,
        num_gpus=gpus or None,
    )
    done: list[Done] = []
    for row in answered.iter_rows():
        if error := str(row.pop("error")):
            raise getattr(errors, error)(row["message"])
        row.pop("message")
        done.append(Done(**{name: value.item() if isinstance(value, np.generic) else value for name, value in row.items()}))
        if progress is not None:
            progress(done[-1], total - len(pending) + len(done), total)
    return sorted(done, key=lambda one: one.number)


def _starts_one(address: str | None) -> bool:
    return address in (None, "local") and not os.environ.get("RAY_ADDRESS")
