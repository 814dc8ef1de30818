"""Ships loss and gradient: builds the library, loads it where there is no compiler, and calls it from C."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

import aotgrad as ag
from aotgrad_runtime.errors import AotgradRuntimeError

from .models import NAMES, SIZES, digits_loss

__all__ = ["build", "call_from_c", "call_without_compiler"]

NAME = "digits_loss"
TIMEOUT = 60

# Both packages that the compiler stands on are made impossible to import; NumPy is all that is left.
_LOADER = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("llvmlite", "lark"):
            raise ImportError(name + " is blocked")
sys.meta_path.insert(0, Blocker())
import numpy as np, aotgrad as ag
library = ag.load(sys.argv[1])
data = np.load(sys.argv[2])
out = library.digits_loss_grad(*[data[k] for k in data.files])
loss, grads = out[0], out[1] if isinstance(out[1], tuple) else out[1:]
np.savez(sys.argv[3], loss, *grads)
assert "llvmlite" not in sys.modules and "lark" not in sys.modules
"""

_C = """/* Calls lib{name}.so through its header; weights and images come from inputs.bin, results go to outputs.bin. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include "{name}.h"

static float *block(long n) {{ float *p = (float *)aligned_alloc(64, (size_t)(n * 4 + 63) / 64 * 64); if (!p) exit(2); return p; }}

int main(int argc, char **argv) {{
  const long n = {images}, counts[8] = {{{counts}, n * 64, n * 10}};
  float *in[8], *grads[6], loss;
  if (argc != 3) return 2;
  FILE *f = fopen(argv[1], "rb");
  if (!f) return 2;
  for (int i = 0; i < 8; i++) {{
    in[i] = block(counts[i]);
    if (fread(in[i], 4, (size_t)counts[i], f) != (size_t)counts[i]) return 2;
  }}
  fclose(f);
  for (int i = 0; i < 6; i++) grads[i] = block(counts[i]);
  void *workspace = aligned_alloc(64, (size_t)({name}_grad_workspace({workspace_args}) + 64) / 64 * 64);
  if (!workspace) return 2;
  int32_t code = {name}_grad(in[0], in[1], in[2], in[3], in[4], in[5], in[6], in[7], n,
                             &loss, grads[0], grads[1], grads[2], grads[3], grads[4], grads[5], workspace);
  if (code) {{ fprintf(stderr, "{name}_grad: error %d\\n", (int)code); return 1; }}
  f = fopen(argv[2], "wb");
  if (!f) return 2;
  fwrite(&loss, 4, 1, f);
  for (int i = 0; i < 6; i++) fwrite(grads[i], 4, (size_t)counts[i], f);
  fclose(f);
  printf("%.9g\\n", (double)loss);
  return 0;
}}
"""


def build(folder: Path) -> Path:
    """Builds loss and gradient for any number of images into ``folder``; gives the library's path."""
    shapes = [dims for n, m in zip(SIZES, SIZES[1:]) for dims in (f"{n},{m}", f"{m}")]
    args = [f"{name}: f32[{dims}]" for name, dims in zip(NAMES, shapes)] + ["x: f32[n,64]", "y: f32[n,10]"]
    ag.aot.build(digits_loss, args, grad=list(NAMES), out=folder, name=NAME)
    return folder / f"lib{NAME}.so"


def call_without_compiler(library: Path, inputs: list[Any], folder: Path) -> tuple[Any, list[Any]]:
    """Loss and gradients computed by a new process that has neither llvmlite nor lark."""
    given, got = folder / "inputs.npz", folder / "outputs.npz"
    np.savez(given, *inputs)
    _run([sys.executable, "-c", _LOADER, str(library), str(given), str(got)], "loading the library without a compiler")
    with np.load(got) as data:
        loss, *grads = [data[k] for k in data.files]
    return loss, grads


def call_from_c(library: Path, inputs: list[Any], folder: Path) -> tuple[str, Any, list[Any]] | None:
    """The compiler's name, loss and gradients from a C program built against the header, or None where there is no C compiler."""
    compiler = next((found for name in (os.environ.get("CC", ""), "cc", "gcc", "clang", "tcc") if name and (found := shutil.which(name))), None)
    if compiler is None:
        return None
    source, program = folder / "main.c", folder / "main"
    counts = [p.size for p in inputs[:6]]
    images = len(inputs[6])
    source.write_text(_C.format(name=NAME, images=images, counts=", ".join(map(str, counts)), workspace_args="n"), encoding="utf-8")
    (folder / "inputs.bin").write_bytes(b"".join(np.ascontiguousarray(x, np.float32).tobytes() for x in inputs))
    _run([compiler, "-O1", "-I", str(library.parent), str(source), str(library), f"-Wl,-rpath,{library.parent.resolve()}", "-o", str(program)], "compiling main.c")
    _run([str(program), str(folder / "inputs.bin"), str(folder / "outputs.bin")], "the C program")
    flat = np.frombuffer((folder / "outputs.bin").read_bytes(), np.float32)
    parts = np.split(flat[1:], np.cumsum(counts)[:-1])
    return Path(compiler).name, flat[0], [part.reshape(p.shape) for part, p in zip(parts, inputs)]


def _run(command: list[str], what: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise AotgradRuntimeError(f"demo: {what} failed: {error}") from error
    if done.returncode:
        raise AotgradRuntimeError(f"demo: {what} failed with exit code {done.returncode}:\n{done.stderr or done.stdout}")
