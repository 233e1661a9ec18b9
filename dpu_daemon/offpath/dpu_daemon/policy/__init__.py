"""The policy plug-in's process."""
