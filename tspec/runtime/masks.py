"""Which tokens a sequence may say at each node of its candidate tree. Computes no logits and chooses nothing.

A row says what plain decoding would allow had the node's path been committed: speculation changes nothing.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence

import numpy as np

from tspec.core.constraint import ConstraintState, token_bits
from tspec.core.errors import ConfigError
from tspec.core.sampling_params import SamplingParams
from tspec.core.tree import NO_PARENT

_ROOT_PARENTS = np.array([NO_PARENT], dtype=np.int32)


class TokenMasks:
    """The mask rows of one request: allowed ids, less ends of bad words, stop tokens that come early, and what a
    constraint refuses.

    Rows are int32 [W] with W = ceil(V / 32), one bit a token, the lowest bit first, 1 where the token is allowed; bits
    past the vocabulary are 0. The ids of `params` are below V.

    Errors   ConfigError for parameters that leave no token at all, and for a constraint of another vocabulary
    """

    def __init__(self, params: SamplingParams, stop_ids: Collection[int], vocab_size: int) -> None:
        self._params = params
        words = [_need_token_ids(word) for word in params.bad_words]
        allowed = params.allowed_token_ids
        banned = {word[0] for word in words if len(word) == 1}
        self._allowed = token_bits(vocab_size, allowed) & ~token_bits(vocab_size, banned)
        self._no_stops = ~token_bits(vocab_size, stop_ids)
        self._ends = _ends_by_beginning([word for word in words if len(word) > 1])
        self._state: ConstraintState | None = None
        self._failure: ConfigError | None = None
        if params.constraint is not None:
            self._state = params.constraint.start(vocab_size, stop_ids)
        if not self._allowed.any():
            raise _nothing_left("allowed_token_ids and bad_words leave none")
        if params.min_tokens > 0 and not (self._allowed & self._no_stops).any():
            raise _nothing_left(
                f"allowed_token_ids, bad_words and min_tokens ({params.min_tokens}) leave none"
            )

    def fill(
        self,
        mask: np.ndarray,
        tokens: Sequence[int],
        num_output: int,
        node_tokens: np.ndarray,
        parents: np.ndarray,
        num_nodes: int,
    ) -> None:
        """Write the rows of all nodes; rows of padding are left as they are.

        mask          int32 [T, W]
        tokens        prompt and output so far; the last one is the root
        num_output    how many of them are output
        node_tokens   int32 [T], and parents, int32 [T]: the sequence's row of the candidate trees

        With a constraint, all bits are 0 at nodes that cannot be reached, as a row above refuses their token: no state
        of the constraint is there, and were one reached by mistake, the request would fail and not leave its grammar.
        """
        rows = mask[:num_nodes]
        rows[:] = self._allowed
        path_tokens, path_parents = node_tokens[:num_nodes].tolist(), parents[:num_nodes].tolist()
        if num_output < self._params.min_tokens:
            depths = _depths(path_parents)
            rows[num_output + depths < self._params.min_tokens] &= self._no_stops
        if self._ends:
            self._forbid_ends(rows, tokens, path_tokens, path_parents)
        if self._state is not None:
            self._constrain(self._state, rows, path_tokens, path_parents)

    def fill_root(self, row: np.ndarray, tokens: Sequence[int], num_output: int) -> None:
        """Write the row, int32 [W], for what comes after `tokens`, as after a prompt."""
        self.fill(row[None], tokens, num_output, np.array(tokens[-1:], dtype=np.int32), _ROOT_PARENTS, 1)

    def commit(self, emitted: Iterable[int]) -> None:
        """Take note of tokens that became text, in their order. Not for the prompt."""
        if self._state is None or self._failure is not None:
            return
        try:
            for token in emitted:
                if not self._state.advance(token):
                    self._failure = _refused(token)
                    return
        except ConfigError as error:
            self._failure = error

    def why_no_token(self, tokens: Sequence[int], num_output: int) -> ConfigError | None:
        """Say what leaves no token to come after `tokens`; None if the masks allow one, so that it is the logits."""
        row = np.empty_like(self._allowed)
        self.fill_root(row, tokens, num_output)
        if self._failure is not None or row.any():
            return self._failure
        params = self._params
        in_force = {
            "allowed_token_ids": params.allowed_token_ids is not None,
            "bad_words": bool(params.bad_words),
            f"min_tokens ({params.min_tokens})": num_output < params.min_tokens,
            "the constraint": self._state is not None,
        }
        names = " and ".join(name for name, is_asked in in_force.items() if is_asked)
        return _nothing_left(f"after {num_output} tokens {names} leave none")

    def _forbid_ends(
        self, rows: np.ndarray, tokens: Sequence[int], node_tokens: list[int], parents: list[int]
    ) -> None:
        """Clear the last tokens of words whose beginning is the end of the text and the path."""
        longest = max(self._ends)
        tails = [tuple(tokens[-longest:])]
        for node in range(1, len(parents)):
            tails.append((*tails[parents[node]], node_tokens[node])[-longest:])
        bits = rows.view(np.uint32)
        for length, ends_of in self._ends.items():
            for node, tail in enumerate(tails):
                for column, keep in ends_of.get(tail[-length:], ()):
                    bits[node, column] &= keep

    def _constrain(
        self, state: ConstraintState, rows: np.ndarray, node_tokens: list[int], parents: list[int]
    ) -> None:
        """Walk the constraint depth first over what can be reached, and back to where it was."""
        if self._failure is not None:
            rows[:] = 0
            return
        allowed = np.empty_like(self._allowed)
        walked = 0
        depth_of: dict[int, int] = {}
        for node in _depth_first(parents):
            parent, token = parents[node], node_tokens[node]
            try:
                if node > 0:
                    if parent not in depth_of or not _has(rows[parent], token):
                        rows[node] = 0
                        continue
                    state.take_back(walked - depth_of[parent])
                    walked = depth_of[parent]
                    if not state.advance(token):
                        raise _refused(token)
                    walked += 1
                state.fill_mask(allowed)
            except ConfigError as error:  # a candidate's trouble is none of the text's until it is accepted
                rows[node] = 0
                if node == 0:
                    self._failure = error
            else:
                rows[node] &= allowed
                depth_of[node] = walked
        state.take_back(walked)


_Ends = dict[int, dict[tuple[int, ...], list[tuple[int, np.uint32]]]]


def _ends_by_beginning(words: list[Sequence[int]]) -> _Ends:
    """Length of a beginning -> beginning -> where the bits of the last tokens are, and what keeps the others."""
    ends: _Ends = {}
    for word in words:
        *beginning, last = word
        of_length = ends.setdefault(len(beginning), {})
        keep = np.uint32(0xFFFFFFFF ^ (1 << last % 32))
        of_length.setdefault(tuple(beginning), []).append((last // 32, keep))
    return ends


def _depths(parents: list[int]) -> np.ndarray:
    depths = [0]
    for parent in parents[1:]:
        depths.append(depths[parent] + 1)
    return np.array(depths)


def _depth_first(parents: list[int]) -> Iterator[int]:
    """Nodes, each followed by all that is below it."""
    children: list[list[int]] = [[] for _ in parents]
    for node in range(len(parents) - 1, 0, -1):
        children[parents[node]].append(node)
    waiting = [0]
    while waiting:
        node = waiting.pop()
        waiting += children[node]
        yield node


def _has(row: np.ndarray, token: int) -> bool:
    return bool(int(row[token >> 5]) >> (token & 31) & 1)


def _need_token_ids(word: str | Sequence[int]) -> Sequence[int]:
    if isinstance(word, str):
        raise ConfigError(
            "bad_words", got=repr(word), need="token ids", fix="Encode texts before they get here."
        )
    return word


def _refused(token: int) -> ConfigError:
    return ConfigError(
        "constraint",
        got=f"token {token} refused that its mask allows",
        need="a constraint that takes each token it allows",
        fix="Correct the constraint.",
    )


def _nothing_left(got: str) -> ConfigError:
    return ConfigError("tokens that may come next", got=got, need="at least one", fix="Relax one of them.")
