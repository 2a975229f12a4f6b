"""Every speed claim, as a command that prints a table."""
