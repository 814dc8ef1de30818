"""Object files without tools: a linker for shared libraries and for one relocatable object, and an archive writer."""

from .archive import write_archive
from .relocatable import link_relocatable
from .shared import link_shared

__all__ = ["link_relocatable", "link_shared", "write_archive"]
