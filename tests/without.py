"""Programs in processes in which some packages cannot be imported."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BLOCK = """
    import sys
    class Blocker:
        def find_spec(self, name, path=None, target=None):
            if name.split(".")[0] in {blocked}:
                raise ImportError(f"{{name}} is blocked in this test")
    sys.meta_path.insert(0, Blocker())
"""


def run_blocked(code: str, *blocked: str, arguments: tuple[str, ...] = (), env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Runs ``code`` in a new process in which the ``blocked`` packages cannot be imported."""
    text = textwrap.dedent(BLOCK.format(blocked=set(blocked))) + textwrap.dedent(code)
    return subprocess.run([sys.executable, "-c", text, *arguments], capture_output=True, text=True, env=env, timeout=120, cwd=ROOT)
