"""The gateway: models for clients of the Open Inference Protocol (KServe v2, Triton) over HTTP and gRPC."""
