"""NetPack's placement: which jobs of a batch, on which servers, where the PS is, and who uses aggregation."""
