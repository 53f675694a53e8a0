"""From accumulators to memory: the steps after the sums, and two ways to store."""
