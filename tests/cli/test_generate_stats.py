"""The figures of `tspec generate`: each option that says how to decode changes those that it should.

Run: pytest tests/cli/test_generate_stats.py
"""

import json

import pytest
from support.table_model import table_checkpoint
from support.tiny_models import EOS, byte_tokenizer

A, B, C = b"abc"
SAMPLED = ("--temperature", "0.5", "--seed", "7")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model that says abcabc… with a byte a token."""
    folder = tmp_path_factory.mktemp("abc")
    table_checkpoint(folder, {A: B, B: C, C: A}, vocab=EOS + 3, eos_token_id=EOS)
    byte_tokenizer(folder)
    return folder


@pytest.fixture
def table(run, folder):
    """Returns a function that decodes with options, and returns the table of figures."""

    def table(*options, prompt="abcabcabc"):
        method = () if "--speculative" in options else ("--speculative", "ngram")
        outcome = run("generate", folder, "--prompt", prompt, "--stats", *method, *options)
        assert outcome.status == 0
        rows = [line.strip("│").split("│") for line in outcome.err.splitlines() if line.startswith("│")]
        return {name.strip(): figure.strip() for name, figure in rows}

    return table


@pytest.fixture
def counts(run, folder):
    """Returns a function that decodes with options, and returns the counts of --json."""

    def counts(*options, prompt="abcabcabc"):
        method = () if "--speculative" in options else ("--speculative", "ngram")
        return json.loads(run("generate", folder, "--prompt", prompt, "--json", *method, *options).out)[
            "stats"
        ]

    return counts


def test_the_table_has_what_one_text_took(table):
    """One token of prefill, then three passes of three candidates and the bonus token."""
    figures = table("--max-tokens", 13, "--num-speculative-tokens", 3)
    times = {figures.pop(name) for name in ("queue time", "time to first token", "tokens/s")}
    assert all(float(each.removesuffix(" s")) >= 0 for each in times)
    assert 0 < float(figures.pop("drafting / verifying").split()[0]) < 10
    measured, expected = figures.pop("speed-up of rounds with candidates").split(", ")
    assert measured.endswith("x measured") and expected.endswith("x expected")
    assert 0 < float(measured.split("x")[0]) <= float(expected.split("x")[0]) * 1.01
    assert figures == {
        "prompt tokens": "9",
        "computed, reused": "9, 0",
        "emitted tokens": "13",
        "finish reason": "length",
        "seed": "-",
        "verify passes": "3",
        "tokens per pass": "4.00",
        "candidates": "9",
        "acceptance rate": "100%",
        "accepted by position": "3/3 3/3 3/3",
        "preemptions": "0",
        "passes": "last 1x16: 1, all 1x4: 3",
    }


def test_what_did_not_happen_is_a_dash_and_no_number(table):
    figures = table("--max-tokens", 0)
    dashes = {name for name, figure in figures.items() if figure == "-"}
    assert dashes == {
        "seed",
        "queue time",
        "time to first token",
        "tokens/s",
        "tokens per pass",
        "acceptance rate",
        "accepted by position",
        "drafting / verifying",
        "passes",
    }


def test_plain_decoding_has_no_candidates(counts):
    stats = counts("--max-tokens", 13, "--speculative", "none")
    assert (stats["num_candidates"], stats["num_drafts"], stats["accepted_by_position"]) == (0, 0, [])
    assert (stats["num_passes"], stats["tokens_per_pass"], stats["acceptance_rate"]) == (12, 1, None)


@pytest.mark.parametrize("most", [1, 2, 5])
def test_the_most_candidates_are_those_asked_for(counts, most):
    stats = counts("--max-tokens", 1 + 2 * (most + 1), "--num-speculative-tokens", most)
    assert stats["candidates_by_position"] == stats["accepted_by_position"] == [2] * most
    assert (stats["num_candidates"], stats["tokens_per_pass"]) == (2 * most, most + 1)


def test_a_match_has_to_be_as_long_as_asked_for(counts):
    short = counts("--max-tokens", 6, "--prompt-lookup-min", 5, "--prompt-lookup-max", 5)
    long = counts("--max-tokens", 6, "--prompt-lookup-min", 16, "--prompt-lookup-max", 16)
    assert short["num_candidates"] > 0
    assert long["num_candidates"] == 0


def test_the_copy_that_is_continued_is_the_one_asked_for(counts):
    """After b the first copy goes on with a wrong q, the latest with the right c, and then all is said."""
    options = ("--max-tokens", 4, "--prompt-lookup-max", 1, "--num-speculative-tokens", 1, "--occurrence")
    latest, earliest = (counts(*options, which, prompt="bqabca") for which in ("latest", "earliest"))
    assert (latest["num_accepted"], latest["num_candidates"]) == (1, 1)
    assert earliest["num_candidates"] == 2
    assert earliest["num_accepted"] == 1


def test_a_text_stops_after_as_many_tokens_as_asked_for(counts):
    assert [counts("--max-tokens", most)["num_emitted"] for most in (1, 2, 7)] == [1, 2, 7]


def test_the_seed_is_shown_where_tokens_are_drawn(table):
    assert table("--max-tokens", 3, *SAMPLED)["seed"] == "7"
    assert table("--max-tokens", 3)["seed"] == "-"


def test_each_proposer_of_a_union_has_a_line(run, folder):
    """The text repeats: n-gram and suffix lookup give the same candidates, and share what they saved."""
    outcome = run(
        "generate", folder, "--prompt", "abcabcabc", "--stats", "--speculative", "union", "--max-tokens", 13
    )
    rows = [line.strip("│").split("│") for line in outcome.err.splitlines() if line.startswith("│")]
    figures = {cells[0].strip(): [each.strip() for each in cells[1:]] for cells in rows}
    for name in ("ngram", "suffix"):
        tried, candidates, accepted, saved, time = figures[name]
        assert int(tried) > 0 and int(candidates) > 0 and accepted.endswith("(100%)")
        assert 0 < float(saved) <= int(candidates) and time.endswith(" ms")
    saved = float(figures["ngram"][3]) + float(figures["suffix"][3])
    assert saved == int(figures["candidates"][0])
