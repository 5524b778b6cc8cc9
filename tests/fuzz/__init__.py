"""Coverage-guided fuzzing of what reads bytes that others wrote: `python -m tests.fuzz` (`make fuzz`)."""

TARGETS = ("manifest", "restore", "manifest-file", "spec", "npz", "arrow", "header")  # see targets.py
