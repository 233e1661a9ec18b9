"""Training jobs on this host: the pages they meet the agent in, and the runtime that carries their all-reduces.

Importing this package imports nothing else. What needs torch (extra ``train``) is in `runtime`, `hook` and `backend`;
`page` and `folder` need none: the helper that watches the folder is no training process.
"""
