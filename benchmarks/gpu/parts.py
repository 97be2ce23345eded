"""The parts of the check, each a function of a Setting that returns figures; what a part cannot run it says."""

import gc
import importlib.util
import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from benchmarks.gpu import passes, rows, timing
from benchmarks.gpu.models import MICRO, SHAPES, RandomModel
from tspec.core.config import ModelConfig
from tspec.graph.plan import Bucket
from tspec.kernels.cuda.store import open_store

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("torch", "triton", "transformers", "numpy", "numba", "pytest")
COUNT = re.compile(r"(\d+) (passed|failed|errors?|skipped)")
DONE = re.compile(r"\b(PASSED|FAILED|ERROR|SKIPPED)\b")
TEST_FILES = ("capture", "row_invariance", "lossless", "draft", "sampling", "acceptance", "kernels")
"""In this order, so that what time cuts off are kernels by themselves."""
SMOKE_TESTS = "sampled_from or accepted or commit or 1x1 or ratio or judge or law or edited or random_trees"
"""What the interpreter runs of tests/gpu."""
MAX_WORKERS = 8
"""Test processes side by side, where pytest can: compiling kernels takes most of the time."""
SMOKE_CONTEXT, SMOKE_NODES = 70, 4
"""What the interpreter runs of the passes and of row invariance."""


@dataclass(frozen=True)
class Setting:
    """What all parts share. `found` gathers what later parts need of earlier ones."""

    device: torch.device
    arch: str
    is_quick: bool
    found: dict[str, float] = field(default_factory=dict)

    @property
    def is_cuda(self) -> bool:
        """Whether kernels run on a device and not in the interpreter."""
        return self.device.type == "cuda"


Part = Callable[[Setting, float], dict[str, object]]
"""Takes the setting and the seconds that it may take."""


