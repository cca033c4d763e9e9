"""A stand-in engine: to a client it looks like vLLM 0.32.0, and no model and no GPU are behind it."""
