"""Engines that run jobs: Slurm, Ray, and `local` for one machine. offpath places jobs, engines start and end them."""
