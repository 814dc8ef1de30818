"""Object files without tools: a linker for shared libraries (``shared``) and for one relocatable object (``relocatable``), and an archive writer (``archive``)."""

from .shared import link_shared

__all__ = ["link_shared"]
