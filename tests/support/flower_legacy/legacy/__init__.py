"""An app of Flower's older API: each client adds one."""
