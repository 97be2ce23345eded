"""Plain data that every other package shares: errors, configuration, parameters, candidate trees.

Imports the standard library and numpy only.
"""
