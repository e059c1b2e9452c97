"""The shards of an index as actors of a Ray cluster.

Each actor reads the file of its shard, which its machine must find at the same path. Rows of logits go to the actors as numpy
arrays: over shared memory on one machine, over the network otherwise.
"""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from leafbeam.errors import ArgumentError, LeafbeamError, ShardError
from leafbeam.extras import optional_imports
from leafbeam.index.shards import ShardManifest
from leafbeam.integrations.shard import Shard
from leafbeam.integrations.shards import Answer, Arguments, ShardedIndex, ShardMethod, named

with optional_imports("an index in shards on a cluster", "ray"):
    import ray
    from ray.exceptions import GetTimeoutError, RayError, RayTaskError


class _ShardActor:
    """A shard in a process of its own. It returns an error, because Ray would raise another one."""

    def __init__(self, path: str, verify: bool) -> None:
        self._shard: Shard | LeafbeamError
        try:
            self._shard = Shard(path, verify=verify)
            self._shard.warm_up()
        except LeafbeamError as error:
            self._shard = error
        except (OSError, MemoryError) as error:
            self._shard = ShardError(f"it cannot read {path}: {type(error).__name__}: {error}", may_pass=False)

    def is_ready(self) -> bool:
        """Return True, once the file is read."""
        return True

    def call(self, method: str, *values: object) -> object:
        if isinstance(self._shard, LeafbeamError):
            return self._shard
        try:
            return getattr(self._shard, method)(*values)
        except LeafbeamError as error:
            return error


class RayShards:
    """Shards on a Ray cluster.

    Args:
        files: The index file of each shard.
        verify: As for `Trie.load`.
        cpus_per_shard: The CPUs of each actor.
        timeout_s: The seconds within which an actor must answer.
        start_timeout_s: The seconds within which an actor must start.
        owns_ray: Whether `close` ends Ray in this process.
    """

    def __init__(
        self,
        files: Sequence[Path],
        *,
        verify: bool,
        cpus_per_shard: float,
        timeout_s: float,
        start_timeout_s: float,
        owns_ray: bool,
    ) -> None:
        actor: Any = ray.remote(_ShardActor)
        options = actor.options(num_cpus=cpus_per_shard, max_restarts=-1, max_task_retries=0, scheduling_strategy="SPREAD")
        self._files, self._owns_ray = list(files), owns_ray
        self._timeout_s, self._start_timeout_s = timeout_s, start_timeout_s
        self.actors: list[Any] = [options.remote(str(path), verify) for path in files]

    def call(self, method: ShardMethod[Answer], arguments: Arguments) -> dict[int, Answer]:
        name = method.__name__
        calls = {number: self.actors[number].call.remote(name, *values) for number, values in arguments.items()}
        end = time.monotonic() + self._timeout_s
        answers = {number: self._answer(number, call, end - time.monotonic()) for number, call in calls.items()}
        for number, answer in answers.items():
            if isinstance(answer, ShardError):
                raise named(answer, number, self._of(number))
            if isinstance(answer, LeafbeamError):
                raise answer
        return cast("dict[int, Answer]", answers)

    def wait(self, number: int) -> None:
        end = time.monotonic() + self._start_timeout_s
        while True:
            try:
                ray.get(self.actors[number].is_ready.remote(), timeout=max(0.0, end - time.monotonic()))
                return
            except RayError as error:
                if time.monotonic() > end:
                    reason = f"it has not started within {self._start_timeout_s:g} s: look at its log in Ray"
                    raise self._error(number, f"{reason} ({type(error).__name__})") from error
                time.sleep(0.2)  # Ray is about to start it

    def send(self, method: ShardMethod[object], arguments: Arguments) -> None:
        for number, values in arguments.items():
            self.actors[number].call.remote(method.__name__, *values)

    def close(self) -> None:
        for actor in self.actors:
            ray.kill(actor)
        self.actors.clear()
        if self._owns_ray:
            ray.shutdown()

    def _answer(self, number: int, call: "ray.ObjectRef[object]", timeout_s: float) -> object:
        try:
            return ray.get(call, timeout=max(0.0, timeout_s))
        except GetTimeoutError as error:
            reason = f"it has not answered for {self._timeout_s:g} s: check whether its machine is up"
            raise self._error(number, reason) from error
        except RayTaskError:
            raise  # the error of a function that the user passed, which is of its class too
        except RayError as error:
            reason = f"it has ended, and Ray starts it again ({type(error).__name__}): repeat the request"
            raise self._error(number, reason) from error

    def _error(self, number: int, reason: str) -> ShardError:
        return named(ShardError(reason), number, self._of(number))

    def _of(self, number: int) -> str:
        return f" ({self._files[number].name})"


def load_shards_on_ray(
    directory: str | Path,
    *,
    address: str | None = None,
    cpus_per_shard: float = 1,
    timeout_s: float = 30.0,
    start_timeout_s: float = 600.0,
    verify: bool = True,
) -> ShardedIndex:
    """Start an actor for each shard of a directory, and return the index. `close` ends the actors.

    An actor that dies is started again by Ray. The search within which it died raises ShardError, or begins again if it has
    retries (`ShardedSearch`).

    Args:
        directory: A directory that `leafbeam build TABLE --shards N` or `build_shards` has written, at the same path on all
            machines. A machine reads only the files of the shards that run there.
        address: The address of the cluster; None takes RAY_ADDRESS, then a cluster on this machine, then starts one.
        cpus_per_shard: The CPUs of each actor.
        timeout_s: The seconds within which an actor must answer a call.
        start_timeout_s: The seconds within which an actor must start and read its file.
        verify: As for `Trie.load`.

    Raises:
        IndexFileError: If the manifest or a shard's file is missing or damaged.
        ShardError: If a shard does not answer, or its file is not the one that the manifest names.
    """
    if cpus_per_shard < 0 or timeout_s <= 0 or start_timeout_s <= 0:
        raise ArgumentError(
            f"cpus_per_shard={cpus_per_shard}, timeout_s={timeout_s}, start_timeout_s={start_timeout_s}: expected "
            "cpus_per_shard >= 0 and timeouts above 0"
        )
    folder = Path(os.path.abspath(directory))
    manifest = ShardManifest.load(folder)
    started = not ray.is_initialized()
    if started:
        new_cluster = address in (None, "local") and not os.environ.get("RAY_ADDRESS")
        ray.init(address=address, log_to_driver=False, include_dashboard=False if new_cluster else None)
    files = [folder / shard.file for shard in manifest.shards]
    link = RayShards(
        files,
        verify=verify,
        cpus_per_shard=cpus_per_shard,
        timeout_s=timeout_s,
        start_timeout_s=start_timeout_s,
        owns_ray=started,
    )
    try:
        for number in range(len(files)):
            link.wait(number)
        return ShardedIndex(link, [shard.version for shard in manifest.shards])
    except BaseException:
        link.close()
        raise
