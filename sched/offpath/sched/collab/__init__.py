"""Many federated jobs, one population of devices that come and go: which job a device that checks in works for (Venn)."""
