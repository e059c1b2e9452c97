"""An index that changes while it is searched: insert, delete and replace items, in memory or durably on disk."""

from leafbeam.live.journal import KnownRequests, RequestKey
from leafbeam.live.live_index import CompactionPolicy, LiveIndex, LiveIndexStatus
from leafbeam.live.transaction import Transaction

__all__ = ["CompactionPolicy", "KnownRequests", "LiveIndex", "LiveIndexStatus", "RequestKey", "Transaction"]
