"""`offpath demo netpack`: training jobs placed by a job manager, on an emulated rack with a statistical switch."""
