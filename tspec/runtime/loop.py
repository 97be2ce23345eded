"""The loop: admit, prefill, then rounds of propose, verify, accept, commit. Knows proposers by protocol only."""

import logging
import time
from collections.abc import Mapping
from collections.abc import Sequence as List
from dataclasses import replace

import numpy as np

from tspec.core.config import ModelConfig
from tspec.core.errors import ConfigError
from tspec.core.pass_costs import PassCosts
from tspec.core.proposer import CachingProposer, Committed, LearningProposer, Proposer, WeighingProposer
from tspec.core.sampling import pass_kind
from tspec.core.sampling_params import SamplingParams
from tspec.core.tree import MAX_NODES, CandidateTrees
from tspec.runtime.buckets import smallest_bucket
from tspec.runtime.inputs import Executor, PassInputs, Rows
from tspec.runtime.kv_blocks import KvBlocks
from tspec.runtime.logprobs import read_logprobs
from tspec.runtime.metrics import Counters, EngineMetrics, tree_depths
from tspec.runtime.metrics_report import MetricsReport, OnMetrics
from tspec.runtime.new_sequence import Limits, new_sequence
from tspec.runtime.request_tables import logprob_counts, request_inputs, sampling_of
from tspec.runtime.rounds import (
    as_chains,
    block_tables,
    cache_rows,
    check_trees,
    draft_batch,
    most_nodes,
    prompt_tokens_beside,
    verify_inputs,
    with_chunks,
)
from tspec.runtime.scheduler import Chunk, Scheduler, held_chunks
from tspec.runtime.sequence import FinishReason, Sequence
from tspec.runtime.speed_up import PlainTimes, RoundTimes
from tspec.runtime.text import OutputText
from tspec.runtime.trace import TraceFile

_log = logging.getLogger("tspec")

PREFILL_ALONE = 512
"""Prompt tokens of a step that nothing decodes in: eight chunks, so that other requests can still come soon."""


