"""Code shared by host channels of all carriers."""
