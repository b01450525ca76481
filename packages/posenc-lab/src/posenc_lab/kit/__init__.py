"""Shared code of the commands: files, records, progress, machine, memory, configurations, pages, the command line."""
