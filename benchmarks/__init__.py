"""One script a question. Each prints a table and the machine's line, and asserts nothing."""
