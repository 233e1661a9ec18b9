"""GPU fractions, MIG geometry and the policies that route jobs to leases (Conspirator §3.3)."""
