"""Agents of three libraries on a small language model in the process of the worker."""
