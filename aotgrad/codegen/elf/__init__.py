"""Object files without tools: a linker for shared libraries and for one relocatable object, and an archive writer."""

from .shared import link_shared

__all__ = ["link_shared"]
