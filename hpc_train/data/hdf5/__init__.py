"""From the bytes of shards to rows."""
