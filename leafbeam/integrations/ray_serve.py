"""The engine as a Ray Serve application: as many replicas as the load asks for, and new catalogs without a stop.

    serve run leafbeam.integrations.ray_serve:application model=/runs/shop/model index=/runs/shop/index.leafbeam

Each replica is one engine with the HTTP interface of `leafbeam serve`: the same bodies, limits and refusals (429 and 503 with
Retry-After). All machines have to see the same paths, and have leafbeam installed.
"""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import ASGIApp, Message

from leafbeam.catalog import Catalog
from leafbeam.engine import Engine, Settings, name_of
from leafbeam.errors import ArgumentError, LeafbeamError, MissingExtraError, UnavailableError
from leafbeam.index import Trie
from leafbeam.integrations.batch import Files
from leafbeam.model import AnyModel, load_model
from leafbeam.serve import create_app

try:
    from ray import serve
    from ray.serve.config import AutoscalingConfig
except ImportError as error:
    raise MissingExtraError("a Ray Serve application needs Ray: pip install 'leafbeam[ray]'") from error

__all__ = ["Fleet", "Recommender", "application"]

log = logging.getLogger("leafbeam.ray")


@dataclass(frozen=True, kw_only=True, slots=True)
class Fleet:
    """How many replicas there are, and what each of them is.

    files: what answers; deploying the application again with other files rolls them out (see `Recommender`).
    settings: of each replica's engine. device: "cuda" goes with num_gpus.
    min_replicas, max_replicas: equal for a fixed number; else Ray keeps about target_ongoing requests on each replica.
    num_cpus, num_gpus: of one replica. health_period_s: how often each is asked whether its engine answers. grace_s: how long
    an engine that is replaced or stopped may go on with what it has accepted.
    """

    files: Files
    settings: Settings = field(default_factory=Settings)
    device: str = "cpu"
    min_replicas: int = 1
    max_replicas: int = 1
    target_ongoing: float = 16.0
    num_cpus: float = 1.0
    num_gpus: float = 0.0
    health_period_s: float = 10.0
    grace_s: float = 30.0

    def __post_init__(self) -> None:
        if not 1 <= self.min_replicas <= self.max_replicas:
            raise ArgumentError(
                f"min_replicas={self.min_replicas}, max_replicas={self.max_replicas}: the first is from 1 to the second"
            )
        for name in ("target_ongoing", "num_cpus", "health_period_s", "grace_s"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ArgumentError(f"{name} has to be above 0, not {getattr(self, name)!r}")
        if self.num_gpus < 0:
            raise ArgumentError(f"num_gpus has to be at least 0, not {self.num_gpus!r}")

    @classmethod
    def of(cls, args: Mapping[str, Any]) -> "Fleet":
        """From the flat arguments of `serve run` or a Serve config file: the fields of Files, Settings and Fleet by name."""
        parts: dict[type, dict[str, Any]] = {Files: {}, Settings: {}, cls: {}}
        own = {one.name: one.type for one in fields(cls)}
        for name, value in args.items():
            kind = next((k for k in (Files, Settings) if name in {one.name for one in fields(k)}), cls if name in own else None)
            if kind is None or name in ("files", "settings"):
                known = [one.name for k in (Files, Settings, cls) for one in fields(k)]
                raise ArgumentError(f"there is no argument {name!r}: choose among {', '.join(known)}")
            kinds = {one.name: one.type for one in fields(kind)}
            parts[kind][name] = _typed(name, value, kinds[name])
        if missing := [name for name in ("model", "index") if name not in parts[Files]]:
            raise ArgumentError(f"{' and '.join(missing)} missing: give the path")
        return cls(files=Files(**parts[Files]), settings=Settings(**parts[Settings]), **parts[cls])


class _Served:
    """One engine with its HTTP interface, and how many requests are inside."""

    def __init__(self, engine: Engine, catalog: Catalog | None, files: Files, grace_s: float) -> None:
        self.engine, self.files = engine, files
        self.app: ASGIApp = create_app(engine, grace_s=grace_s)
        self._catalog, self._grace_s = catalog, grace_s
        self._inside = 0
        self._is_empty = asyncio.Event()
        self._is_empty.set()

    def __enter__(self) -> "_Served":
        self._inside += 1
        self._is_empty.clear()
        return self

    def __exit__(self, *error: object) -> None:
        self._inside -= 1
        if self._inside == 0:
            self._is_empty.set()

    def stop(self) -> None:
        """Stop the engine, which answers what it has accepted, and close the catalog."""
        self.engine.stop(self._grace_s)
        if self._catalog is not None:
            self._catalog.close()

    async def retire(self) -> None:
        """Stop when nobody is inside any more, or the grace is over."""
        try:
            await asyncio.wait_for(self._is_empty.wait(), self._grace_s)
        except TimeoutError:
            log.warning("%d requests are still with the former catalog after %g s", self._inside, self._grace_s)
        await asyncio.to_thread(self.stop)


class Recommender:
    """A replica: answers over HTTP (`__call__`) and from other deployments (`recommend`), and changes its catalog in place.

    Think of a shop that changes its shelves with the doors open. A change of the deployment's user_config alone (`serve deploy`
    of a config file does that; `serve.run` replaces the replicas instead) calls `reconfigure` on each replica: the new engine
    is loaded and warmed up beside the old one (over the same weights, if the model's path is the same), then takes all new
    requests at once, while the old one finishes what it has. No request is dropped and none sees half of each. Files that
    cannot be read leave the old engine in place; `status` and the log say so.
    """

    _served: _Served | None = None

    def __init__(self, settings: Settings, device: str, grace_s: float) -> None:
        self._settings, self._device, self._grace_s = settings, device, grace_s
        self._model: tuple[str, AnyModel] | None = None
        self._fault: str | None = None
        self._retiring: set[asyncio.Task[None]] = set()

    async def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Ray calls it after construction and whenever the user_config (the fields of Files) changes."""
        try:
            files = Files(**user_config)
            model, engine, catalog = await asyncio.to_thread(self._load, files)
        except (LeafbeamError, OSError, TypeError) as error:
            if self._served is None:
                raise
            # A replica that failed here would be replaced by one that fails too: better yesterday's catalog than none.
            self._fault = f"{type(error).__name__}: {error}"
            log.error("the new files were not taken, the former ones still answer: %s", self._fault)
            return
        former, self._served = self._served, _Served(engine, catalog, files, self._grace_s)
        self._model, self._fault = (files.model, model), None
        if former is not None:
            task = asyncio.create_task(former.retire())
            self._retiring.add(task)
            task.add_done_callback(self._retiring.discard)

    def _load(self, files: Files) -> tuple[AnyModel, Engine, Catalog | None]:
        trie = Trie.load(files.index)
        known = self._model is not None and self._model[0] == files.model
        model = self._model[1] if known and self._model is not None else load_model(files.model, device=self._device)
        catalog = None if files.catalog is None else Catalog.open(files.catalog, trie, files.rules)
        try:
            engine = Engine(model, trie, catalog, settings=self._settings)
            engine.start()
        except BaseException:
            if catalog is not None:
                catalog.close()
            raise
        return model, engine, catalog

    async def __call__(self, http: HttpRequest) -> Response:
        """The HTTP interface of `leafbeam serve`: POST /v1/recommend, /readyz, /metrics, /docs."""
        with self._now() as served:
            return await _through(served.app, http)

    async def recommend(self, body: dict[str, Any]) -> dict[str, Any]:
        """For other deployments: the JSON of POST /v1/recommend in and out; refusals are raised as the engine raises them."""
        from leafbeam.serve.schema import RecommendAnswer, RecommendBody

        with self._now() as served:
            request = RecommendBody.model_validate(body).to_request()
            future = await asyncio.to_thread(served.engine.submit, request)
            return RecommendAnswer.of(await asyncio.wrap_future(future)).model_dump()

    async def status(self) -> dict[str, Any]:
        """What answers here, and what went wrong with files that came later."""
        with self._now() as served:
            version = name_of(served.engine.version)
            return {"files": asdict(served.files), "index_version": version, "fault": self._fault}

    async def check_health(self) -> None:
        """Ray replaces a replica for which this raises: its device hangs, or a worker has ended."""
        if self._served is not None and (trouble := self._served.engine.trouble) is not None:
            raise UnavailableError(trouble, reason="unhealthy")

    def __del__(self) -> None:
        """Ray calls it after the replica's last request."""
        if self._served is not None:
            self._served.stop()

    def _now(self) -> _Served:
        if self._served is None:
            raise UnavailableError("this replica has no files yet: deploy it with leafbeam.integrations.ray_serve.application")
        return self._served


def application(args: Mapping[str, Any] | Fleet) -> serve.Application:
    """The application, for `serve.run`, `serve run` and Serve config files.

    args: a Fleet, or the fields of Files, Settings and Fleet in one flat mapping. Ray queues what replicas have no room for and
    refuses it with 503 beyond twice that; the engines refuse what cannot be in time with 429.

    >>> serve.run(application(Fleet(files=files, min_replicas=2, max_replicas=8)), route_prefix="/")   # doctest: +SKIP
    """
    fleet = args if isinstance(args, Fleet) else Fleet.of(args)
    # A little more than an engine's queue, so that it is the engine that refuses, and says why.
    room = fleet.settings.max_queue + fleet.settings.workers * fleet.settings.max_batch + 8
    fixed = fleet.min_replicas == fleet.max_replicas
    scaling = AutoscalingConfig(
        min_replicas=fleet.min_replicas, max_replicas=fleet.max_replicas, target_ongoing_requests=fleet.target_ongoing
    )
    deployment: Any = serve.deployment(  # Ray's types know of functions only
        Recommender,
        name="Recommender",
        num_replicas=fleet.min_replicas if fixed else None,
        autoscaling_config=None if fixed else scaling,
        max_ongoing_requests=room,
        max_queued_requests=2 * room,
        user_config=asdict(fleet.files),
        health_check_period_s=fleet.health_period_s,
        graceful_shutdown_timeout_s=fleet.grace_s,
        ray_actor_options={"num_cpus": fleet.num_cpus, "num_gpus": fleet.num_gpus},
    )
    return deployment.bind(fleet.settings, fleet.device, fleet.grace_s)


async def _through(app: ASGIApp, http: HttpRequest) -> Response:
    """The answer of an ASGI application as one object. Answers here are short: they are not streamed."""
    status, headers, body = 500, list[tuple[bytes, bytes]](), bytearray()

    async def send(message: Message) -> None:
        nonlocal status, headers
        if message["type"] == "http.response.start":
            status, headers = message["status"], list(message.get("headers", ()))
        elif message["type"] == "http.response.body":
            body.extend(message.get("body", b""))

    await app(http.scope, http.receive, send)
    response = Response(bytes(body), status_code=status)
    response.raw_headers = headers
    return response


def _typed(name: str, value: Any, kind: Any) -> Any:
    """Words of a command line as what the field holds."""
    if not isinstance(value, str) or kind in (str, "str", str | None):
        return value
    if kind is bool and value in ("true", "false"):
        return value == "true"
    try:
        return {int: int, float: float, float | None: float}[kind](value)
    except (KeyError, ValueError) as error:
        raise ArgumentError(f"{name}={value!r}: expected {getattr(kind, '__name__', kind)}") from error
