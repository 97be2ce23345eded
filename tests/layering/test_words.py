"""One word for each thing, names that say something, nothing left undone, no path of one machine.

Run: pytest tests/layering/test_words.py
"""

import ast
import re
from pathlib import Path

import pytest
from support.sources import ROOT, name_of, python_files, text_files

OTHER_WORDS = {
    "drafter": "proposer",
    "speculator": "proposer",
    "candidate generator": "proposer",
    "assistant model": "draft model",
    "base model": "target",
    "verifier model": "target",
    "draft token": "candidate",
    "draft tree": "candidate tree",
    "token tree": "candidate tree",
    "tree token": "node",
    "rollback": "commit",
    "cudagraph": "capture",
}
"""Words that the glossary replaces, where they cannot mean anything else; and what to say."""

OF_OTHERS = (
    "torch.cuda.cudagraph",
    "_matcher.rollback",
    "spec_decode_num_draft_tokens",
    "speculators",
    "eagle3speculator",
    "base_model_name_or_path",
)
"""Names that others gave: of functions and metrics, of a library, of keys in files."""

UNDONE = re.compile(r"\b(TODO|FIXME|XXX|HACK|NotImplementedError)\b")
MACHINE_PATH = re.compile(r"(?<![\w.])/(work|root|home|tmp/bash_jobs)/|\.\./shared\b")
VAGUE_FILES = {"utils", "util", "common", "misc", "helpers", "helper"}
VAGUE_CLASS = re.compile(r"(Manager|Helper|Utils?|Base|Mixin|Info|Wrapper)$")
VAGUE_NAMES = {"i", "j", "idx", "pos", "req", "tmp"}
FILES = [file for file in text_files() if file != Path(__file__).resolve()]
SOURCES = python_files("tspec", "autotune", "benchmarks")


def spelled(word: str) -> str:
    """A pattern for `two words`, two-words and two_words."""
    return r"(?<![a-z])" + "[ _-]".join(map(re.escape, word.split())) + "s?(?![a-z])"


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_a_file_uses_the_words_of_the_glossary(file):
    text = file.read_text(encoding="utf-8").lower()
    for name in OF_OTHERS:
        text = text.replace(name, "")
    assert {word: say for word, say in OTHER_WORDS.items() if re.search(spelled(word), text)} == {}


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_a_file_is_finished_and_fits_every_machine(file):
    text = file.read_text(encoding="utf-8")
    assert UNDONE.findall(text) == []
    assert [match.group() for match in MACHINE_PATH.finditer(text)] == []


def test_files_and_classes_are_named_after_what_they_hold():
    assert [name_of(file) for file in python_files("tspec", "tests") if file.stem in VAGUE_FILES] == []
    classes = [
        f"{name_of(file)}: {node.name}"
        for file in SOURCES
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef) and VAGUE_CLASS.search(node.name)
    ]
    assert classes == []


def test_index_variables_say_their_space():
    """Every name that is bound: assigned, looped over, or an argument."""
    found = []
    for file in SOURCES:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            is_bound = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            name = node.id if is_bound else node.arg if isinstance(node, ast.arg) else ""
            if name in VAGUE_NAMES:
                found.append(f"{name_of(file)}:{node.lineno}: {name}")
    assert found == []


def test_the_project_has_the_files_that_its_documents_name():
    """Tests, scripts and packages named in the documents are there."""
    named = re.compile(r"`((?:tspec|tests|benchmarks|examples|docs|\.ci)/[\w./-]*\w)`")
    documents = [file for file in FILES if file.suffix == ".md"]
    missing = [
        f"{name_of(file)}: {path}"
        for file in documents
        for path in named.findall(file.read_text(encoding="utf-8"))
        if not (ROOT / path).exists()
    ]
    assert missing == []
