"""Every speed claim, as a command that prints a table: `python -m bench`, or `python -m bench NAME` for one."""
