"""Many federated jobs, one population of devices that come and go: which job gets a device that checks in (Venn)."""
