"""Clients of a leafbeam server, for threads and for asyncio."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # for type checkers; at run time `__getattr__` imports a name when it is first used
    from leafbeam.client.clients import AsyncClient, Client
    from leafbeam.client.imports import ImportedItems
    from leafbeam.client.retries import Retries
    from leafbeam.serve.catalog_schema import (
        BoostAnswer,
        BoostsAnswer,
        CatalogAnswer,
        ChangeAnswer,
        FoundItem,
        FoundItems,
        ItemAnswer,
        RuleAnswer,
        RulesAnswer,
        SnapshotAnswer,
    )
    from leafbeam.serve.schema import InteractionBody, InteractionsAnswer, Readiness, RecommendAnswer

__all__ = [
    "AsyncClient",
    "BoostAnswer",
    "BoostsAnswer",
    "CatalogAnswer",
    "ChangeAnswer",
    "Client",
    "FoundItem",
    "FoundItems",
    "ImportedItems",
    "InteractionBody",
    "InteractionsAnswer",
    "ItemAnswer",
    "Readiness",
    "RecommendAnswer",
    "Retries",
    "RuleAnswer",
    "RulesAnswer",
    "SnapshotAnswer",
]

if not TYPE_CHECKING:  # a type checker sees the imports above, and that there are no other names
    from leafbeam.extras import lazy_exports

    __getattr__, __dir__ = lazy_exports(__name__)
