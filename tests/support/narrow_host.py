"""Runs a test's program in a process that compiles for AVX2 alone; any x86 host can run it."""

import os
import platform
import subprocess
import sys

AVX2 = {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx2,+fma,+f16c,+bmi,+bmi2,+avx"}
IS_X86 = platform.machine() in ("x86_64", "AMD64")


def output_on_avx2(module: str, *args: str) -> list[str]:
    """The words that `python -m module` prints."""
    environment = os.environ | AVX2 | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", module, *args]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()
