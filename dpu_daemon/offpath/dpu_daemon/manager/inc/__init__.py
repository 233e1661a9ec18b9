"""The job manager's part for requests for servers and switches (HIRE): configuration, file, switches, processes."""
