"""`leafbeam recommend` and `leafbeam serve`."""

import gc
import json
import signal
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from leafbeam.cli.console import next_step, stdout
from leafbeam.cli.options import (
    DEFAULT_RUN,
    DeviceOption,
    NoVerifyOption,
    RunOption,
    ScoringOption,
    option,
    split_names,
    with_settings,
)
from leafbeam.cli.run import RunDirectory
from leafbeam.config_file import changes_of
from leafbeam.errors import ArgumentError
from leafbeam.extras import require, require_device
from leafbeam.serve.config import ServerConfig

TABLE = "A table of users"
Channel = Literal["model", "memory", "fused"]
ENGINE_FILES = ("model", "trie", "catalog", "rules")
_OF_ITEMS = (
    "device",
    "verify",
    "learn",
    "changes",
    "refresh",
    "rule_timeout_s",
    "rules",
    "max_batch_bytes",
    "engine",
    "limits",
)

_HISTORY_HELP = (
    "Item ids, oldest first, with commas between them. An id with a comma, or with blanks around it, goes into double quotes, "
    'as in A7,"B,8"; a double quote inside those is written twice.'
)


def recommend(
    run: RunOption = DEFAULT_RUN,
    history: Annotated[str | None, option("--history", _HISTORY_HELP)] = None,
    user: Annotated[str, option("--user", "A user of the log, in place of --history.")] = "",
    rules: Annotated[str, option("--rules", "Names of rules that every item must pass, with commas.")] = "",
    deny: Annotated[str, option("--deny", "Item ids to exclude, as for --history.")] = "",
    keep_history: Annotated[bool, option("--keep-history", "Return items of the history too.")] = False,
    num_items: Annotated[int, option("--items", "The largest number of items to return.")] = 10,
    num_beams: Annotated[int | None, option("--beams", "The number of beams of the search.", default="20")] = None,
    scoring: ScoringOption = "full",
    channel: Annotated[
        Channel | None,
        option(
            "--channel",
            "The ranking to use: that of the model, of the item memory, or of both.",
            metavar="model|memory|fused",
            default="fused, without a memory model",
        ),
    ] = None,
    device: DeviceOption = "cpu",
    no_verify: NoVerifyOption = False,
    users: Annotated[Path | None, option("--users", "Parquet file or directory, in place of --history.", TABLE)] = None,
    out: Annotated[Path | None, option("--out", "The directory to write Parquet into.", TABLE)] = None,
    user_column: Annotated[str, option("--user-column", "The column of user ids.", TABLE)] = "user_id",
    history_column: Annotated[str, option("--history-column", "The column of lists of item ids.", TABLE)] = "history",
    on_ray: Annotated[bool, option("--ray", "Run on a Ray cluster.", TABLE)] = False,
    ray_address: Annotated[
        str | None, option("--ray-address", "The address of the Ray cluster.", TABLE, default="RAY_ADDRESS, or here")
    ] = None,
    workers: Annotated[
        int | None,
        option("--workers", "The number of engines on the Ray cluster (with --ray).", TABLE, default="as many as fit"),
    ] = None,
) -> None:
    """Recommend the next items after a history, under rules, as a table with titles.

    With --users, recommend for every user of a table; an interrupted call continues where it stopped.
    """
    if [history is not None, bool(user), users is not None].count(True) != 1:
        raise ArgumentError("expected one of --history A,B,C, --user U or --users TABLE")
    if (users is None) != (out is None):
        raise ArgumentError("--users and --out go together: the table to read and the directory to write")
    if users is None and (on_ray or workers is not None or ray_address is not None):
        raise ArgumentError("--ray, --ray-address and --workers go with --users")
    if users is not None and deny:
        raise ArgumentError("--deny goes with --history and --user, not with --users")
    paths = RunDirectory(run)
    paths.check(*ENGINE_FILES, *(["source"] if user else []))
    require("`leafbeam recommend`", "duckdb", "pyarrow", "torch")
    if on_ray:
        require("`leafbeam recommend --ray`", "ray")
    else:
        require_device(device)
    rule_names = split_names(rules)
    if users is not None and out is not None:
        from leafbeam.cli.batch import recommend_table
        from leafbeam.integrations.batch import RequestTemplate, ServingFiles

        template = RequestTemplate(
            num_items=num_items,
            num_beams=num_beams,
            scoring=scoring,
            rules=rule_names,
            channel=channel,
            user_column=user_column,
            history_column=history_column,
            keep_history=keep_history,
        )
        files = ServingFiles(
            model=str(paths.model),
            index=str(paths.index),
            catalog=str(paths.catalog),
            rules=tuple(map(str, paths.rule_files)),
            verify=not no_verify,
            memory=None if paths.fitted_memory is None else str(paths.fitted_memory),
        )
        recommend_table(files, users, out, template, device=device, on_ray=on_ray, address=ray_address, workers=workers)
        return
    gc.disable()  # imports make a million lasting objects: looking through them takes a sixth of this command
    try:
        from leafbeam.cli import output
        from leafbeam.engine import CatalogFiles, Engine, Request
    finally:
        gc.enable()

    catalog_files = CatalogFiles(
        index=paths.index,
        catalog=paths.catalog,
        rules=paths.rule_files,
        verify=not no_verify,
        memory=paths.fitted_memory,
    )
    with closing(Engine.load(paths.model, catalog_files, device=device)) as engine:
        request = Request(
            history=tuple(output.history_of(paths, user) if user else output.parse_ids(history or "", engine.trie)),
            user=user or None,
            num_items=num_items,
            rules=rule_names,
            deny_item_ids=tuple(output.parse_ids(deny, engine.trie)),
            keep_history=keep_history,
            num_beams=num_beams,
            scoring=scoring,
            channel=channel,
        )
        output.show(stdout(), engine, request, engine.recommend(request))
    next_step(stdout(), "leafbeam", "serve", "--run", run)


