"""HIRE's evaluation (§6): streams of jobs that want switches, and runs of one policy on one of them."""
