"""One module for each command `offpath GROUP COMMAND`; `main.py` lists them and imports the chosen one."""
