"""INA on a host: the ranks' state files, and the runtime that performs their all-reduces.

Importing this package loads no other module. `runtime`, `hook` and `backend` need torch (extra ``train``); `rank_file`
and `folder` do not, because the helper, which watches the folder, is not a training process.
"""
