"""Chances of the suffix proposer's candidates, before anything is known of the texts that come."""
import numpy as np
_SHARES = np.array([0.12, 0.25, 0.45, 0.55, 0.75])
_MATCH = np.array([0.4, 0.7, 0.85, 0.95, 1.0, 1.1, 1.2])
SUFFIX_PRIORS = np.minimum(np.tile((_MATCH[:, None] * _SHARES).reshape(-1), 2), 0.98).astype(np.float32)
