"""Fixtures of the checkpoint tests."""

from support.head_cases import refusal

__all__ = ["refusal"]
