"""Files and functions stay small enough to read in one go.

Run: pytest tests/layering/test_sizes.py
"""

import ast

import pytest
from support.sources import name_of, python_files

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 40
MAX_NATIVE_LINES = 60
"""A native kernel takes each address and size as an argument of its own, and reads better whole."""

FILES = python_files("tspec", "autotune", "benchmarks", "tests")


def code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function from its `def`, its docstring left out."""
    first = function.body[0]
    is_docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    return function.end_lineno - function.lineno + 1 - is_docstring * (first.end_lineno - first.lineno + 1)


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_a_file_is_at_most_400_lines(file):
    assert len(file.read_text(encoding="utf-8").splitlines()) <= MAX_FILE_LINES


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_a_function_is_at_most_40_lines(file):
    limit = MAX_NATIVE_LINES if name_of(file).startswith("tspec/kernels/") else MAX_FUNCTION_LINES
    functions = [
        node
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    assert {each.name: code_lines(each) for each in functions if code_lines(each) > limit} == {}
