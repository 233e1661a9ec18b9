"""RDMA adapters over pyverbs, the distribution's Python binding of libibverbs. No other package imports pyverbs."""
