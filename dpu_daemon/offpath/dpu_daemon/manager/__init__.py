"""The job manager: places jobs with a GPU count in batches, and has Slurm or this machine run them (NetPack)."""
