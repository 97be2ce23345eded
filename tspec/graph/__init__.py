"""The compiler: a graph of ops, graph passes that fuse it, memory planning, and lowering to a plan.

In order of reading: `ir`, `signature`, `ops`, `builder`, `show`, `check`, `rewrite`, `passes`, `memory`,
`plan`, `lower`, `roofline`. Imports no torch and touches no weights, so all of it runs in milliseconds.
"""