class Engine:
    """Runs requests to their ends: they come and go at any step, each with its own parameters and tree.

    While sequences decode, chunks of prompts go along in their verify pass. Else a step prefills larger chunks, then
    decodes every sequence whose prompt is done.
    node_budget     nodes a verify pass may have in all while speculating
    num_cheap_nodes what the host computes at about the price of one: prompts fill a pass up to it. None: node_budget
    acceptance      of candidates that a proposer draws: SpeculativeConfig.acceptance
    mixes_prompts   whether chunks of prompts go along in verify passes: not where a pass keeps something of the nodes
                    that it accepts, as those of a chunk are known without being accepted, nor where padding is computed
    costs           what passes take, where that is known
    plain_times     what is known of plain rounds before the first
    proposer        an attribute, too: what watches a run may stand in its place and pass on what it is told
    trace           gets a line a round
    on_metrics      called with the metrics from `step`, at most every `metrics_interval_s` seconds, and from `close`.
                    The log, at level INFO, gets a line as often
    """

    def __init__(
        self,
        config: ModelConfig,
        executor: Executor,
        proposer: Proposer,
        *,
        max_model_len: int,
        max_num_seqs: int,
        max_candidates: int,
        node_budget: int,
        acceptance: str = "auto",
        share_prefixes: bool = True,
        mixes_prompts: bool = True,
        on_metrics: OnMetrics | None = None,
        metrics_interval_s: float = 10.0,
        plain_times: PlainTimes | None = None,
        num_cheap_nodes: int | None = None,
        costs: PassCosts | None = None,
        trace: TraceFile | None = None,
    ) -> None:
        self.config = config
        self.max_model_len = max_model_len
        self.executor = executor
        self.scheduler = Scheduler(
            KvBlocks(executor.num_blocks, share_prefixes=share_prefixes),
            max_num_seqs=max_num_seqs,
            on_start=self._start,
            on_stop=self._stop,
        )
        self.proposer = proposer
        self._caching = proposer if isinstance(proposer, CachingProposer) else None
        self._weighing = proposer if isinstance(proposer, WeighingProposer) else None
        self._max_candidates, self._acceptance = max_candidates, acceptance
        self._node_budget, self._num_cheap_nodes = node_budget, num_cheap_nodes or node_budget
        self._trace, self._node_s = trace, None if costs is None else costs.by_nodes(4 * MAX_NODES)
        self._is_stepping, self._mixes_prompts = False, mixes_prompts
        self._leaving: list[Sequence] = []
        self._counters = Counters()
        self._plain_times = plain_times or PlainTimes()
        self._report = MetricsReport(on_metrics, metrics_interval_s)

    @property
    def has_work(self) -> bool:
        """Whether a sequence waits or runs."""
        return bool(self.scheduler.num_waiting or self.scheduler.running)

    def add(
        self,
        prompt: List[int],
        params: SamplingParams,
        *,
        priority: int = 0,
        text: OutputText | None = None,
    ) -> Sequence:
        """Queue a request. Those of a lower `priority` number come first, then those that came first.

        text     where the output's tokens become text, and stop strings end it; without it there are none

        Errors   those of `new_sequence`
        """
        limits = Limits(self.config, self.max_model_len, self.scheduler.kv.num_blocks)
        sequence = new_sequence(prompt, params, limits, priority=priority, text=text)
        if params.max_tokens == 0:
            sequence.finish_reason = FinishReason.LENGTH
            self._counters.add_ended(sequence)
            return sequence
        self.scheduler.add(sequence)
        return sequence

    def abort(self, sequence: Sequence) -> None:
        """Drop a request, wherever it is, if it has not ended. Within a step it leaves at the step's end."""
        if self._is_stepping:
            self._leaving.append(sequence)
        elif self.scheduler.remove(sequence):
            sequence.end(FinishReason.ABORT)
            self._counters.add_ended(sequence)

    def learn(self, response: np.ndarray) -> None:
        """Let the proposer learn a text, int32 [n], if it can: as if a request had ended with it."""
        if isinstance(self.proposer, LearningProposer):
            self.proposer.learn(response)

    def metrics(self) -> EngineMetrics:
        """What this engine has done so far. Other threads may ask, too, and may then see a step in part."""
        metrics = self._counters.read(self.scheduler)
        return metrics if self._weighing is None else replace(metrics, sources=self._weighing.tallies())

    def step(self) -> list[Sequence]:
        """Run one pass or two; returns the sequences that gained tokens or ended. Call while `has_work`.

        An exception in a pass or in the proposer leaves the running sequences in no known state: they end with an error
        that says what it was. Those that wait go on, and so does the engine. KeyboardInterrupt and the like end them as
        well, and are raised. Errors: ConfigError within a step.
        """
        if self._is_stepping:
            raise ConfigError("step", got="one within a step", need="one after it", fix="Call it later.")
        advanced: list[Sequence] = []
        self._is_stepping = True
        try:
            self._step(advanced)
        except BaseException as error:  # must not reach requests that had no part in it
            _log.exception("A step failed: its %d requests end.", len(self.scheduler.running))
            advanced += self._fail_running(error)
            if not isinstance(error, Exception):
                raise
        finally:
            self._is_stepping = False
            while self._leaving:
                self.abort(self._leaving.pop())
        self._report.poll(self.metrics)
        return list(dict.fromkeys(advanced))

    def _step(self, advanced: list[Sequence]) -> None:
        """`advanced` gets the sequences that have gained tokens, those before an exception, too."""
        self.scheduler.admit()
        is_mixed = self._mixes_prompts and self.scheduler.is_decoding
        chunks = self.scheduler.prefill_chunks(self._prompt_budget(), leaves_roots=is_mixed)
        if chunks and chunks[0].sequence.is_scored:
            self._score_prompts(chunks)
            chunks = []
        elif chunks and not is_mixed:
            advanced += self._prefill(chunks)
            chunks = []
        self._release_ended()
        advanced += self._decode(chunks)
        self._release_ended()

    def _prompt_budget(self) -> int:
        """Prompt tokens that a step takes."""
        if not self.scheduler.is_decoding:
            return PREFILL_ALONE
        cheap = self._num_cheap_nodes
        if not self._mixes_prompts:
            return 2 * cheap  # a pass of so many costs about as much as the round after it
        decoding, num_running = self.scheduler.decoding(), len(self.scheduler.running)
        nodes = sum(most_nodes(decoding, self._max_candidates, cheap))
        return prompt_tokens_beside(nodes, cheap, len(decoding), num_running - len(decoding), self._node_s)

    def close(self) -> None:
        """Drop all requests and end the executor's threads."""
        for sequence in [*self.scheduler.running, *self.scheduler.waiting]:
            self.abort(sequence)
        self._report.finish(self.metrics)
        if self._trace is not None:
            self._trace.close()
        self.executor.close()

    def _start(self, sequence: Sequence) -> None:
        self.proposer.admit(sequence.slot, np.array(sequence.tokens, dtype=np.int32))

    def _stop(self, slot: int) -> None:
        try:
            self.proposer.release(slot)
        except Exception:  # of its own books: neither this sequence nor those after it may stay for that
            _log.exception("Proposer %s could not release slot %d.", self.proposer.name, slot)

    def _fail_running(self, error: BaseException) -> list[Sequence]:
        failed = list(self.scheduler.running)
        for sequence in failed:
            self.scheduler.remove(sequence)
            if sequence.finish_reason is None:
                sequence.fail(str(error) or type(error).__name__)
            self._counters.add_ended(sequence)
        return failed

    def _release_ended(self) -> None:
        for sequence in [each for each in self.scheduler.running if each.finish_reason is not None]:
            self._counters.add_ended(sequence)
            self.scheduler.remove(sequence)

    def _prefill(self, chunks: List[Chunk]) -> list[Sequence]:
        """Take chunks of prompts through a pass; the last chunk of a prompt gives its first token."""
        sequences, trees = [chunk.sequence for chunk in chunks], as_chains(chunks)
        counts = trees.num_nodes.tolist()
        done = [
            each.gives_token and each.prefix_len + count == each.num_prefilled
            for each, count in zip(sequences, counts, strict=True)
        ]
        outputs: Mapping[str, np.ndarray] = {}
        if any(done):
            sampling = sampling_of(sequences)
            requests = request_inputs(sequences, sampling, None, self.config.vocab_size)
            outputs = self._run(pass_kind("last", sampling), sequences, trees, requests)
        else:
            self._run("none", sequences, trees, {})
        self._count_chunks(chunks)
        rows = [row for row, is_done in enumerate(done) if is_done]
        finished = [sequences[row] for row in rows]
        for sequence in finished:
            sequence.stats.num_from_prefill = 1
        if finished:
            first = {name: array[rows] for name, array in outputs.items()}
            tokens = first["node_tokens"].astype(np.int32)
            self._commit(finished, tokens, np.ones(len(rows), dtype=np.int32), first)
        self._commit_blocks(sequences)
        return finished

    def _count_chunks(self, chunks: List[Chunk]) -> None:
        """Note that the keys and values of chunks are there, and let a proposer's cache take them in, too."""
        for sequence, count in chunks:
            sequence.prefix_len += count
            sequence.stats.num_prefilled += count
            self._counters.num_prefilled += count
        if self._caching is not None and chunks:
            self._caching.follow(cache_rows([chunk.sequence for chunk in chunks]))

    def _score_prompts(self, chunks: List[Chunk]) -> None:
        """Take chunks of prompts through a pass that gives the log-probabilities of what follows each token."""
        sequences, trees = [chunk.sequence for chunk in chunks], as_chains(chunks)
        targets = np.zeros(trees.tokens.shape, dtype=np.int32)
        for row, (sequence, count) in enumerate(chunks):
            start = sequence.prefix_len + 1
            targets[row, :count] = sequence.prompt[start : start + count]
        wanted = [each.params.prompt_logprobs or 0 for each in sequences]
        requests = {"targets": targets, "num_logprobs": logprob_counts(wanted)}
        outputs = self._run("prompt", sequences, trees, requests)
        for row, (sequence, count) in enumerate(chunks):
            sequence.prompt_logprobs += read_logprobs(outputs, row, targets[row, :count], wanted[row])
        self._count_chunks(chunks)
        self._commit_blocks(sequences)

    def _decode(self, chunks: List[Chunk]) -> list[Sequence]:
        """One round: propose, verify, accept, commit. Chunks of prompts go along in the pass."""
        decoding = self.scheduler.decoding()
        nodes = self._reserve(decoding) if decoding else []
        sequences = [each for each, count in zip(decoding, nodes, strict=True) if count > 0]
        chunks = held_chunks(chunks)
        if not sequences:
            return self._prefill(chunks) if chunks else []
        start_s = time.perf_counter()
        num_beside = sum(count for _, count in chunks)
        trees = self._propose(sequences, [count for count in nodes if count > 0], num_beside)
        verify_start_s = time.perf_counter()
        outputs = self._verify(sequences, trees, chunks)
        verify_s = time.perf_counter() - verify_start_s
        # Copies: proposers may keep what they are told beyond the next pass, which writes over its outputs.
        tokens, num_out = (outputs[name][: len(sequences)].copy() for name in ("out_tokens", "num_out"))
        depths = tree_depths(trees)
        rows = zip(sequences, trees.num_nodes.tolist(), depths, num_out.tolist(), strict=True)
        for sequence, count, depth, out in rows:
            sequence.stats.add_pass(count - 1, out - 1, depth)
            self._counters.add_tree(count - 1, depth, out - 1)
            sequence.prefix_len += out
        self._commit(sequences, tokens, num_out, outputs, verify_s)
        self._count_chunks(chunks)
        self._commit_blocks([*sequences, *(chunk.sequence for chunk in chunks)])
        end_s = time.perf_counter()
        times = RoundTimes.of(verify_start_s - start_s, verify_s, end_s - start_s)
        if not chunks:
            self._count_times(sequences, depths, num_out.tolist(), times)
        if self._trace is not None:
            self._trace.round(sequences, trees, num_out.tolist(), times, self._weighing)
        return sequences

    def _count_times(
        self, sequences: List[Sequence], depths: List[int], num_out: List[int], times: RoundTimes
    ) -> None:
        """Note a plain round's time, or what the sequences with candidates waited in another."""
        for number, one in self._plain_times.split(times, depths, num_out):
            sequences[number].stats.rounds.add(one)
            self._counters.rounds.add(one)

    def _propose(self, sequences: List[Sequence], nodes: List[int], num_beside: int) -> CandidateTrees:
        caches = None if self._caching is None else cache_rows(sequences)
        batch = draft_batch(sequences, nodes, self._acceptance, caches, num_beside)
        trees = self.proposer.propose(batch)
        check_trees(trees, batch, self.proposer.name, self._acceptance, self.config.vocab_size)
        return trees

    def _verify(
        self, sequences: list[Sequence], trees: CandidateTrees, chunks: List[Chunk]
    ) -> Mapping[str, np.ndarray]:
        """Run the pass over all trees. What it chooses after nodes of chunks, in the rows behind, is of no meaning."""
        kind, requests = verify_inputs(sequences, trees, len(chunks), self.config.vocab_size)
        running = [*sequences, *(chunk.sequence for chunk in chunks)]
        return self._run(kind, running, with_chunks(trees, chunks), requests)

    def _reserve(self, decoding: List[Sequence]) -> list[int]:
        """The nodes of each sequence's tree, whose slots are there; 0 for one that had to give its blocks back."""
        nodes = most_nodes(decoding, self._max_candidates, self._node_budget)
        if self._caching is None:
            return self.scheduler.reserve(decoding, nodes)
        # The proposer's own tree stands behind the root, and may be larger than what it is asked for.
        slots = [count if count == 1 else max(count, 1 + self._caching.num_slots) for count in nodes]
        granted = self.scheduler.reserve(decoding, slots)
        return [
            count if room >= need else min(room, 1)
            for count, need, room in zip(nodes, slots, granted, strict=True)
        ]

    def _run(
        self, kind: str, sequences: list[Sequence], trees: CandidateTrees, requests: Mapping[str, Rows]
    ) -> Mapping[str, np.ndarray]:
        prefix_len = np.array([each.prefix_len for each in sequences], dtype=np.int32)
        bucket = smallest_bucket(len(sequences), int(trees.num_nodes.max()))
        inputs = PassInputs(trees, prefix_len, block_tables(sequences), requests)
        outputs = self.executor.run(kind, bucket, inputs)
        self._counters.add_pass(kind, bucket)
        return outputs

    def _commit(
        self,
        sequences: list[Sequence],
        tokens: np.ndarray,
        counts: np.ndarray,
        outputs: Mapping[str, np.ndarray],
        pass_s: float = 0.0,
    ) -> None:
        """Append what was verified to each sequence, and tell the proposer what really became text."""
        emitted = []
        for row, (sequence, count) in enumerate(zip(sequences, counts.tolist(), strict=True)):
            last_token_s = sequence.stats.last_token_s
            emitted.append(sequence.commit(tokens[row, :count].tolist()))
            self._counters.add_tokens(sequence, emitted[-1], last_token_s)
            if sequence.params.logprobs is not None:
                kept = tokens[row, : emitted[-1]]
                sequence.logprobs += read_logprobs(outputs, row, kept, sequence.params.logprobs)
        self.proposer.observe(
            Committed(
                slots=np.array([each.slot for each in sequences], dtype=np.int32),
                tokens=tokens,
                counts=np.array(emitted, dtype=np.int32),
                num_accepted=counts - 1,
                pass_s=pass_s,
            )
        )

    def _commit_blocks(self, sequences: List[Sequence]) -> None:
        """Let other sequences find what is now in the KV cache. A text that was cut has fewer tokens than that."""
        for sequence in sequences:
            assert sequence.table is not None
            sequence.prefix_len = min(sequence.prefix_len, len(sequence.tokens))
            shareable = None if self._caching is None else self._caching.num_cached(sequence.slot)
            self.scheduler.kv.commit(sequence.table, sequence.tokens, sequence.prefix_len, shareable)
