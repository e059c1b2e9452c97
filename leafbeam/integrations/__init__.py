"""leafbeam inside transformers and Ray, over vLLM and SGLang, and batch jobs over tables. Names load on first use."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leafbeam.integrations.batch import BatchJob, UserColumns, recommend_users
    from leafbeam.integrations.constraint_processor import ConstraintLogitsProcessor, ItemConstraint
    from leafbeam.integrations.custom_generate import CUSTOM_GENERATE
    from leafbeam.integrations.http_logprobs import HttpOptions, OpenAIServer
    from leafbeam.integrations.logprob_search import LogprobBeamSearch, LogprobSearchResult
    from leafbeam.integrations.logprobs import LogprobModel, TokenQuery
    from leafbeam.integrations.ray_batch import recommend_users_on_ray
    from leafbeam.integrations.ray_serve import DeploymentConfig, application
    from leafbeam.integrations.ray_shards import load_shards_on_ray
    from leafbeam.integrations.served_items import ServedItems
    from leafbeam.integrations.sglang import SglangServer
    from leafbeam.integrations.shard_search import ShardedSearch
    from leafbeam.integrations.shards import BoostHandle, FilterHandle, ShardedIndex, ShardTraffic
    from leafbeam.integrations.transformers import CodeTokens, TrieLogitsProcessor, prefix_allowed_tokens_fn
    from leafbeam.integrations.vllm import VllmModel, VllmServer

__all__ = [
    "CUSTOM_GENERATE",
    "BatchJob",
    "BoostHandle",
    "CodeTokens",
    "ConstraintLogitsProcessor",
    "DeploymentConfig",
    "FilterHandle",
    "HttpOptions",
    "ItemConstraint",
    "LogprobBeamSearch",
    "LogprobModel",
    "LogprobSearchResult",
    "OpenAIServer",
    "ServedItems",
    "SglangServer",
    "ShardTraffic",
    "ShardedIndex",
    "ShardedSearch",
    "TokenQuery",
    "TrieLogitsProcessor",
    "UserColumns",
    "VllmModel",
    "VllmServer",
    "application",
    "load_shards_on_ray",
    "prefix_allowed_tokens_fn",
    "recommend_users",
    "recommend_users_on_ray",
]

if not TYPE_CHECKING:  # a type checker sees the imports above, and that there are no other names
    from leafbeam.extras import lazy_exports

    __getattr__, __dir__ = lazy_exports(__name__)
