"""`offpath web run`: a read-only page about a daemon, a controller and a job manager.

`reader` polls their admin sockets, `history` keeps what leases occupied, `document` turns both into JSON, `guard`
decides who may read, `app` serves the page in `static`, `command` starts it.
"""
