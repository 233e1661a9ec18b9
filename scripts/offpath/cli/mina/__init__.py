"""What `offpath simulate mina` and `offpath bench ina` share: the cells of MINA's experiments, and their inputs."""