def describe(setting: Setting) -> dict[str, object]:
    """Device, versions and commit."""
    device: dict[str, object] = {"name": platform.processor() or platform.machine(), "arch": setting.arch}
    if setting.is_cuda:
        properties = torch.cuda.get_device_properties(setting.device)
        device |= {
            "name": properties.name,
            "memory_gib": properties.total_memory / (1 << 30),
            "multiprocessors": properties.multi_processor_count,
            "tuned_entries": len(open_store(properties.name, setting.arch).entries),
        }
    versions = {"python": platform.python_version(), "cuda": torch.version.cuda}
    return {
        "device": device,
        "versions": versions | {name: _version(name) for name in PACKAGES},
        "commit": _commit(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "is_interpreted": not setting.is_cuda,
    }


def bandwidth(setting: Setting, limit_s: float) -> dict[str, object]:
    """What memory reaches; the roofline of all later parts."""
    figures = timing.bandwidth(setting.device)
    setting.found["gb_s"] = figures["best_gb_s"]
    return dict(figures)


def tests(setting: Setting, limit_s: float) -> dict[str, object]:
    """Run tests/gpu in a process of its own."""
    if importlib.util.find_spec("pytest") is None:
        return {"skipped": "pytest missing"}
    start = time.perf_counter()
    output, code = _run(_test_command(setting), limit_s)
    counts = _test_counts(output, is_whole=code is not None)
    failed = [line for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return {
        "exit_code": code,
        "ran_out_of_time": code is None,
        "passed": counts.get("passed", 0),
        "failed": counts.get("failed", 0) + counts.get("error", 0),
        "skipped_tests": counts.get("skipped", 0),
        "failures": failed[:40],
        "seconds": time.perf_counter() - start,
        "tail": [] if code == 0 else output.splitlines()[-30:],
    }


def _test_command(setting: Setting) -> list[str]:
    files = [f"tests/gpu/test_{name}.py" for name in TEST_FILES]
    command = [sys.executable, "-m", "pytest", *files, "-m", "gpu", "-vv", "-rf", "-p", "no:cacheprovider"]
    if not setting.is_cuda:
        return [*command, "-k", SMOKE_TESTS]
    if importlib.util.find_spec("xdist") is None:
        return command
    return [*command, "-n", str(min(MAX_WORKERS, os.cpu_count() or 1))]


def _test_counts(output: str, is_whole: bool) -> dict[str, int]:
    """Tests by outcome: from the last line of a whole run, else counted one by one."""
    if is_whole:
        return {word.rstrip("s"): int(number) for number, word in COUNT.findall(output[-400:])}
    words = [match.lower() for match in DONE.findall(output)]
    return {word: words.count(word) for word in set(words)}


def model_part(name: str, config: ModelConfig) -> Part:
    """The part that measures one model: passes by bucket, then row invariance."""

    def measure(setting: Setting, limit_s: float) -> dict[str, object]:
        end = time.perf_counter() + limit_s
        context = passes.CONTEXT if setting.is_cuda else SMOKE_CONTEXT
        room = 2 * context if setting.is_cuda else 6 * SMOKE_CONTEXT
        num_rows = max(passes.ROWS)
        model = RandomModel(config, setting.device, setting.arch, max_model_len=room, num_rows=num_rows)
        figures: dict[str, object] = {"context": context, "weight_bytes": model.executor.weight_bytes}
        figures |= _buckets(model, setting, end, context)
        if time.perf_counter() < end:
            num_tokens = rows.MAX_NODES if setting.is_cuda else SMOKE_NODES
            figures["row_invariance"] = passes.attempt(rows.measure, model, num_tokens)
        else:
            figures["row_invariance"] = {"skipped": "time"}
        model.executor.close()
        del model
        gc.collect()
        if setting.is_cuda:
            torch.cuda.empty_cache()
        return figures

    measure.__name__ = name
    return measure


def transformers_step(setting: Setting, limit_s: float) -> dict[str, object]:
    """The baseline, in a process of its own that ends with the time."""
    if not setting.is_cuda:
        return {"skipped": "no CUDA device"}
    if importlib.util.find_spec("transformers") is None:
        return {"skipped": "transformers missing"}
    output, code = _run([sys.executable, "-m", "benchmarks.gpu.transformers_step"], limit_s)
    if code != 0:
        why = "out of time" if code is None else f"exit code {code}"
        return {"skipped": why, "tail": output.splitlines()[-8:]}
    return dict(json.loads(next(line for line in output.splitlines() if line.startswith('{"step_us"'))))


def parts(setting: Setting) -> dict[str, tuple[Part, float]]:
    """Every part by name, in order, with the seconds that it may take."""
    if not setting.is_cuda:
        return {
            "bandwidth": (bandwidth, 5.0),
            "tests": (tests, 150.0),
            "micro": (model_part("micro", MICRO), 30.0),
            "transformers": (transformers_step, 5.0),
        }
    models = {name: model_part(name, config) for name, config in SHAPES.items()}
    return {
        "bandwidth": (bandwidth, 5.0),
        "tests": (tests, 150.0),
        "Llama-3.2-1B": (models["Llama-3.2-1B"], 80.0),
        "Llama-3.1-8B": (models["Llama-3.1-8B"], 90.0),
        "transformers": (transformers_step, 75.0),
        "Qwen3-0.6B": (models["Qwen3-0.6B"], 70.0),
    }


def _buckets(model: RandomModel, setting: Setting, end: float, context: int) -> dict[str, object]:
    """Figures by bucket until time is up; the buckets that were dropped for time, and those that failed."""
    wanted = passes.buckets(setting.is_quick)
    if not setting.is_cuda:
        wanted = [Bucket(1, 1), Bucket(2, SMOKE_NODES)]
    figures: dict[str, object] = {}
    dropped, errors = [], {}
    for bucket in wanted:
        if time.perf_counter() > end:
            dropped.append(str(bucket))
            continue
        try:
            figures[str(bucket)] = passes.measure_bucket(model, bucket, setting.found["gb_s"], context)
        except Exception as error:  # of whatever compiler or driver: a finding, and the others still run
            errors[str(bucket)] = f"{type(error).__name__}: {error}"
    return {"buckets": figures, "dropped": dropped, "errors": errors}


def _run(command: list[str], limit_s: float) -> tuple[str, int | None]:
    """Output and exit code of a command in the project's folder; None where it ran out of time."""
    places = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(places)}
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=limit_s,
        )
    except subprocess.TimeoutExpired as error:
        output = error.stdout or b""
        return output.decode() if isinstance(output, bytes) else output, None
    return done.stdout, done.returncode


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit of the working tree, where it is one."""
    try:
        found = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    except FileNotFoundError:
        return None
    return found.stdout.strip() or None
