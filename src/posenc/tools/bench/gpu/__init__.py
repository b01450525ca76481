"""The first minutes on a GPU, prepared: every step a process with a limit, every result a line of JSON."""
