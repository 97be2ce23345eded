"""Imports go one way: who may import what, function-level imports and names given to import_module included.

Run: pytest tests/layering/test_imports.py
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.sources import PACKAGE, ROOT, name_of, python_files

TOPS = (
    "cli",
    "llm",
    "async_llm",
    "requests",
    "build",
    "build_draft",
    "build_policy",
    "build_proposer",
    "constraints",
    "progress",
    "prometheus",
    "training",
    "autotune",
)
GRAPH_DATA = ("graph.ir", "graph.plan", "graph.signature")
"""What a plan is written in; the runtime reads plans and knows no graph pass."""

MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "core": (),
    "checkpoint": ("core",),
    "kernels": ("core",),
    "graph": ("core",),
    "models": ("core", "graph.ir", "graph.ops", "graph.builder", "graph.static_inputs"),
    "runtime": ("core", "kernels", "checkpoint", *GRAPH_DATA),
    "proposers": ("core", "graph.plan", "runtime.buckets", "runtime.inputs", "kernels.jit"),
    "tokenizer": ("core",),
    "constraints": ("core", "tokenizer"),
    "prometheus": ("core", "runtime.metrics"),
    "build": (
        "core",
        "checkpoint",
        "kernels",
        "graph",
        "models",
        "runtime",
        "proposers",
        "build_draft",
        "build_policy",
        "build_proposer",
    ),
    "build_policy": ("core", "checkpoint", "kernels", "runtime.cuda_executor", "build", "__version__"),
    "build_proposer": ("core", "checkpoint.policy_file", "runtime", "proposers", "build_draft"),
    "build_draft": ("core", "checkpoint", "graph", "models", "runtime", "proposers"),
    "progress": ("build",),
    "requests": ("core", "runtime", "tokenizer", "build"),
    "llm": ("core", "runtime", "tokenizer", "build", "requests", "progress"),
    "async_llm": ("core", "runtime", "tokenizer", "build", "requests"),
    "training": ("core", "checkpoint", "runtime.interrupts", "requests.handle", "build", "llm"),
    "cli": (
        "core",
        "runtime",
        "tokenizer",
        "build",
        "build_draft",
        "llm",
        "constraints",
        "progress",
        "training",
        "__version__",
    ),
    "autotune": (
        "core",
        "checkpoint",
        "graph",
        "models",
        "kernels",
        "proposers",
        "runtime",
        "tokenizer",
        "build",
        "build_draft",
        "build_policy",
        "build_proposer",
        "llm",
        "progress",
        "requests",
        "training.plot",
        "cli.main",
        "cli.options",
    ),
    "__init__": ("core", "llm", "async_llm"),
}
"""Besides itself. `proposers` compile their native code as kernels do, hence `kernels.jit`."""

EXCEPTIONS: dict[str, tuple[str, ...]] = {
    "tspec/cli/inspect.py": ("checkpoint.head_kind", "checkpoint.hf_config", "graph", "models"),
    "tspec/cli/inspect_head.py": ("checkpoint.heads", "checkpoint.hf_config"),
    "tspec/cli/demo_model.py": ("checkpoint.demo_model",),
}
"""Subcommands that run no engine, and so need not go through `build`."""

OUTSIDE: dict[str, tuple[str, ...]] = {
    "core": ("numpy",),
    "checkpoint": ("filelock", "numpy", "platformdirs", "pydantic", "safetensors", "torch", "transformers"),
    "kernels": ("filelock", "llvmlite", "numba", "numpy", "platformdirs", "torch", "triton"),
    "graph": ("numpy",),
    "models": (),
    "runtime": ("numpy", "torch"),
    "proposers": ("numba", "numpy", "torch"),
    "tokenizer": ("tokenizers", "transformers"),
    "constraints": ("llguidance", "numpy", "tokenizers"),
    "prometheus": ("prometheus_client",),
    "build": ("torch",),
    "build_draft": ("numpy", "torch"),
    "build_policy": ("llvmlite", "numba", "torch", "triton"),
    "build_proposer": ("numpy",),
    "progress": ("rich",),
    "requests": ("numpy",),
    "llm": (),
    "async_llm": (),
    "training": ("filelock", "matplotlib", "safetensors", "torch", "transformers"),
    "cli": ("autotune", "rich"),
    "autotune": ("matplotlib", "numba", "numpy", "pydantic", "rich", "torch", "triton"),
    "__init__": (),
}
FILES = python_files("tspec", "autotune")


def imported_names(file: Path) -> Iterator[str]:
    """Each imported name in full: `from a.b import c` gives a.b.c."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{'.' * node.level}{node.module or ''}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            yield ast.literal_eval(node.args[0])


def layer_of(file: Path) -> str:
    """The part of the package that a file is of, or the package beside it."""
    place = file if file.is_relative_to(PACKAGE) else PACKAGE / file.relative_to(ROOT)
    return place.relative_to(PACKAGE).parts[0].removesuffix(".py")


def is_within(name: str, places: tuple[str, ...]) -> bool:
    return any(name == place or name.startswith(f"{place}.") for place in places)


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_a_file_imports_only_from_layers_below(file):
    layer = layer_of(file)
    allowed = (layer, *MAY_IMPORT[layer], *EXCEPTIONS.get(name_of(file), ()))
    names = [name.removeprefix("tspec.") for name in imported_names(file) if name.startswith("tspec")]
    assert [name for name in names if not is_within(name, allowed)] == []


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_a_file_imports_only_the_libraries_of_its_layer(file):
    tops = {name.split(".")[0] for name in imported_names(file)}
    own = {"tspec", layer_of(file)}
    foreign = tops - own - sys.stdlib_module_names
    assert sorted(foreign - set(OUTSIDE[layer_of(file)])) == []


def test_only_the_tops_see_several_packages():
    """The table itself: no layer below imports a top."""
    below = [each for layer, each in MAY_IMPORT.items() if layer not in (*TOPS, "__init__")]
    assert not {top for allowed in below for top in allowed} & set(TOPS)


def test_the_kernels_of_the_cpu_know_no_reference():
    names = {name for file in python_files("tspec/kernels/cpu") for name in imported_names(file)}
    assert not {name for name in names if name.startswith("tspec.kernels.reference")}


@pytest.mark.parametrize(
    "modules",
    [
        "tspec",
        "tspec.core.sampling_params",
        "tspec.graph.passes, tspec.graph.lower, tspec.models",
        "tspec.cli.main",
    ],
)
def test_what_needs_no_tensors_loads_neither_torch_nor_transformers(modules):
    heavy = "{'torch', 'transformers', 'numba', 'triton'}"
    code = f"import sys, {modules}; print(sorted({heavy} & sys.modules.keys()))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"
