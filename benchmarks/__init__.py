"""How fast aotgrad is beside its peers: ``aotgrad bench`` or ``python -m benchmarks``. README.md says how it is measured."""
