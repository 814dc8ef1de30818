"""One file per workload; each has run(bench)."""
