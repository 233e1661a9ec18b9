"""The emulated switch: a process that aggregates for real along trees, with room for so many operations at once."""
