"""`offpath simulate EXPERIMENT`: the papers' evaluations, their figures beside ours."""
