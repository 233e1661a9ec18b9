"""The slow suites of tests: which there are, what each depends on, and which record is of the present sources.

`table` reads ``tests/suites.toml``. `sources` hashes what a suite depends on. `records` keeps a verdict for each suite
in ``docs/evidence/suites``. `recorder` is the pytest plug-in that collects one; `run` starts suites; ``python -m
tests.suites`` is the command behind ``./scripts/test --slow | --stale | --full | --status``.
"""
