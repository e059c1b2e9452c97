"""Feast's definition of users' histories: for each user the last items, oldest first."""

from datetime import timedelta

from feast import Entity, FeatureView, Field, PushSource
from feast.infra.offline_stores.file_source import FileSource
from feast.types import Array, String
from feast.value_type import ValueType

user = Entity(name="user", join_keys=["user_id"], value_type=ValueType.STRING)
log = FileSource(name="histories_log", path="histories.parquet", timestamp_field="event_timestamp")
histories = FeatureView(
    name="histories",
    entities=[user],
    ttl=timedelta(days=365),
    schema=[Field(name="items", dtype=Array(String))],
    source=PushSource(name="histories_push", batch_source=log),
    online=True,
)
