"""The controller of INA sharing: who gets which tree, from admission to the last rank's word (DESIGN §6)."""
