"""How many calls of a compiled function went through Python."""

from __future__ import annotations

from typing import Any

import aotgrad as ag


class Watched:
    """A compiled function that counts the calls that went the long way."""

    def __init__(self, f: Any, **options: Any) -> None:
        self.call = ag.compile(f, **options)
        self.state = self.call.cache_info.__self__
        self.long = 0
        inner = self.state._slow

        def counted(args: Any, kwargs: Any) -> Any:
            self.long += 1
            return inner(args, kwargs)

        self.state._slow = counted

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.call(*args, **kwargs)
