"""Sixty-four requests of all kinds that come, go and are dropped at random, with KV memory for a third of them: each
gets what it gets alone.

Run: pytest tests/test_llm_interleaving.py
"""

import random
from dataclasses import dataclass
from typing import Any

import pytest
from support.engines import NGRAM, RandomTrees, build, num_held, with_proposer
from support.tiny_models import EOS, byte_tokenizer, tiny_checkpoint

from tspec import SamplingParams
from tspec.constraints import regex
from tspec.core.shapes import blocks_for
from tspec.core.speculative_config import SpeculativeConfig
from tspec.proposers.ngram import NgramProposer
from tspec.proposers.none import NoProposer
from tspec.requests.handle import RequestHandle, Result
from tspec.requests.text_engine import TextEngine
from tspec.runtime.loop import Engine
from tspec.tokenizer import TextCodec, load_codec

VOCAB = EOS + 2
CONTEXT = 256
NUM_REQUESTS = 64
LETTERS = "abcdefghijklmnopqrstuvwxyz"
FILTERS = {"top_k": 40, "top_p": 0.95, "min_p": 0.005}
PENALTIES = {"repetition_penalty": 1.1, "presence_penalty": 0.3, "frequency_penalty": 0.2}
EDITS = {"logit_bias": {97: 3.0, 98: -2.0}, "bad_words": [[99], [97, 97]], "min_tokens": 3}
KINDS: list[dict[str, Any]] = [
    {"ignore_eos": True},
    {"temperature": 1.3, "ignore_eos": True},
    {"temperature": 1.5, "ignore_eos": True, **FILTERS},
    {"ignore_eos": True, **PENALTIES},
    {"temperature": 1.2, "ignore_eos": True, **PENALTIES, **EDITS},
    {"temperature": 1.0, "stop": [*LETTERS[::5]], "stop_token_ids": range(200, 220)},
    {"stop": ["qu", "a", "y"], "include_stop_str_in_output": True, **PENALTIES},
    {"temperature": 0.9, "logprobs": 3, "ignore_eos": True, **FILTERS},
    {"logprobs": 0, "prompt_logprobs": 2},
    {"temperature": 2.0, "allowed_token_ids": range(97, 123), "ignore_eos": True},
    {"temperature": 1.0, "pattern": "[a-f]{5,60}(x|yz)"},
]
"""What requests ask for; those that sample get a seed of their own. `pattern` is a grammar."""


Results = dict[int, Result]
"""By the number of the request."""


@dataclass(frozen=True)
class Request:
    prompt: list[int]
    params: SamplingParams
    priority: int


class World:
    """A model's weights and memory, the requests, and what each of them gets alone."""

    def __init__(self, engine: Engine, codec: TextCodec) -> None:
        self.engine, self.codec = engine, codec
        self.requests = make_requests(codec)
        alone = TextEngine("alone", with_proposer(engine, NoProposer(), max_candidates=0), codec)
        self.alone = [finished(alone, each) for each in self.requests]
        lengths = [len(each.prompt_token_ids) + len(each.token_ids) for each in self.alone]
        self.num_blocks = sum(map(blocks_for, lengths))

    def open(self, proposer: Any) -> TextEngine:
        """An engine with room for a third of what the requests need, and candidates for all that run."""
        whole, third = self.engine.executor.num_blocks, self.num_blocks // 3
        assert third < whole
        self.engine.executor.num_blocks = third
        try:
            options = {"max_num_seqs": NUM_REQUESTS, "max_candidates": 5, "node_budget": 6 * NUM_REQUESTS}
            return TextEngine("LLM", with_proposer(self.engine, proposer, **options), self.codec)
        finally:
            self.engine.executor.num_blocks = whole


def make_requests(codec: TextCodec) -> list[Request]:
    rng = random.Random(6)
    beginnings = [[rng.randrange(256) for _ in range(length)] for length in (64, 100)]
    requests = []
    for number in range(NUM_REQUESTS):
        kind = dict(KINDS[number % len(KINDS)])
        pattern = kind.pop("pattern", None)
        if pattern is not None:
            kind["constraint"] = regex(pattern, codec)
        if "temperature" in kind:
            kind["seed"] = rng.randrange(1 << 40)
        few = rng.sample(range(256), 3)
        own = [rng.choice(few) for _ in range(rng.randint(1, 40))]
        prompt = rng.choice([*[[]] * 6, *beginnings]) + own
        params = SamplingParams(
            max_tokens=rng.choice([1, 30, 130, 210, 210, 210]) + kind.get("min_tokens", 0),
            speculative=rng.choice(["auto", "auto", "off", 1, 3]),
            **kind,
        )
        requests.append(Request(prompt, params, priority=rng.choice([0, 0, 0, 1, -1])))
    return requests


