"""What other programs may rely on: the format of shards, masks, and what both packages share."""
