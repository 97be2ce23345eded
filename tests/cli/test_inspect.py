"""`tspec inspect` prints the graph, the fused graph or the plan, in no time and from config.json alone.

Run: pytest tests/cli/test_inspect.py
"""

import subprocess
import sys

import pytest
from support.checkpoints import edit_json


@pytest.fixture
def config_only(tiny_copy):
    """A checkpoint folder with nothing but its configuration."""
    for file in tiny_copy.iterdir():
        if file.name != "config.json":
            file.unlink()
    return tiny_copy


def printed(outcome):
    assert (outcome.status, outcome.err) == (0, "")
    return outcome.out


def test_each_stage_prints_its_own_ops(run, config_only):
    graph, fused = (
        printed(run("inspect", config_only, "--stage", stage)).splitlines() for stage in ("graph", "fused")
    )
    assert any("silu_mul" in line and "linear_silu_mul" not in line for line in graph)
    assert any("linear_silu_mul" in line for line in fused)
    assert len(fused) < len(graph)


def test_the_plan_has_bytes_flops_and_roofline_of_each_launch_and_in_all(run, config_only):
    lines = printed(run("inspect", config_only)).splitlines()
    assert lines[0] == "plan 1x8 on cpu"
    assert lines[1].split() == ["kind", "output", "MiB", "Mflop", "us"]
    launches = [line.split() for line in lines[2:] if line.split()[0].isdecimal()]
    assert [int(number) for number, *_ in launches] == list(range(len(launches)))
    total = next(line.split() for line in lines if line.split()[0] == "plan" and "launches" in line)
    assert int(total[1]) == len(launches)
    for place, tolerance in ((-3, 0.02), (-2, 0.2), (-1, 0.2)):
        assert sum(float(launch[place]) for launch in launches) == pytest.approx(
            float(total[place]), abs=tolerance
        )
    assert lines[-1].startswith("arena")


@pytest.mark.parametrize("bucket", ["4x16", "4,16"])
def test_a_bucket_is_written_in_two_ways(run, config_only, bucket):
    assert printed(run("inspect", config_only, "--bucket", bucket)).startswith("plan 4x16 on cpu\n")


@pytest.mark.parametrize(
    "bucket",
    ["", "4", "4x", "x4", "0x4", "4x0", "-1x4", "4x16x2", "4*16", "1x65", "1e3x4", "٤x4", "9" * 5000],
)
def test_a_bucket_that_is_none_is_wrong_usage(run, config_only, bucket):
    run("inspect", config_only, f"--bucket={bucket}").assert_fails(2, "--bucket", "4x16", "64 nodes")


def test_a_longer_context_costs_attention_more(run, config_only):
    def attention_mib(*options):
        lines = printed(run("inspect", config_only, *options)).splitlines()
        return next(float(line.split()[-3]) for line in lines if line.split()[1] == "rope_attention")

    assert attention_mib("--context", 200) > attention_mib()


@pytest.mark.parametrize("context", [-1, 257])
def test_a_context_that_the_model_has_not_is_wrong_usage(run, config_only, context):
    run("inspect", config_only, "--context", context).assert_fails(2, "--context", "0 to 256")


@pytest.mark.parametrize("head", ["last", "none"])
def test_prefill_passes_can_be_seen_too(run, config_only, head):
    text = printed(run("inspect", config_only, "--head", head))
    assert "accept_match" not in text
    assert ("head_sample" in text) == (head == "last")


@pytest.mark.parametrize("option", [["--stage", "asm"], ["--head", "first"], ["--device", "abacus"]], ids=str)
def test_an_unknown_choice_is_wrong_usage(run, config_only, option):
    run("inspect", config_only, *option).assert_is_refused(*option)


def test_a_folder_that_is_no_checkpoint_fails(run, tmp_path, config_only):
    run("inspect", tmp_path / "no").assert_fails(1, "no such path")
    run("inspect", tmp_path).assert_fails(1, "config.json")
    edit_json(config_only / "config.json", architectures=["BertModel"])
    run("inspect", config_only).assert_fails(1, "BertModel", "LlamaForCausalLM")


def test_it_loads_no_torch(config_only):
    code = (
        "import sys; from tspec.cli.main import main; status = main(sys.argv[1:]);"
        "assert not {'torch', 'transformers', 'numba'} & sys.modules.keys(); sys.exit(status)"
    )
    command = [sys.executable, "-c", code, "inspect", str(config_only)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
