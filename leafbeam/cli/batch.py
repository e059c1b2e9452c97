"""`leafbeam recommend --users`: a table of users, in this process or on a Ray cluster."""

import time
from pathlib import Path

from rich.console import Console

from leafbeam.cli.console import Bar, done, stderr
from leafbeam.cli.run import RunDirectory
from leafbeam.integrations.batch import Asked, BatchJob, Done, Files, recommend_users

__all__ = ["recommend_table"]


def recommend_table(
    console: Console,
    run: RunDirectory,
    users: Path,
    out: Path,
    asked: Asked,
    *,
    device: str,
    on_ray: bool,
    address: str | None,
    workers: int | None,
) -> None:
    """Answer every user of a table; what an earlier call has finished is kept."""
    files = Files(
        model=str(run.need(run.model, "train")),
        index=str(run.need(run.trie, "build")),
        catalog=str(run.need(run.catalog, "build")),
        rules=str(run.need(run.rules, "build")),
    )
    job = BatchJob(files=files, users=str(users), out=str(out), asked=asked, device=device)
    began = time.perf_counter()
    with Bar(stderr(), "recommending") as bar:

        def show(one: Done, finished: int, total: int) -> None:
            bar.show("recommending", finished / total, f"{finished:,} of {total:,} partitions")

        if on_ray:
            from leafbeam.integrations.ray_batch import recommend_users_on_ray

            gpus = 1.0 if device.startswith("cuda") else 0.0
            answered = recommend_users_on_ray(job, address=address, workers=workers, gpus_per_worker=gpus, progress=show)
        else:
            answered = recommend_users(job, progress=show)
    if not answered:
        console.print(f"Nothing was left to do: {out} is complete.")
        return
    if unknown := sum(one.unknown_items for one in answered):
        console.print(f"{unknown:,} ids of histories are not in the index and were left out.")
    if short := sum(one.short for one in answered):
        console.print(f"{short:,} users have fewer than {asked.num_items} items: no more are allowed.")
    total = sum(one.users for one in answered)
    seconds = time.perf_counter() - began
    done(
        console,
        what=f"{out}: {total:,} users in {len(answered):,} partitions, {total / seconds:,.0f} a second",
        seconds=seconds,
    )
