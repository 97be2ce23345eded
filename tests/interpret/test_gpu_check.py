"""The check of a CUDA machine runs from end to end in the interpreter, and writes all that its document names.

Run: TRITON_INTERPRET=1 pytest tests/interpret/test_gpu_check.py
"""

import json
import subprocess
import sys

import pytest
from support.sources import ROOT

PARTS = ["machine", "bandwidth", "tests", "micro", "transformers"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    file = tmp_path_factory.mktemp("check") / "gpu-check.json"
    command = [sys.executable, "-m", "benchmarks.gpu_check", "--device", "interpret", "--json", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return done, json.loads(file.read_text())


def test_every_part_runs_and_none_fails(run):
    done, record = run
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(record) == PARTS
    assert record["machine"]["is_interpreted"]
    assert record["tests"]["failed"] == 0 and record["tests"]["passed"] >= 35
    assert "skipped" in record["transformers"]


def test_each_bucket_and_each_kind_of_launch_has_its_figures(run):
    _, record = run
    micro = record["micro"]
    assert micro["dropped"] == [] and list(micro["buckets"]) == ["1x1", "2x4"]
    kernels = micro["buckets"]["1x1"]["kernels"]
    assert {"embed", "norm_linear", "rope_attention", "norm_head_sample", "kv_commit"} <= kernels.keys()
    assert all(each["share_of_roofline"] > 0 for each in micro["buckets"].values())


def test_rows_of_chains_and_batches_have_the_bits_of_plain_decoding(run):
    _, record = run
    verdicts = record["micro"]["row_invariance"]
    assert verdicts["chains"]["same_bits"] and verdicts["batches"]["same_bits"]
    assert verdicts["trees"]["rows"]


def test_a_check_without_time_drops_its_parts_and_says_so(tmp_path):
    file = tmp_path / "gpu-check.json"
    command = [sys.executable, "-m", "benchmarks.gpu_check", "--device", "interpret", "--budget", "0"]
    done = subprocess.run([*command, "--json", str(file)], cwd=ROOT, capture_output=True, text=True)
    record = json.loads(file.read_text())
    assert done.returncode == 0, done.stderr
    assert {record[name]["skipped"] for name in PARTS[1:]} == {"no time left"}
