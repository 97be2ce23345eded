"""The loop: admit, prefill, then rounds of propose, verify, accept, commit. Knows proposers by protocol only."""

from collections import deque
from collections.abc import Mapping
from collections.abc import Sequence as List

import numpy as np

from tspec.core.config import ModelConfig
from tspec.core.errors import CapacityError, ConfigError
from tspec.core.noise import DRAFT, TARGET
from tspec.core.proposer import Committed, DraftBatch, DraftSampling, Proposer
from tspec.core.sampling import FILTERED, FUSED, pass_kind
from tspec.core.sampling_params import SamplingParams
from tspec.core.shapes import blocks_for
from tspec.core.tree import MAX_NODES, NO_PARENT, CandidateTrees
from tspec.runtime.blocks import BlockPool
from tspec.runtime.buckets import smallest_bucket
from tspec.runtime.inputs import Executor, PassInputs, Rows
from tspec.runtime.logprobs import read_logprobs
from tspec.runtime.prompt import read_prompt
from tspec.runtime.request_tables import logprob_counts, make_tables, request_inputs, sampling_of
from tspec.runtime.sequence import FinishReason, Sequence

_CHAIN_PARENTS = np.arange(NO_PARENT, MAX_NODES - 1, dtype=np.int32)


class Engine:
    """Runs sequences to their end, up to `max_num_seqs` at a time.

    A sequence reserves KV blocks for all it may ever need when it is admitted; until they are free it waits.
    node_budget   nodes a verify pass may have in all while speculating: what the host computes at about the
                  price of one (beyond it, plain decoding of the same batch would be faster)
    acceptance    of candidates that a proposer draws: SpeculativeConfig.acceptance
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
    ) -> None:
        self.config = config
        self.max_model_len = max_model_len
        self.executor = executor
        self._proposer = proposer
        self._max_candidates = max_candidates
        self._node_budget = node_budget
        self._draft_stream = TARGET if acceptance == "match" else DRAFT
        self._blocks = BlockPool(executor.num_blocks)
        self._free_slots = list(range(max_num_seqs - 1, -1, -1))
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []

    @property
    def has_work(self) -> bool:
        """Whether a sequence waits or runs."""
        return bool(self._waiting or self._running)

    def add(self, prompt: List[int], params: SamplingParams) -> Sequence:
        """Queue a request.

        Errors   ConfigError for an empty prompt, or one that is not all ids of the vocabulary, and for parameters that
                 name other ids; CapacityError for a prompt that leaves no room for a token in the context, or in the
                 KV blocks
        """
        tokens = read_prompt(prompt, self.config.vocab_size, self.max_model_len)
        eos = () if params.ignore_eos else self.config.eos_token_ids
        stop_ids = frozenset((*eos, *params.stop_token_ids))
        sequence = Sequence(
            prompt=tokens.astype(np.int32),
            params=params,
            stop_ids=stop_ids,
            max_length=min(len(tokens) + params.max_tokens, self.max_model_len),
            tokens=tokens.tolist(),
            tables=make_tables(params, tokens, stop_ids, self.config.vocab_size),
        )
        if params.max_tokens == 0:
            sequence.finish_reason = FinishReason.LENGTH
            return sequence
        if self._num_blocks(sequence) > self._blocks.num_blocks:
            raise CapacityError(
                "KV blocks for a request",
                got=f"{self._blocks.num_blocks} blocks in all",
                need=self._num_blocks(sequence),
                fix="Lower max_tokens or shorten the prompt.",
            )
        self._waiting.append(sequence)
        return sequence

    def abort(self, sequence: Sequence) -> None:
        """Drop a request, wherever it is. Harmless for one that has ended."""
        if sequence in self._running:
            self._release(sequence)
        elif sequence in self._waiting:
            self._waiting.remove(sequence)

    def step(self) -> list[Sequence]:
        """Run one pass; returns the sequences that gained tokens. Call while `has_work`.

        A pass prefills every sequence that still has prompt left, else decodes all running ones.
        """
        self._admit()
        prefilling = [each for each in self._running if each.is_prefilling]
        scored = [each for each in prefilling if each.params.prompt_logprobs is not None]
        if scored:
            self._score_prompts(scored)
            advanced = []
        else:
            advanced = self._prefill(prefilling) if prefilling else self._decode(self._running)
        for sequence in [each for each in self._running if each.finish_reason is not None]:
            self._release(sequence)
        return advanced

    def close(self) -> None:
        """Drop all requests and end the executor's threads."""
        for sequence in [*self._running, *self._waiting]:
            self.abort(sequence)
        self.executor.close()

    def _num_blocks(self, sequence: Sequence) -> int:
        """Blocks for the longest text, and for candidates that stand behind it."""
        return blocks_for(sequence.max_length + self._max_candidates)

    def _admit(self) -> None:
        """Start waiting sequences in their order, while there is a slot and room for the next one."""
        while self._waiting and self._free_slots:
            sequence = self._waiting[0]
            if self._num_blocks(sequence) > self._blocks.num_free:
                return
            self._waiting.popleft()
            sequence.blocks = self._blocks.take(self._num_blocks(sequence))
            sequence.block_row = np.array(sequence.blocks, dtype=np.int32)
            sequence.slot = self._free_slots.pop()
            self._running.append(sequence)
            self._proposer.admit(sequence.slot, sequence.prompt)

    def _release(self, sequence: Sequence) -> None:
        self._running.remove(sequence)
        self._proposer.release(sequence.slot)
        self._blocks.give_back(sequence.blocks)
        self._free_slots.append(sequence.slot)
        sequence.blocks, sequence.slot = [], -1

    def _prefill(self, sequences: list[Sequence]) -> list[Sequence]:
        """Take the next chunk of each prompt through a pass; the last chunk of a prompt gives its first token."""
        trees = _next_chunks(sequences)
        counts = trees.num_nodes.tolist()
        done = [
            sequence.prefix_len + count == sequence.num_prefilled
            for sequence, count in zip(sequences, counts, strict=True)
        ]
        outputs: Mapping[str, np.ndarray] = {}
        if any(done):
            sampling = sampling_of(sequences)
            requests = request_inputs(sequences, sampling, None, self.config.vocab_size)
            outputs = self._run(pass_kind("last", sampling), sequences, trees, requests)
        else:
            self._run("none", sequences, trees, {})
        for sequence, count in zip(sequences, counts, strict=True):
            sequence.prefix_len += count
        finished = [row for row, is_done in enumerate(done) if is_done]
        if not finished:
            return []
        for row in finished:
            sequences[row].stats.num_from_prefill = 1
        outputs = {name: array[finished] for name, array in outputs.items()}
        tokens = outputs["node_tokens"].astype(np.int32)
        advanced = [sequences[row] for row in finished]
        self._commit(advanced, tokens, np.ones(len(finished), dtype=np.int32), outputs)
        return advanced

    def _score_prompts(self, sequences: list[Sequence]) -> None:
        """Take the next chunk of each prompt through a pass that gives the log-probabilities of what follows it."""
        trees = _next_chunks(sequences)
        targets = np.zeros(trees.tokens.shape, dtype=np.int32)
        counts = trees.num_nodes.tolist()
        for row, (sequence, count) in enumerate(zip(sequences, counts, strict=True)):
            start = sequence.prefix_len + 1
            targets[row, :count] = sequence.prompt[start : start + count]
        wanted = logprob_counts([each.params.prompt_logprobs for each in sequences])
        outputs = self._run("prompt", sequences, trees, {"targets": targets, "num_logprobs": wanted})
        for row, (sequence, count) in enumerate(zip(sequences, counts, strict=True)):
            sequence.prefix_len += count
            sequence.prompt_logprobs += read_logprobs(outputs, row, targets[row, :count], wanted[row])

    def _decode(self, sequences: list[Sequence]) -> list[Sequence]:
        """One round: propose, verify, accept, commit."""
        batch = self._draft_batch(sequences)
        trees = self._proposer.propose(batch)
        self._check_trees(trees, batch)
        sampling = sampling_of(sequences)
        if trees.draft_logprobs is None:
            kind, draft = pass_kind("all", sampling), {}
        else:
            sampling = FILTERED if sampling == FUSED else sampling
            kind, draft = pass_kind("ratio", sampling), _draft_inputs(trees)
        requests = request_inputs(sequences, sampling, trees, self.config.vocab_size)
        outputs = self._run(kind, sequences, trees, requests | draft)
        num_out = outputs["num_out"][: len(sequences)]
        for sequence, nodes, out in zip(sequences, trees.num_nodes.tolist(), num_out.tolist(), strict=True):
            sequence.stats.add_pass(nodes - 1, out - 1)
            sequence.prefix_len += out
        self._commit(sequences, outputs["out_tokens"][: len(sequences)], num_out, outputs)
        return list(sequences)

    def _draft_batch(self, sequences: list[Sequence]) -> DraftBatch:
        """Candidates are useful only as far as tokens may still come: the bonus token takes the last place."""
        share = max(1, self._node_budget // len(sequences))
        limits = [
            min(self._max_candidates + 1, each.params.max_candidates + 1, share, each.num_remaining)
            for each in sequences
        ]
        return DraftBatch(
            slots=np.array([each.slot for each in sequences], dtype=np.int32),
            roots=np.array([each.tokens[-1] for each in sequences], dtype=np.int32),
            max_nodes=np.array(limits, dtype=np.int32),
            sampling=DraftSampling(
                temperature=np.array([each.tables.temperature for each in sequences], dtype=np.float32),
                seeds=np.array([each.tables.seed for each in sequences], dtype=np.int64),
                positions=np.array([each.prefix_len for each in sequences], dtype=np.int32),
                stream=self._draft_stream,
            ),
        )

    def _check_trees(self, trees: CandidateTrees, batch: DraftBatch) -> None:
        """Native code would read candidates outside the vocabulary, and write nodes past the sequence's blocks."""
        what = f"of proposer {self._proposer.name}"
        for nodes, most in zip(trees.num_nodes.tolist(), batch.max_nodes.tolist(), strict=True):
            if not 1 <= nodes <= most:
                raise ConfigError(
                    f"nodes {what}", got=nodes, need=f"1 to {most}", fix="Correct the proposer."
                )
        if trees.draft_logprobs is not None and self._draft_stream == TARGET:
            raise ConfigError(
                f"candidates {what}",
                got="the law that they were drawn from",
                need='none with acceptance "match", where the noise is the target\'s own',
                fix="Correct the proposer: a ratio test of coupled candidates would not be lossless.",
            )
        live = trees.tokens[np.arange(trees.tokens.shape[1]) < trees.num_nodes[:, None]]
        if live.min() < 0 or live.max() >= self.config.vocab_size:
            raise ConfigError(
                f"candidates {what}",
                got=f"ids {live.min()} to {live.max()}",
                need=f"ids from 0 to {self.config.vocab_size - 1}",
                fix="Use a proposer of the target's vocabulary.",
            )

    def _run(
        self, kind: str, sequences: list[Sequence], trees: CandidateTrees, requests: Mapping[str, Rows]
    ) -> Mapping[str, np.ndarray]:
        width = max(len(each.blocks) for each in sequences)
        table = np.zeros((len(sequences), width), dtype=np.int32)
        for row, sequence in enumerate(sequences):
            table[row, : len(sequence.blocks)] = sequence.block_row
        prefix_len = np.array([each.prefix_len for each in sequences], dtype=np.int32)
        bucket = smallest_bucket(len(sequences), int(trees.num_nodes.max()))
        return self.executor.run(kind, bucket, PassInputs(trees, prefix_len, table, requests))

    def _commit(
        self,
        sequences: list[Sequence],
        tokens: np.ndarray,
        counts: np.ndarray,
        outputs: Mapping[str, np.ndarray],
    ) -> None:
        """Append what was verified to each sequence, and tell the proposer what really became text."""
        emitted = []
        for row, (sequence, count) in enumerate(zip(sequences, counts.tolist(), strict=True)):
            emitted.append(sequence.commit(tokens[row, :count].tolist()))
            if sequence.params.logprobs is not None:
                kept = tokens[row, : emitted[-1]]
                sequence.logprobs += read_logprobs(outputs, row, kept, sequence.params.logprobs)
        self._proposer.observe(
            Committed(
                slots=np.array([each.slot for each in sequences], dtype=np.int32),
                tokens=tokens,
                counts=np.array(emitted, dtype=np.int32),
                num_accepted=counts - 1,
            )
        )


def _next_chunks(sequences: list[Sequence]) -> CandidateTrees:
    """The next tokens of each prompt, as chains."""
    counts = [min(MAX_NODES, each.num_prefilled - each.prefix_len) for each in sequences]
    width = max(counts)
    trees = CandidateTrees(
        np.zeros((len(sequences), width), dtype=np.int32),
        np.broadcast_to(_CHAIN_PARENTS[:width], (len(sequences), width)),
        np.array(counts, dtype=np.int32),
    )
    for row, (sequence, count) in enumerate(zip(sequences, counts, strict=True)):
        trees.tokens[row, :count] = sequence.prompt[sequence.prefix_len : sequence.prefix_len + count]
    return trees


def _draft_inputs(trees: CandidateTrees) -> dict[str, Rows]:
    assert trees.is_sampled is not None and trees.draft_logprobs is not None
    width = int(trees.num_nodes.max())  # all that the bucket has room for
    return {"is_sampled": trees.is_sampled[:, :width], "draft_logprobs": trees.draft_logprobs[:, :width]}
