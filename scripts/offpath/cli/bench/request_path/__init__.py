"""`offpath bench request-path`: the request path beside its floors and the other settings of Conspirator §4.1."""