@with_settings(
    ServerConfig,
    {
        "run": "--run",
        "text_model": "--text-model",
        "host": "--host",
        "port": "--port",
        "device": "--device",
        "changes": "--changes",
        "learn": "--learn",
        "keys": "--keys",
        "exposure.insecure": "--insecure",
        "engine.num_beams": "--beams",
        "engine.workers": "--workers",
        "engine.threads": "--threads",
        "http_workers": "--http-workers",
        "refresh": "--refresh",
        "grace_s": "--grace",
        "log_format": "--log-format",
    },
)
def serve(
    slo_ms: Annotated[
        float | None,
        option(
            "--slo-ms",
            "The deadline, in milliseconds, of requests without one. Requests that cannot meet their deadline get 429.",
        ),
    ] = None,
    rule: Annotated[
        list[str] | None,
        option("--rule", "Add a rule; repeatable. NAME@60s=SQL evaluates it again every 60 seconds.", metavar="NAME=SQL"),
    ] = None,
    *,
    config: ServerConfig,
) -> None:
    """Serve POST /v1/recommend and, for OpenAI's clients, /v1/completions and /v1/chat/completions; /docs lists all routes.

    SIGHUP reloads rules and catalog.
    """
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until rules are loaded, there is nothing to reload
    if slo_ms is not None:
        config = replace(config, engine=replace(config.engine, slo_s=slo_ms / 1e3))
    paths = None if config.run is None and config.text_model is not None else RunDirectory(config.run or DEFAULT_RUN)
    if paths is not None:
        paths.check(*ENGINE_FILES)
    else:
        _refuse_settings_of_items(config, rule)
    if config.text_model is not None:
        require("`leafbeam serve --text-model`", "tokenizers", "outlines_core")
    require(
        "`leafbeam serve`",
        *("duckdb", "msgspec", "prometheus_client", "pyarrow", "starlette", "torch", "uvicorn"),
        extra="serve",
    )
    require_device(config.device)
    from leafbeam.catalog import rules_from_text
    from leafbeam.engine import CatalogFiles
    from leafbeam.serve import ChangeFiles
    from leafbeam.serve import serve as run_server
    from leafbeam.serve.log_format import configure_log
    from leafbeam.text import TextService

    key_file = config.key_file()
    config.exposure.check(config.host, has_keys=key_file is not None)
    configure_log(config.log_format, values=config.log_requests == "histories")
    text = None if config.text_model is None else TextService.load(config.text_model, settings=config.texts)

    def on_ready(line: str) -> None:
        stdout().print(line, soft_wrap=True)
        url = line.split(" at ", 1)[-1].split(" ", 1)[0]
        name, body = "recommend", {"history": [], "num_items": 10}
        if paths is None and text is not None:
            name, body = "completions", {"model": text.name, "prompt": "A lamp is a", "guided_choice": ["thing", "person"]}
        header = [] if key_file is None else ["-H", "authorization: Bearer KEY"]
        next_step(stdout(), "curl", f"{url}/v1/{name}", *header, "-H", "content-type: application/json", "-d", json.dumps(body))

    if paths is None:
        run_server(None, None, config=config, text=text, on_ready=on_ready)
        return
    files = CatalogFiles(
        index=paths.trie,
        catalog=paths.catalog,
        rules=[paths.rules, rules_from_text([*map("=".join, config.rules.items()), *(rule or [])])],
        refresh=config.refresh,
        memory=paths.fitted_memory,
        learn=config.learn,
        rule_timeout_s=config.rule_timeout_s,
        verify=config.verify,
    )
    changes = ChangeFiles(directory=paths.live, encoder=paths.load_encoder(), changes=config.changes)
    run_server(paths.model, files, config=config, text=text, changes=changes, on_ready=on_ready)


def _refuse_settings_of_items(config: ServerConfig, rules: list[str] | None) -> None:
    """Raise ArgumentError if a setting of items is given to a server that only generates text."""
    of_items = [name for name in changes_of(config) if name.partition(".")[0] in _OF_ITEMS]
    if of_items or rules:
        name = of_items[0] if of_items else "--rule"
        raise ArgumentError(
            f"{name} needs --run, because a server with --text-model alone serves no items: pass --run, or leave {name} out"
        )
