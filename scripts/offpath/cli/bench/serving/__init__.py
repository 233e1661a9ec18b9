"""`offpath bench serving`: offpath's client and gateway beside a real Triton server."""
