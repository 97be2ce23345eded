"""Runs plans: memory and threads of the CPU backend, KV blocks, and the propose-verify-accept-commit loop.

Sees proposers through the protocol in `core` only.
"""
