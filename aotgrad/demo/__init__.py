"""``aotgrad demo``: real data from training to a shared library. ``main.run_demo`` runs it."""
