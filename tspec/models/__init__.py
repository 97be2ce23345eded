"""Graph builders, one small file a family: what a model computes, written plainly from its configuration.

Imports no torch, reads no weights, fuses nothing: the graph passes do that, the same way for every family.
"""

from tspec.models.build_graph import LAYERS, PASS_KINDS, build_graph, expected_tensors

__all__ = ["LAYERS", "PASS_KINDS", "build_graph", "expected_tensors"]