def add(engine: TextEngine, request: Request) -> RequestHandle:
    (handle,) = engine.add(request.prompt, engine.samples(request.params), request.priority)
    return handle


def finished(engine: TextEngine, request: Request) -> Result:
    handle = add(engine, request)
    while not handle.is_finished:
        engine.step()
    return handle.finished_result()


def said(result: Result) -> dict[str, Any]:
    """All that a result has but its counts."""
    names = (
        "token_ids",
        "text",
        "finish_reason",
        "stop_reason",
        "error",
        "seed",
        "logprobs",
        "prompt_logprobs",
    )
    return {name: getattr(result, name) for name in names}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    tiny_checkpoint(folder, "llama", vocab=VOCAB, max_position_embeddings=CONTEXT, eos_token_id=EOS)
    byte_tokenizer(folder)
    engine = build(folder, max_num_seqs=NUM_REQUESTS)
    yield World(engine, load_codec(folder, VOCAB))
    engine.close()


def make_proposer(world: World, name: str) -> Any:
    if name == "trees":
        known = [[*each.prompt_token_ids, *each.token_ids] for each in world.alone]
        return RandomTrees(known, 7, VOCAB)
    return NgramProposer(SpeculativeConfig(**NGRAM)) if name == "ngram" else NoProposer()


def drive(engine: TextEngine, requests: list[Request], rng: random.Random) -> tuple[Results, Results]:
    """Returns the results of the requests that ended, and of those that were dropped; pieces of some are read.

    Memory makes some of them give way; others do so at random, as the least of what memory might ask for.
    """
    coming = rng.sample(range(len(requests)), len(requests))
    handles: dict[int, RequestHandle] = {}
    pieces: dict[RequestHandle, str] = {}
    dropped: Results = {}
    scheduler = engine.opened().scheduler
    while coming or engine.has_work:
        for number in [coming.pop() for _ in range(min(len(coming), rng.choice([0, 0, 1, 12])))]:
            handles[number] = add(engine, requests[number])
        for handle in engine.step():
            if rng.random() < 0.5:
                pieces[handle] = pieces.get(handle, "") + handle.take().text
        scheduler.check()
        if scheduler.running and rng.random() < 0.1:
            scheduler.preempt(rng.choice(scheduler.running))
        running = [number for number, handle in handles.items() if not handle.is_finished]
        if running and rng.random() < 0.04:
            number = rng.choice(running)
            engine.abort([handles[number]])
            dropped[number] = handles[number].finished_result()
    for handle, text in pieces.items():
        assert text + handle.take().text == handle.finished_result().text
    return {key: handle.finished_result() for key, handle in handles.items() if key not in dropped}, dropped


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", ["none", "ngram", "trees"])
def test_each_request_gets_what_it_gets_alone(world, name, seed):
    engine = world.open(make_proposer(world, name))
    ended, dropped = drive(engine, world.requests, random.Random(seed))
    for number, result in ended.items():
        assert said(result) == said(world.alone[number]), world.requests[number]
    for number, result in dropped.items():
        whole = world.alone[number].token_ids
        assert result.finish_reason == "abort" and result.token_ids == whole[: len(result.token_ids)]
    metrics = engine.opened().metrics()
    assert set(num_held(engine.opened()).values()) == {0}
    assert len(ended) + len(dropped) == NUM_REQUESTS
    assert min(len(dropped), metrics.num_preemptions, metrics.num_reused) > 3
    assert (metrics.num_accepted > 50) == (name != "none")
    assert metrics.num_preemptions == sum(
        each.stats.num_preemptions for each in [*ended.values(), *dropped.values()]
    )


def test_requests_are_of_all_kinds(world):
    """What the test above relies on."""
    assert {each.finish_reason for each in world.alone} == {"stop", "length"}
    reasons = [each.stop_reason for each in world.alone]
    assert {type(each) for each in reasons} == {str, int, type(None)}
    assert sum(each is not None for each in reasons) > 5
    assert sum(len(each.token_ids) > 100 for each in world.alone) > 25
    assert sum(each.seed is None for each in world.alone) > 20
