"""The command line, its plots and report writers; the one package that may import all others."""
