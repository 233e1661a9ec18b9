"""The INA agent inside offpathd, which connects the controller with the ranks of the daemon's host."""
