"""Does a long-running engine keep anything? Random traffic for half an hour: memory over time, its slope, and leaks.

Tasks come and go at random, with random prompts (some share beginnings, some are refused), random parameters, texts
as a whole and streamed; a third of them is cancelled, or leaves its stream, at a random moment. KV memory is shorter
than what the running requests would like to have.

Run: python -m benchmarks.soak [CHECKPOINT] [--minutes 30] [--json FILE]
"""

import argparse
import asyncio
import gc
import json
import os
import random
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.machine import cpu_name
from tspec import AsyncLLM, CapacityError, ConfigError, SamplingParams
from tspec.build import load_config
from tspec.core.config import ModelConfig

MAX_MODEL_LEN = 1024
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
WAYS = {"generate": 4, "stream": 3, "cancel": 2, "leave": 1, "refused": 0.3}
"""What becomes of a request, by weight."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Memory at one moment. `objects` are those that Python's collector sees."""

    seconds: float
    num_requests: int
    rss_mib: float
    objects: int


@dataclass(slots=True)
class Report:
    """What a run did, and what it left behind.

    ways    requests by what became of them
    ends    results by finish reason
    errors  what went wrong that should not have
    leaks   what was still held when all was over; empty if nothing
    """

    ways: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    samples: list[Sample] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    leaks: dict[str, int] = field(default_factory=dict)
    num_tokens: int = 0
    num_preemptions: int = 0

    @property
    def num_requests(self) -> int:
        """Requests that have ended."""
        return self.ways.total()

    def slope_mib_an_hour(self) -> float:
        """Growth of RSS over the second half of the run, when all buckets and KV blocks have been met."""
        late = self.samples[len(self.samples) // 2 :]
        if len(late) < 2 or late[0].seconds == late[-1].seconds:
            return 0.0
        slope = np.polyfit([each.seconds for each in late], [each.rss_mib for each in late], 1)[0]
        return float(slope) * 3600

    def to_json(self) -> str:
        """All of it, and the slope."""
        counts = {"ways": dict(self.ways), "ends": dict(self.ends)}  # asdict counts pairs of a Counter
        return json.dumps(asdict(self) | counts | {"slope_mib_an_hour": self.slope_mib_an_hour()}, indent=1)


class Traffic:
    """Random requests, repeatable by `seed`; with stop strings where there is text to look for them in."""

    def __init__(self, vocab_size: int, max_model_len: int, seed: int, *, has_text: bool) -> None:
        self._random = random.Random(seed)
        self._has_text = has_text
        self._vocab_size, self._max_model_len = vocab_size, max_model_len
        self._beginnings = [self._ids(max_model_len // 3) for _ in range(4)]

    def way(self) -> str:
        """One of WAYS."""
        return self._random.choices(list(WAYS), list(WAYS.values()))[0]

    def pause_s(self, mean_s: float) -> float:
        """A random time, mostly short."""
        return self._random.expovariate(1 / mean_s)

    def prompt(self) -> list[int]:
        """Ids of their own, a few or many, some behind a beginning that others have, too."""
        if self._random.random() < 0.5:
            return self._ids(self._random.randint(1, self._max_model_len // 32))
        beginning = self._random.choice([[], [], *self._beginnings])
        return beginning + self._ids(self._random.randint(1, self._max_model_len // 4))

    def refused(self) -> tuple[list[int], SamplingParams]:
        """A request that cannot be."""
        token = self._vocab_size + 1
        return self._random.choice(
            [
                ([], SamplingParams()),
                ([1, token], SamplingParams()),
                ([1] * (self._max_model_len + 1), SamplingParams()),
                ([1], SamplingParams(logit_bias={token: 1.0})),
            ]
        )

    def params(self, *, is_single: bool) -> SamplingParams:
        """Any mixture of parameters."""
        chance, choose = self._random.random, self._random.choice
        fields: dict[str, Any] = {
            "max_tokens": choose([0, 1, 2, 5, 20, 300, 300]),
            "speculative": choose(["auto", "auto", "off", 2]),
            "temperature": choose([0.0, 0.0, 0.7, 1.5]),
        }
        optional: dict[str, Any] = {
            "n": 1 if is_single else choose([1, 2, 3]),
            "seed": self._random.randrange(1 << 40),
            "top_k": choose([1, 10]),
            "top_p": choose([0.5, 0.95]),
            "min_p": 0.05,
            "repetition_penalty": 1.2,
            "frequency_penalty": 0.3,
            "logit_bias": {1: -5.0, 2: 3.0},
            "bad_words": [[3], [4, 5]],
            "allowed_token_ids": range(self._vocab_size // 2),
            "stop_token_ids": [7, 11],
            "stop": choose([["e"], ["ab", "\x05"]]) if self._has_text else [],
            "logprobs": choose([0, 3]),
            "prompt_logprobs": 1,
        }
        return SamplingParams(
            **fields, **{name: value for name, value in optional.items() if chance() < 0.15}
        )

    def _ids(self, count: int) -> list[int]:
        return [self._random.randrange(self._vocab_size) for _ in range(count)]


class Soak:
    """One run over an engine, by a number of tasks that each make one request after the other."""

    def __init__(self, llm: AsyncLLM, traffic: Traffic, *, pause_s: float) -> None:
        self._llm, self._traffic, self._pause_s = llm, traffic, pause_s
        self._start_s = time.monotonic()
        self.report = Report()

    async def run(self, num_tasks: int, seconds: float, num_requests: float, sample_s: float) -> Report:
        """Make requests until the time is over or enough have ended; then look at what is left."""
        end_s = self._start_s + seconds
        tasks = [asyncio.create_task(self._make_requests(end_s, num_requests)) for _ in range(num_tasks)]
        sampling = asyncio.create_task(self._sample_every(sample_s))
        await asyncio.gather(*tasks)
        sampling.cancel()
        await self._rest()
        self.sample()
        self.report.leaks = leaks(self._llm)
        metrics = self._llm.metrics()
        self.report.num_tokens, self.report.num_preemptions = metrics.num_emitted, metrics.num_preemptions
        return self.report

    async def _sample_every(self, interval_s: float) -> None:
        while True:
            self.sample()
            await asyncio.sleep(interval_s)

    def sample(self) -> None:
        """Note the memory now."""
        gc.collect()
        seconds = time.monotonic() - self._start_s
        self.report.samples.append(
            Sample(seconds, self.report.num_requests, rss_mib(), len(gc.get_objects()))
        )

    async def _make_requests(self, end_s: float, num_requests: float) -> None:
        while time.monotonic() < end_s and self.report.num_requests < num_requests:
            await asyncio.sleep(self._traffic.pause_s(self._pause_s))
            way = self._traffic.way()
            try:
                await getattr(self, f"_{way}")()
            except Exception as error:  # is what the run looks for
                self.report.errors.append(f"{way}: {error!r}")
            self.report.ways[way] += 1

    async def _generate(self) -> None:
        for result in await self._llm.generate(self._traffic.prompt(), self._traffic.params(is_single=False)):
            self._count(result)

    async def _stream(self) -> None:
        text, chunk = "", None
        async for chunk in self._llm.stream(self._traffic.prompt(), self._traffic.params(is_single=True)):
            text += chunk.text
        assert chunk is not None and chunk.result is not None and chunk.result.text == text
        self._count(chunk.result)

    async def _leave(self) -> None:
        """Close a stream after a random number of pieces."""
        stream = self._llm.stream(self._traffic.prompt(), self._traffic.params(is_single=True))
        left = int(self._traffic.pause_s(4))
        async for _ in stream:
            left -= 1
            if left < 0:
                break
        await stream.aclose()  # type: ignore[attr-defined]

    async def _cancel(self) -> None:
        task = asyncio.create_task(self._generate())
        await asyncio.wait([task], timeout=self._traffic.pause_s(self._pause_s))
        task.cancel()
        await asyncio.wait([task])

    async def _refused(self) -> None:
        try:
            await self._llm.generate(*self._traffic.refused())
        except (ConfigError, CapacityError):
            return
        raise AssertionError("an impossible request was taken")

    def _count(self, result: Any) -> None:
        self.report.ends[result.finish_reason] += 1
        if result.error is not None:
            self.report.errors.append(result.error)

    async def _rest(self) -> None:
        """Wait until what was dropped last is gone, too."""
        await self._llm.generate([1], SamplingParams(max_tokens=1))
        await asyncio.sleep(0.2)


def leaks(llm: AsyncLLM) -> dict[str, int]:
    """What an engine without requests still holds; nothing of it should be there."""
    engine, thread = llm._engine.opened(), llm._thread
    engine.scheduler.check()
    kv, proposer = engine.scheduler.kv, engine.proposer
    held = {
        "KV blocks": kv.num_blocks - kv.num_free,
        "running": len(engine.scheduler.running),
        "waiting": engine.scheduler.num_waiting,
        "texts of the proposer": getattr(proposer, "num_texts", 0),
        "handles": len(llm._engine._handles),
        "calls": len(thread._calls) + len(thread._open) + thread._asked.qsize(),
    }
    return {name: count for name, count in held.items() if count}


def rss_mib() -> float:
    """Memory of this process that is in RAM."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES / 2**20


def random_checkpoint(folder: Path) -> Path:
    """Write a small llama of random weights, whose first ids are bytes: what is soaked is the engine."""
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={text: token for token, text in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def short_kv_mib(llm_config: ModelConfig, num_seqs: int) -> int:
    """KV memory for a sixth of as many full contexts: less than what prompts and texts of all need."""
    kv_bytes = 2 * llm_config.num_layers * llm_config.num_kv_heads * llm_config.head_dim * MAX_MODEL_LEN * 4
    return max(1, num_seqs * kv_bytes // 6 >> 20)


def open_llm(folder: Path, **options: Any) -> AsyncLLM:
    """An engine whose KV memory is short."""
    num_seqs = 16
    return AsyncLLM(
        folder,
        speculative_config={"method": "ngram"},
        max_num_seqs=num_seqs,
        max_model_len=MAX_MODEL_LEN,
        kv_cache_mib=short_kv_mib(load_config(folder), num_seqs),
        **options,
    )


def show(report: Report, console: Console) -> None:
    """Memory over time, and what came of all."""
    table = Table(title="memory over time")
    for name in ("seconds", "requests", "RSS MiB", "objects"):
        table.add_column(name, justify="right")
    for each in report.samples:
        table.add_row(f"{each.seconds:.0f}", str(each.num_requests), f"{each.rss_mib:.1f}", str(each.objects))
    console.print(table)
    console.print(f"requests: {dict(report.ways)}; results: {dict(report.ends)}")
    console.print(f"{report.num_tokens} tokens, {report.num_preemptions} preemptions")
    console.print(f"slope of the second half: {report.slope_mib_an_hour():+.2f} MiB an hour")
    console.print(f"errors: {report.errors[:10] or 'none'}")
    console.print(f"leaks: {report.leaks or 'none'}")


def main() -> None:
    """Soak a checkpoint, or a small random one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path, nargs="?")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--tasks", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the report to this file")
    args = parser.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory() as scratch:
        llm = open_llm(args.checkpoint or random_checkpoint(Path(scratch)))
    traffic = Traffic(llm.config.vocab_size, MAX_MODEL_LEN, args.seed, has_text=True)
    seconds = args.minutes * 60
    soak = Soak(llm, traffic, pause_s=0.05)
    report = asyncio.run(soak.run(args.tasks, seconds, float("inf"), sample_s=seconds / 30))
    llm.close()
    console.print(cpu_name())
    show(report, console)
    if args.json:
        args.json.write_text(report.to_json())


if __name__ == "__main__":
    main()
