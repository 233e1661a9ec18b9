"""The cells of MINA's experiments and their inputs, shared by `offpath simulate mina` and `offpath bench ina`."""
