"""Recommend to a user by id: read the user's history from Feast's online store when it is needed, then ask a leafbeam server.

feast apply                                              # in examples/feast: makes the store
python examples/feast/recommend.py USER http://127.0.0.1:8000
"""

import sys
from pathlib import Path

from feast import FeatureStore

from leafbeam import Client


def history_of(store: FeatureStore, user: str) -> list[str]:
    """The user's newest items, oldest first; none for a user whom the store does not know."""
    found = store.get_online_features(features=["histories:items"], entity_rows=[{"user_id": user}]).to_dict()
    return list(found["items"][0] or ())


def recommend(store: FeatureStore, client: Client, user: str, **options) -> list[str]:
    """Items for a user. options: of `Client.recommend`, such as rules and num_items."""
    return list(client.recommend(history_of(store, user), **options).item_ids)


if __name__ == "__main__":
    user, url = sys.argv[1:]
    with Client(url) as client:
        print(recommend(FeatureStore(str(Path(__file__).parent)), client, user))
