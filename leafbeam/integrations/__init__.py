"""leafbeam inside Hugging Face transformers and Ray, and batch jobs over tables of users. Names load on first use."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leafbeam.integrations.batch import BatchJob, RequestTemplate, ServingFiles, recommend_users
    from leafbeam.integrations.ray_batch import recommend_users_on_ray
    from leafbeam.integrations.ray_serve import DeploymentConfig, application
    from leafbeam.integrations.transformers import CodeTokens, TrieLogitsProcessor, prefix_allowed_tokens_fn

__all__ = [
    "BatchJob",
    "CodeTokens",
    "DeploymentConfig",
    "RequestTemplate",
    "ServingFiles",
    "TrieLogitsProcessor",
    "application",
    "prefix_allowed_tokens_fn",
    "recommend_users",
    "recommend_users_on_ray",
]

if not TYPE_CHECKING:  # a type checker sees the imports above, and that there are no other names
    from leafbeam.extras import lazy_exports

    __getattr__, __dir__ = lazy_exports(__name__)
