"""The aotgrad runtime: what a deployed program needs. Imports NumPy alone."""
