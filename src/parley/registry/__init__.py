"""Who takes part: one pure module, mounted in the data shards as long as there is no governance (P9, P26)."""
