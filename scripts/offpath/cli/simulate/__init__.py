"""`offpath simulate EXPERIMENT`: the papers' evaluations, with the papers' figures beside offpath's."""
