"""End hosts of statistical INA: a worker that sends with AIMD, and the parameter server."""
