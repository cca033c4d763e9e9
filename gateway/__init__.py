"""Gatehouse's gateway: who may use the engine, how much, and the streaming path to it."""

__version__ = "0.1.0"
