"""The benchmarks, one module per NAME."""
