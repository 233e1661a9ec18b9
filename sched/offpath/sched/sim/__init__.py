"""Virtual time: one event core and one vocabulary of workloads, accounts and records for every simulated experiment."""
