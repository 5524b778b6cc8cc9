"""Coverage-guided fuzzing of what reads bytes that others wrote: `python -m tests.fuzz` (`make fuzz`)."""

# see targets.py
TARGETS = ("manifest", "restore", "manifest-file", "spec", "npz", "arrow", "rllib-json", "header")
