"""Codes that the host and the kernels of sampling agree on."""

NO_TOKEN = -1
"""Stands for a token where there is none: no logit was a number above minus infinity."""

EDIT_BIAS, EDIT_PENALTIES, EDIT_MASK = 1, 2, 4
"""Bits of a request's `edits`: which of its tables the logits go through."""
