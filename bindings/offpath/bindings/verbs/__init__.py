"""RDMA: ports over pyverbs, the distribution's Python binding of libibverbs. Nobody else imports pyverbs."""
