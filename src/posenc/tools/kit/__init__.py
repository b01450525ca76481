"""What the commands share: files, records, progress, machine, memory, configurations, pages, the command line."""
