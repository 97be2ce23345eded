"""An incremental index of the n-grams of many texts, as native functions on plain arrays. Owns no memory.

`text` and `table` are shared by all slots; a cursor says which part is whose:
  text   int32 [capacity of all]                        tokens: `[start, start + length)` is one slot's text
  table  int32 [capacity of all * ENTRIES * lengths]    one open-addressing hash table for each slot and n
An entry is the position just after an n-gram in its slot's text, 0 when free. The n-gram itself is read from
the text, so a hash collision can cost a probe and never makes a wrong match.
"""

import numpy as np

from tspec.core.tree import NO_PARENT
from tspec.kernels.jit import native

ENTRIES = 2
"""Table entries a token of capacity, for each n: at most half of them are ever taken."""

NUM_CLASSES = 16
"""Classes of evidence: matches of up to 15 tokens, the last class for all longer ones."""

CURSOR = np.dtype(
    [
        ("start", np.int64),  # of the text, in `text`
        ("capacity", np.int64),  # in tokens, a power of two; 0 marks a slot not in use
        ("length", np.int64),  # in tokens
        ("match", np.int64),  # length of the longest suffix that occurs earlier, 0 for none
        ("after", np.int64),  # position just after that earlier occurrence
    ],
    align=True,
)
"""One slot's state: an array of these has one a slot."""

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_HALF_BITS = np.uint64(32)


@native()
def append_rows(text, table, cursors, slots, tokens, counts, first_row, min_match, max_match, keeps_latest):
    """Append `tokens[row, :counts[row]]` to each row's text, from `first_row` to the first text without room.

    Shapes   slots int32 [B], tokens int32 [B, any], counts int32 [B]
    Returns  that row, its text unchanged; B when all are done. Slots not in use are passed over.
    Cost     O(max_match) a token; allocates nothing
    """
    for row in range(first_row, len(slots)):
        if not _is_used(cursors, slots[row]):
            continue
        cursor = cursors[slots[row]]
        if cursor.length + counts[row] > cursor.capacity:
            return row
        for column in range(counts[row]):
            text[cursor.start + cursor.length] = tokens[row, column]
            cursor.length += 1
            _index_last(text, table, cursor, min_match, max_match, keeps_latest)
    return len(slots)


@native()
def propose_rows(
    out_tokens,
    out_parents,
    out_evidence,
    out_num_nodes,
    text,
    cursors,
    slots,
    roots,
    max_nodes,
    max_per_match,
):
    """Write each row's chain: the root, then what followed the longest earlier match of the text's end.

    Where that runs into the end of the text it goes on through its own candidates, as if the match repeated.

    The evidence of a candidate is the length of the match that it continues, the candidates before it counted in.

    Shapes         out_tokens, out_parents, out_evidence int32 [B, T]; out_num_nodes, slots, roots, max_nodes int32 [B]
    max_per_match  int64 [max_match + 1]: most candidates after a match of each length
    Returns        the first row whose text does not end with its root (its tree is not written), -1 for none
    Cost           O(T) a row; allocates nothing
    """
    width = out_tokens.shape[1]
    for row in range(len(slots)):
        num_candidates = 0
        out_tokens[row, 0] = roots[row]
        out_parents[row, 0] = NO_PARENT
        out_evidence[row, 0] = 0
        if _is_used(cursors, slots[row]) and cursors[slots[row]].length > 0:
            cursor = cursors[slots[row]]
            if text[cursor.start + cursor.length - 1] != roots[row]:
                return row
            num_candidates = min(max_per_match[cursor.match], width - 1, max_nodes[row] - 1)
            source = cursor.after
            for node in range(1, num_candidates + 1):
                out_tokens[row, node] = text[cursor.start + source]
                out_parents[row, node] = node - 1
                out_evidence[row, node] = min(cursor.match + node - 1, NUM_CLASSES - 1)
                source += 1
                if source == cursor.length:
                    source = cursor.after
        out_num_nodes[row] = num_candidates + 1
        for node in range(num_candidates + 1, width):
            out_tokens[row, node] = 0
            out_parents[row, node] = NO_PARENT
            out_evidence[row, node] = 0
    return -1


@native()
def _is_used(cursors, slot):
    return 0 <= slot < len(cursors) and cursors[slot].capacity > 0


@native()
def _index_last(text, table, cursor, min_match, max_match, keeps_latest):
    """Find the longest n-gram that ends at the last token and occurs earlier, then enter each of them."""
    end = cursor.length
    num_entries = ENTRIES * cursor.capacity
    first_entry = cursor.start * ENTRIES * (max_match - min_match + 1)
    cursor.match = 0
    cursor.after = 0
    is_known = True
    ngram_hash = np.uint64(0)
    for n in range(1, min(max_match, end) + 1):
        token = np.uint64(np.uint32(text[cursor.start + end - n]))
        ngram_hash = (ngram_hash ^ (token + np.uint64(1))) * _MULTIPLIER
        ngram_hash ^= ngram_hash >> _HALF_BITS
        if n < min_match:
            continue
        entry = first_entry + np.int64(ngram_hash & np.uint64(num_entries - 1))
        last_entry = first_entry + num_entries - 1
        while table[entry] != 0:
            # An n-gram is new when its own end, the shorter one before, is: it only needs a free entry.
            if is_known and _are_equal(text, cursor.start + table[entry] - n, cursor.start + end - n, n):
                break
            entry = first_entry if entry == last_entry else entry + 1
        is_known = table[entry] != 0
        if is_known:
            cursor.match = n
            cursor.after = table[entry]
        if keeps_latest or not is_known:
            table[entry] = end
        first_entry += num_entries


@native()
def _are_equal(text, one, other, count):
    offset = 0
    while offset < count and text[one + offset] == text[other + offset]:
        offset += 1
    return offset == count
