"""The engine as a Ray Serve application: autoscaled replicas, and new catalogs without downtime.

    serve run leafbeam.integrations.ray_serve:application model=/runs/shop/model index=/runs/shop/index.leafbeam

Each replica is one engine with the HTTP interface of `leafbeam serve`. All machines need leafbeam and the same paths.
"""

import asyncio
import logging
import os
import time
from dataclasses import asdict, dataclass, field, fields
from itertools import chain
from typing import Any, get_args

from leafbeam.engine import CatalogFiles, Engine, Settings
from leafbeam.errors import ArgumentError, LeafbeamError, UnavailableError, check_number
from leafbeam.extras import optional_imports
from leafbeam.json_reader import Json
from leafbeam.model import AnyModel, load_for_decoding
from leafbeam.serve import ServerConfig, create_app

with optional_imports("a Ray Serve application", "ray"):
    from ray import serve
    from ray.serve.config import AutoscalingConfig
    from starlette.requests import Request as HttpRequest
    from starlette.responses import Response
    from starlette.types import ASGIApp, Message

log = logging.getLogger("leafbeam.ray")

_OWNERS = ("files", "settings")  # fields that hold the other classes' fields


@dataclass(frozen=True, kw_only=True, slots=True)
class DeploymentConfig:
    """The replicas of an application.

    All paths are made absolute.

    Args:
        model: The directory of the model.
        files: The index, the catalog, its rules and the item memory. Deploying the application again with other files
            rolls them out (see `Recommender`).
        settings: The settings of each replica's engine.
        device: The device of the model; "cuda" goes with num_gpus.
        min_replicas: The smallest number of replicas.
        max_replicas: The largest number of replicas.
        target_ongoing: The number of requests that Ray keeps on each replica, if the number of replicas may change.
        num_cpus: The CPUs of one replica.
        num_gpus: The GPUs of one replica.
        health_period_s: The seconds between two health checks.
        grace_s: The seconds for which an engine that is replaced or stopped may still answer accepted requests.
    """

    model: str
    files: CatalogFiles
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
        object.__setattr__(self, "model", os.path.abspath(self.model))
        object.__setattr__(self, "files", self.files.absolute())
        if not 1 <= self.min_replicas <= self.max_replicas:
            raise ArgumentError(f"min_replicas={self.min_replicas} must be from 1 to max_replicas={self.max_replicas}")
        above_0 = ("target_ongoing", "num_cpus", "health_period_s", "grace_s")
        check_number(exclusive=True, **{name: getattr(self, name) for name in above_0})
        check_number(num_gpus=self.num_gpus)

    @classmethod
    def of(cls, args: Json) -> "DeploymentConfig":
        """Return the config of the flat arguments of `serve run` or of a Serve config file.

        They are fields of CatalogFiles, of Settings and of this class.
        """
        owners: tuple[type, ...] = (CatalogFiles, Settings, cls)
        kinds = [{field.name: field.type for field in fields(owner) if field.name not in _OWNERS} for owner in owners]
        for name in args:
            if not any(name in own for own in kinds):
                raise ArgumentError(f"there is no argument {name!r}: choose among {', '.join(chain(*kinds))}")
        if missing := [name for name in ("model", "index") if name not in args]:
            raise ArgumentError(f"{' and '.join(missing)} missing: pass the path")
        files, settings, own = ({name: _typed(name, args[name], own[name]) for name in own if name in args} for own in kinds)
        return cls(files=CatalogFiles(**files), settings=Settings(**settings), **own)


class _ServedEngine:
    """An engine with its HTTP interface, which counts the requests inside."""

    def __init__(self, engine: Engine, files: Json, grace_s: float) -> None:
        self.engine, self.files, self._grace_s = engine, files, grace_s
        self.app: ASGIApp = create_app(engine, config=ServerConfig(grace_s=grace_s))
        self._num_inside = 0

    def __enter__(self) -> "_ServedEngine":
        self._num_inside += 1
        return self

    def __exit__(self, *error: object) -> None:
        self._num_inside -= 1

    def close(self) -> None:
        """Answer what the engine has accepted, then close it."""
        self.engine.close(self._grace_s)

    async def retire(self) -> None:
        """Close once no request is inside, or the grace period is over."""
        over = time.monotonic() + self._grace_s
        while self._num_inside and time.monotonic() < over:
            await asyncio.sleep(0.02)
        if self._num_inside:
            log.warning("%d requests still use the former catalog after %g s", self._num_inside, self._grace_s)
        await asyncio.to_thread(self.close)


