"""The agent of INA sharing inside offpathd: between the controller and the ranks of this daemon's host."""
