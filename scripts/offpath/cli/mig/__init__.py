"""`offpath mig`: the MIG instances of this host, and layouts of them in mig-parted's files."""
