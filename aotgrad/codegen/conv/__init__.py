"""Convolution kernels: what they compute (``spec``), and how (``emit``)."""
