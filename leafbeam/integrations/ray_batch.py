"""A batch job on a Ray cluster: each worker is an engine of its own.

Ray passes file paths and row ranges, not data: every worker reads its rows and writes its file itself. All machines need
leafbeam and the same paths (a shared file system).
"""

import os
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leafbeam import errors
from leafbeam.errors import ArgumentError, LeafbeamError
from leafbeam.extras import optional_imports
from leafbeam.integrations.batch import BatchJob, Partition, PartitionResult, PartitionRunner, Progress

with optional_imports("a batch job on a cluster", "ray"):
    import ray
    from ray.data import ActorPoolStrategy, DataContext

__all__ = ["recommend_users_on_ray"]


class _Worker:
    """An actor of the pool. It returns an error as a row, because Ray would keep only its text."""

    def __init__(self, job: BatchJob) -> None:
        self._job = job
        self._runner: PartitionRunner | None = None

    def __call__(self, batch: dict[str, NDArray[Any]]) -> dict[str, list[Any]]:
        (number,), (file,), (row_group,), (first,), (rows,) = (
            batch[name].tolist() for name in ("number", "file", "row_group", "first", "rows")
        )
        result = PartitionResult(number=number, users=0, short_answers=0, unknown_items=0, seconds=0.0)
        error, message = "", ""
        try:
            self._runner = self._runner or PartitionRunner(self._job)
            result = self._runner.run(Partition(number=number, file=str(file), row_group=row_group, first=first, rows=rows))
        except LeafbeamError as raised:
            error, message = type(raised).__name__, str(raised)
        return {name: [value] for name, value in (asdict(result) | {"error": error, "message": message}).items()}


def recommend_users_on_ray(
    job: BatchJob,
    *,
    address: str | None = None,
    workers: int | None = None,
    cpus_per_worker: float = 1,
    gpus_per_worker: float = 0,
    progress: Progress | None = None,
) -> list[PartitionResult]:
    """Run the pending partitions of a job on a Ray cluster, with the output of `recommend_users`.

    address: of the cluster; None takes RAY_ADDRESS, then a cluster on this machine, then starts one. workers: the most
    engines; None fills the cluster's CPUs, or its GPUs if workers use any. A worker that dies is replaced and its partition
    repeated; a partition that fails ends the job with its error, and a later call resumes it.

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
        ray.init(address=address, log_to_driver=False, include_dashboard=False if _starts_cluster(address) else None)
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
) -> list[PartitionResult]:
    resources = ray.cluster_resources()
    max_workers = int(resources.get("GPU", 0) / gpus) if gpus else int(resources.get("CPU", 0) / cpus)
    if max_workers < 1:
        has = f"{resources.get('CPU', 0):g} CPUs and {resources.get('GPU', 0):g} GPUs"
        raise ArgumentError(f"the cluster has {has}, too few for one worker of {cpus:g} CPUs and {gpus:g} GPUs")
    size = min(workers or max_workers, len(pending))
    rows = [asdict(partition) for partition in pending]
    answers = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
        _Worker,
        fn_constructor_kwargs={"job": job},
        batch_size=1,
        compute=ActorPoolStrategy(min_size=1, max_size=size),
        num_cpus=cpus,
        num_gpus=gpus or None,
    )
    results: list[PartitionResult] = []
    for row in answers.iter_rows():
        if error := str(row.pop("error")):
            raise getattr(errors, error)(row["message"])
        row.pop("message")
        fields = {name: value.item() if isinstance(value, np.generic) else value for name, value in row.items()}
        results.append(PartitionResult(**fields))
        if progress is not None:
            progress(results[-1], total - len(pending) + len(results), total)
    return sorted(results, key=lambda result: result.number)


def _starts_cluster(address: str | None) -> bool:
    return address in (None, "local") and not os.environ.get("RAY_ADDRESS")
