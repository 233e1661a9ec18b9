"""The demo: real digits, a real trace, real processes.

`command` is the command line, `drive` runs the processes and collects their output, `serving` is the helper's process,
`tenant` a requester's; `report`, `table` and `timeline` present the result.
"""
