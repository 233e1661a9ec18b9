"""The process of the policy plug-in and its connection to the daemon."""
