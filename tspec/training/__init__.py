"""Training of proposers for any target: texts of the target's own, a head that learns from them, a checkpoint."""
