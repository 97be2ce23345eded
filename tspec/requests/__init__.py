"""Requests of people: prompts and parameters into the engine, pieces of text and results out of it."""
