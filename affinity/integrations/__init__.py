"""Plugs for the libraries with which people build agents: a module for each, and an extra of its name.

They are built on public names alone, and nothing else of the package imports them.
"""
