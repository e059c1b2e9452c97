"""`leafbeam serve`."""

import json
import signal
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Annotated

from leafbeam import catalog, engine, feeds, ingest, text
from leafbeam.cli.console import next_step, stdout
from leafbeam.cli.options import DEFAULT_RUN, option, with_settings
from leafbeam.cli.run import ENGINE_FILES, RunDirectory
from leafbeam.config_file import changes_of
from leafbeam.errors import ArgumentError
from leafbeam.extras import require, require_device
from leafbeam.serve.config import ServerConfig
from leafbeam.serve.feed_config import FeedConfig

_OF_ITEMS = (
    "device",
    "verify",
    "learn",
    "users",
    "changes",
    "refresh",
    "rule_timeout_s",
    "rules",
    "max_batch_bytes",
    "engine",
    "limits",
    "feed",
    "snapshot",
)


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
        "engine.max_rows": "--max-rows",
        "engine.workers": "--workers",
        "engine.threads": "--threads",
        "engine.precision": "--precision",
        "engine.graph_mb": "--graph-mb",
        "http_workers": "--http-workers",
        "refresh": "--refresh",
        "grace_s": "--grace",
        "log_format": "--log-format",
    },
    hidden=(
        *("--insecure", "--beams", "--max-rows", "--threads", "--graph-mb"),
        *("--http-workers", "--refresh", "--grace", "--log-format"),
    ),
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

    SIGHUP reloads rules, catalog and a model whose files have changed.
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
    modules = ("duckdb", "msgspec", "prometheus_client", "pyarrow", "starlette", "torch", "uvicorn")
    require("`leafbeam serve`", *modules, extra="serve")
    require_device(config.device)
    from leafbeam.serve import serve as run_server
    from leafbeam.serve.log_format import configure_log

    key_file = config.key_file()
    config.exposure.check(config.host, has_keys=key_file is not None)
    configure_log(config.log_format, values=config.log_requests == "histories")
    texts = None if config.text_model is None else text.TextService.load(config.text_model, settings=config.texts)
    text_name = texts.name if paths is None and texts is not None else None
    on_ready = partial(_show_address, text_name=text_name, has_keys=key_file is not None)
    if paths is None:
        run_server(None, None, config=config, text=texts, on_ready=on_ready)
        return
    if config.engine.widths_file is None:
        config = replace(config, engine=replace(config.engine, widths_file=paths.search_widths))
    run_server(
        paths.model,
        _files(paths, config, rule or []),
        config=config,
        text=texts,
        changes=paths.live,
        encoder=paths.load_encoder(),
        source=_source(config.feed),
        on_ready=on_ready,
    )


def _files(paths: RunDirectory, config: ServerConfig, rules: list[str]) -> "engine.CatalogFiles":
    """Return the files of a run's catalog. rules: those of the command line."""
    return engine.CatalogFiles(
        index=paths.trie,
        catalog=paths.catalog,
        rules=[paths.rules, catalog.rules_from_text([*map("=".join, config.rules.items()), *rules])],
        refresh=config.refresh,
        memory=paths.fitted_memory,
        learn=config.learn,
        rule_timeout_s=config.rule_timeout_s,
        verify=config.verify,
    )


def _source(feed: FeedConfig) -> "Callable[[ingest.CatalogWriter], ingest.Source] | None":
    """Return what makes the source that the items follow, if they follow one."""
    if not feed.name:
        return None

    return partial(feeds.CatalogSource, feed)


def _show_address(line: str, *, text_name: str | None, has_keys: bool) -> None:
    """Show the server's first line, and a request that can be sent to it. text_name: the model of a server of texts alone."""
    stdout().print(line, soft_wrap=True)
    url = line.split(" at ", 1)[-1].split(" ", 1)[0]
    name, body = "recommend", {"history": [], "num_items": 10}
    if text_name is not None:
        name, body = "completions", {"model": text_name, "prompt": "A lamp is a", "guided_choice": ["thing", "person"]}
    header = ["-H", "authorization: Bearer KEY"] if has_keys else []
    next_step(stdout(), "curl", f"{url}/v1/{name}", *header, "-H", "content-type: application/json", "-d", json.dumps(body))


def _refuse_settings_of_items(config: ServerConfig, rules: list[str] | None) -> None:
    """Raise ArgumentError if a setting of items is given to a server that only generates text."""
    of_items = [name for name in changes_of(config) if name.partition(".")[0] in _OF_ITEMS]
    if of_items or rules:
        name = of_items[0] if of_items else "--rule"
        raise ArgumentError(
            f"{name} needs --run, because a server with --text-model alone serves no items: pass --run, or leave {name} out"
        )
