"""Measures the machine at hand, and finds the fastest exact configuration of a checkpoint for it."""
