"""The demo: real digits, a real trace, real processes.

`command` is the command line, `drive` runs the processes and gathers what they say, `serving` is the helper's process,
`tenant` a requester's; `report`, `table` and `timeline` say what happened.
"""
