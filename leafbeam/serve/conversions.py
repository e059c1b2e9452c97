"""From the JSON of the HTTP interface to the engine's requests, and from its results to JSON."""

from typing import Any

import msgspec

from leafbeam.decode import BeamLevel
from leafbeam.engine import Request, Result, SlowBatch
from leafbeam.serve.schema import (
    LevelAnswer,
    ReasonAnswer,
    RecommendAnswer,
    RecommendBody,
    SlowBatchAnswer,
    TimingsAnswer,
)


def request_of(body: RecommendBody) -> Request:
    """The engine's request. Raises RequestError for a value out of range."""
    values: dict[str, Any] = {name: getattr(body, name) for name in body.__struct_fields__ if name != "deadline_ms"}
    return Request(**values, deadline_s=None if body.deadline_ms is None else body.deadline_ms / 1e3)


def recommend_answer(result: Result, *, explain: bool = False) -> RecommendAnswer:
    """The answer to a request."""
    timings = TimingsAnswer(**{name: 1e3 * getattr(result.timings, name) for name in TimingsAnswer.__struct_fields__})
    reasons = tuple(ReasonAnswer(channel=why.channel, item_id=why.item_id, score=why.score) for why in result.reasons)
    levels = tuple(map(_level_answer, result.levels)) if explain else msgspec.UNSET
    renamed: dict[str, Any] = {"timings_ms": timings, "reasons": reasons, "levels": levels}
    renamed["ignored_deny_item_ids"] = result.ignored_deny
    return RecommendAnswer(
        **renamed, **{name: getattr(result, name) for name in RecommendAnswer.__struct_fields__ if name not in renamed}
    )


def slow_batch_answer(batch: SlowBatch) -> SlowBatchAnswer:
    """A slow batch as JSON."""
    size, use = batch.size, batch.use
    return SlowBatchAnswer(
        ended_at=batch.ended_at,
        worker=batch.worker,
        seconds=batch.seconds,
        median_s=batch.median_s,
        requests=size.requests,
        tokens=size.tokens,
        num_beams=size.num_beams,
        prefill_s=batch.prefill_s,
        rounds_s=batch.rounds_s,
        constrain_s=batch.constrain_s,
        cpu_s=use.cpu_s,
        waits=use.waits,
        preempted=use.preempted,
        faults=use.faults,
    )


def _level_answer(level: BeamLevel) -> LevelAnswer:
    return LevelAnswer(**{name: getattr(level, name).tolist() for name in LevelAnswer.__struct_fields__})
