"""`leafbeam recommend --users`: recommendations for a table of users, in this process or on a Ray cluster."""

import time
from pathlib import Path

from leafbeam.cli.console import Bar, done, stdout
from leafbeam.errors import counted
from leafbeam.integrations.batch import BatchJob, PartitionResult, RequestTemplate, ServingFiles, recommend_users


def recommend_table(
    files: ServingFiles,
    users: Path,
    out: Path,
    request: RequestTemplate,
    *,
    device: str,
    on_ray: bool,
    address: str | None,
    workers: int | None,
) -> None:
    """Recommend for every user of a table; partitions that an earlier call finished are kept."""
    job = BatchJob(files=files, users=str(users), out=str(out), request=request, device=device)
    console = stdout()
    began = time.perf_counter()
    with Bar("recommending") as bar:

        def show(partition: PartitionResult, finished: int, total: int) -> None:
            bar.show("recommending", finished / total, f"{finished:,} of {counted(total, 'partition')}")

        if on_ray:
            from leafbeam.integrations.ray_batch import recommend_users_on_ray

            gpus = 1.0 if device.startswith("cuda") else 0.0
            partitions = recommend_users_on_ray(job, address=address, workers=workers, gpus_per_worker=gpus, progress=show)
        else:
            partitions = recommend_users(job, progress=show)
    if not partitions:
        console.print(f"Nothing was left to do: {out} is complete.")
        return
    if unknown := sum(partition.unknown_items for partition in partitions):
        console.print(f"{counted(unknown, 'id of histories is', 'ids of histories are')} not in the index and left out.")
    if short := sum(partition.short_answers for partition in partitions):
        console.print(
            f"{counted(short, 'user has', 'users have')} fewer than {counted(request.num_items, 'item')}: "
            "no other items are allowed."
        )
    total = sum(partition.users for partition in partitions)
    rate = total / (time.perf_counter() - began)
    done(
        console,
        f"{out}: {counted(total, 'user')} in {counted(len(partitions), 'partition')}, {rate:,.0f} a second",
        since=began,
    )
