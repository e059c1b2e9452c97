"""A batch job on a Ray cluster: each worker is an engine of its own.

Ray passes file paths and row ranges, not data: every worker reads its rows and writes its file itself. All machines need
leafbeam and the same paths (a shared file system).
"""

import os
import pickle
from collections.abc import Mapping, Sequence

from leafbeam.errors import ArgumentError, LeafbeamError
from leafbeam.extras import optional_imports
from leafbeam.integrations.batch import BatchJob, JobPlan, PartitionResult, PartitionRunner, Progress

with optional_imports("a batch job on a cluster", "ray"):
    import ray
    from ray.data import ActorPoolStrategy, DataContext


class _Worker:
    """An actor of the pool. It returns an error as a row, because Ray would keep only its text."""

    def __init__(self, job: BatchJob) -> None:
        self._job = job
        self._runner: PartitionRunner | None = None

    def __call__(self, batch: Mapping[str, Sequence[bytes]]) -> dict[str, list[bytes]]:
        (partition,) = batch["partition"]
        try:
            self._runner = self._runner or PartitionRunner(self._job)
            outcome = self._runner.run(pickle.loads(partition))
        except LeafbeamError as error:
            outcome = error
        return {"outcome": [pickle.dumps(outcome)]}


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

    A worker that dies is replaced and its partition repeated. A partition that fails ends the job with its error, and a later
    call resumes it.

    Args:
        job: The job.
        address: The address of the cluster; None takes RAY_ADDRESS, then a cluster on this machine, then starts one.
        workers: The largest number of engines; None fills the cluster's CPUs, or its GPUs if workers use any.
        cpus_per_worker: The number of CPUs of each engine.
        gpus_per_worker: The number of GPUs of each engine.
        progress: As for `recommend_users`.

    Raises:
        LeafbeamError: As for `BatchJob.plan` and `PartitionRunner.run`, on any machine.
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
        new_cluster = address in (None, "local") and not os.environ.get("RAY_ADDRESS")
        ray.init(address=address, log_to_driver=False, include_dashboard=False if new_cluster else None)
    context = DataContext.get_current()
    bars, context.enable_progress_bars = context.enable_progress_bars, False
    try:
        return _run(job, plan, workers, cpus_per_worker, gpus_per_worker, progress)
    finally:
        context.enable_progress_bars = bars
        if started:
            ray.shutdown()


def _run(
    job: BatchJob, plan: JobPlan, workers: int | None, cpus: float, gpus: float, progress: Progress | None
) -> list[PartitionResult]:
    resources = ray.cluster_resources()
    max_workers = int(resources.get("GPU", 0) / gpus) if gpus else int(resources.get("CPU", 0) / cpus)
    if max_workers < 1:
        has = f"CPUs: {resources.get('CPU', 0):g}, GPUs: {resources.get('GPU', 0):g}"
        raise ArgumentError(f"the cluster has too few for one worker ({has}): expected CPUs: {cpus:g}, GPUs: {gpus:g}")
    rows = [{"partition": pickle.dumps(partition)} for partition in plan.pending]
    answers = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
        _Worker,
        fn_constructor_kwargs={"job": job},
        batch_size=1,
        compute=ActorPoolStrategy(min_size=1, max_size=min(workers or max_workers, len(rows))),
        num_cpus=cpus,
        num_gpus=gpus or None,
    )
    results: list[PartitionResult] = []
    for row in answers.iter_rows():
        outcome = pickle.loads(row["outcome"])
        if isinstance(outcome, LeafbeamError):
            raise outcome
        results.append(outcome)
        if progress is not None:
            progress(outcome, len(plan.partitions) - len(rows) + len(results), len(plan.partitions))
    return sorted(results, key=lambda result: result.number)
