"""How often candidates of lookup proposers are right, by what speaks for them, before anything is known of a text.

Measured by benchmarks/lookup_priors.py on 363 greedy answers of SmolLM2-135M-Instruct (55,000 tokens) to prompts of
many kinds of up to 256 tokens, none of them of Spec-Bench; rounded, and made to rise with the match.
"""

import numpy as np

SUFFIX_PRIORS = np.array(
    # Share of what followed the match: below 1/4, 1/2, 9/10; above, once; above, more often.
    [
        # in the request's own text, after a match of 1, 2, 3, 4, 5-6, 7-9, 10 tokens
        *(0.07, 0.16, 0.25, 0.33, 0.66),
        *(0.06, 0.17, 0.31, 0.56, 0.77),
        *(0.06, 0.18, 0.31, 0.67, 0.83),
        *(0.06, 0.19, 0.32, 0.71, 0.87),
        *(0.06, 0.19, 0.33, 0.77, 0.89),
        *(0.06, 0.20, 0.37, 0.84, 0.95),
        *(0.06, 0.28, 0.55, 0.92, 0.99),
        # in earlier responses
        *(0.06, 0.12, 0.15, 0.14, 0.22),
        *(0.06, 0.11, 0.21, 0.18, 0.38),
        *(0.07, 0.12, 0.19, 0.25, 0.50),
        *(0.07, 0.13, 0.21, 0.28, 0.61),
        *(0.07, 0.17, 0.26, 0.35, 0.65),
        *(0.08, 0.20, 0.29, 0.40, 0.79),
        *(0.10, 0.20, 0.34, 0.44, 0.88),
    ],
    dtype=np.float32,
)
"""float32 [70], see `class_of` in suffix_growth.py."""

NGRAM_PRIORS = np.array(
    # The match and the candidates before: 0 (none), 1, … 15 tokens and more.
    [0.0, 0.28, 0.53, 0.65, 0.69, 0.76, 0.86, 0.90, 0.92, 0.93, 0.95, 0.96, 0.97, 0.97, 0.98, 0.98],
    dtype=np.float32,
)
