"""Benchmarks: `python -m bench` (see docs/benchmarks.md).

  workloads, cases      what is measured: rows W1 to W3, and every case by name
  driver                the small interface behind which the product and its peers are measured
  conduit_cases         the product behind it; memory at capacity
  numpy_ring, peers/    what it is compared with, each peer in a virtual environment of its own
  ceilings              what one core allows: memcpy, row gather and tree draw in a few lines of C
  measure, cross        one case in one process; writers and a learner in several
  imports               time to import
  worker, runner        the process that runs one case; the one that takes turns between them
  targets, report       ratios that must hold; tables, JSON lines and plots
  machine               what a result belongs to: processor, kernel, commit

Modules that run inside a peer's environment import NumPy and torch and nothing else that is not the peer's.
"""
