"""NetPack's evaluation (§6): streams of jobs, and runs of one policy on one of them."""
