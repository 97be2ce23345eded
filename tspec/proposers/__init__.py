"""Whatever guesses tokens, one file a kind; each implements `tspec.core.proposer.Proposer`.

Knows no scheduler, no verify pass and no kernel. Imports from tspec: core, and of kernels only `kernels.jit`,
the decorator that compiles native functions (the one exception to the table of allowed imports).
"""
