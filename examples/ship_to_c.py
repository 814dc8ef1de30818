"""Builds a likelihood and its gradient as a library, and calls it from a C program where there is a C compiler."""

import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np

import aotgrad as ag


def negative_log_likelihood(theta, t):
    """Of the lifetimes t under a Weibull distribution with log shape theta[0] and log scale theta[1]."""
    k, scale = np.exp(theta[0]), np.exp(theta[1])
    z = t / scale
    return np.sum(z**k - (k - 1) * np.log(z) - theta[0] + theta[1])


C = """#include <stdio.h>
#include <stdlib.h>
#include "weibull.h"
int main(void) {
  double theta[2] = {0.1, 0.2}, t[4] = {0.5, 1.0, 1.5, 2.5}, value, gradient[2];
  void *workspace = malloc((size_t)weibull_grad_workspace(4) + 1);
  int32_t code = weibull_grad(theta, t, 4, &value, gradient, workspace);
  printf("%.17g %.17g %.17g\\n", value, gradient[0], gradient[1]);
  free(workspace);
  return code;
}
"""

folder = Path(tempfile.mkdtemp(prefix="aotgrad-weibull-"))
built = ag.aot.build(negative_log_likelihood, ["theta: f64[2]", "t: f64[n]"], grad=["theta"], out=folder, name="weibull")
library = ag.load(built.library)
theta, times = np.array([0.1, 0.2]), np.array([0.5, 1.0, 1.5, 2.5])
value, gradient = library.weibull_grad(theta, times)
print(f"from Python: {value:.17g} {gradient[0]:.17g} {gradient[1]:.17g}")

compiler = shutil.which("cc") or shutil.which("gcc")
if compiler:
    (folder / "main.c").write_text(C, encoding="utf-8")
    command = [compiler, "-I.", "main.c", "libweibull.so", f"-Wl,-rpath,{folder}", "-o", "main"]
    subprocess.run(command, check=True, cwd=folder)
    out = subprocess.run([folder / "main"], check=True, capture_output=True, text=True).stdout
    print(f"from C:      {out.strip()}")
    assert np.array_equal([float(v) for v in out.split()], [value, *gradient])
print(f"library, header and program are in {folder}")
