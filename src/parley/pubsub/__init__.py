"""The application of the data shards: topics, subscriptions, matching and order, the same on every replica."""