class Recommender:
    """A replica: answers over HTTP (`__call__`) and from other deployments (`recommend`), and can change its catalog in place.

    A change of the deployment's user_config alone (`serve deploy` of a config file; `serve.run` replaces the replicas instead)
    calls `reconfigure`: a new engine is loaded beside the old one, over the same weights if the model's path is the same, and
    takes all new requests at once, while the old one finishes its own. Files that cannot be read leave the old engine in
    place; `status` and the log say so.
    """

    _served: _ServedEngine | None = None

    def __init__(self, settings: Settings, device: str, grace_s: float) -> None:
        self._settings, self._device, self._grace_s = settings, device, grace_s
        self._model: tuple[str, AnyModel] | None = None
        self._fault: str | None = None
        self._retiring: set[asyncio.Task[None]] = set()

    async def reconfigure(self, user_config: Json) -> None:
        """Load other files. Ray calls it after construction and whenever the user_config changes.

        Args:
            user_config: `model`, the directory of the model, and fields of CatalogFiles.
        """
        try:
            path, files = user_config["model"], {name: value for name, value in user_config.items() if name != "model"}
            model, engine = await asyncio.to_thread(self._load, path, CatalogFiles(**files))
        except (LeafbeamError, OSError, TypeError, KeyError) as error:
            if self._served is None:
                raise
            # A replica that fails here would be replaced by one that fails too.
            self._fault = f"{type(error).__name__}: {error}"
            log.error("the new files cannot be served, so the former ones are still served: %s", self._fault)
            return
        former, self._served = self._served, _ServedEngine(engine, user_config, self._grace_s)
        self._model, self._fault = (path, model), None
        if former is not None:
            task = asyncio.create_task(former.retire())
            self._retiring.add(task)
            task.add_done_callback(self._retiring.discard)

    def _load(self, path: str, files: CatalogFiles) -> tuple[AnyModel, Engine]:
        is_same = self._model is not None and self._model[0] == path
        model = self._model[1] if self._model is not None and is_same else load_for_decoding(path, device=self._device)
        engine = Engine.load(model, files, settings=self._settings)
        try:
            engine.start()
        except BaseException:
            engine.close()
            raise
        return model, engine

    async def __call__(self, http: HttpRequest) -> Response:
        """Return the HTTP interface of `leafbeam serve`: POST /v1/recommend, /readyz, /metrics, /docs."""
        with self._current() as served:
            return await _through(served.app, http)

    async def recommend(self, body: Json) -> Json:
        """Answer other deployments, with the JSON of POST /v1/recommend in and out. Raises what `Engine.submit` raises."""
        import msgspec

        from leafbeam.serve.engine_routes import recommend_answer, request_of
        from leafbeam.serve.errors import BodyError, describe
        from leafbeam.serve.schema import RecommendBody

        try:
            request = request_of(msgspec.convert(body, RecommendBody))
        except msgspec.ValidationError as error:
            raise BodyError(describe(error, RecommendBody)) from None
        with self._current() as served:
            future = await asyncio.to_thread(served.engine.submit, request)
            answer = recommend_answer(await asyncio.wrap_future(future))
            return msgspec.json.decode(msgspec.json.encode(answer))

    async def status(self) -> Json:
        """Return the files that are served, and the error of newer files that could not be loaded."""
        with self._current() as served:
            version = served.engine.version.name
            return {"files": dict(served.files), "index_version": version, "fault": self._fault}

    async def check_health(self) -> None:
        """Raise UnavailableError if the device hangs or a worker has ended; Ray then replaces the replica."""
        if self._served is not None and (reason := self._served.engine.unhealthy_reason) is not None:
            raise UnavailableError(reason, reason="unhealthy")

    def __del__(self) -> None:
        """Close the engine; Ray calls this after the replica's last request."""
        if self._served is not None:
            self._served.close()

    def _current(self) -> _ServedEngine:
        if self._served is None:
            raise UnavailableError("this replica has no files yet: deploy it with leafbeam.integrations.ray_serve.application")
        return self._served


def application(args: Json | DeploymentConfig) -> serve.Application:
    """Return the application, for `serve.run`, `serve run` and Serve config files.

    The engines reject requests with 429. Ray queues what exceeds a replica's capacity, and rejects with 503 what exceeds twice
    that.

    Args:
        args: A DeploymentConfig, or the fields of CatalogFiles, Settings and DeploymentConfig in one flat mapping.

    Examples:
        >>> config = DeploymentConfig(model=model, files=files, min_replicas=2, max_replicas=8)
        >>> serve.run(application(config), route_prefix="/")   # doctest: +SKIP
    """
    config = args if isinstance(args, DeploymentConfig) else DeploymentConfig.of(args)
    # A little more than an engine holds, so that the engine rejects, with its reason.
    max_ongoing = config.settings.max_queue + config.settings.workers * config.settings.max_batch + 8
    fixed = config.min_replicas == config.max_replicas
    scaling = AutoscalingConfig(
        min_replicas=config.min_replicas, max_replicas=config.max_replicas, target_ongoing_requests=config.target_ongoing
    )
    deployment: Any = serve.deployment(  # Ray's types know of functions only
        Recommender,
        name="Recommender",
        num_replicas=config.min_replicas if fixed else None,
        autoscaling_config=None if fixed else scaling,
        max_ongoing_requests=max_ongoing,
        max_queued_requests=2 * max_ongoing,
        user_config={"model": config.model, **asdict(config.files)},
        health_check_period_s=config.health_period_s,
        graceful_shutdown_timeout_s=config.grace_s,
        ray_actor_options={"num_cpus": config.num_cpus, "num_gpus": config.num_gpus},
    )
    return deployment.bind(config.settings, config.device, config.grace_s)


async def _through(app: ASGIApp, http: HttpRequest) -> Response:
    """Return the answer of an ASGI application as one object, not streamed."""
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
    """Return a text argument of a command line as the type of its field."""
    if not isinstance(value, str) or kind is str or str in get_args(kind):
        return value
    if kind is bool and value in ("true", "false"):
        return value == "true"
    try:
        return {int: int, int | None: int, float: float, float | None: float}[kind](value)
    except (KeyError, ValueError) as error:
        raise ArgumentError(f"{name}={value!r}: expected {getattr(kind, '__name__', kind)}") from error
