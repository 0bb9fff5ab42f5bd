"""Races on purpose: one operation is held at each of its calls of the database while another one runs.

``python -m tests.races --help`` runs all ordered pairs of operations; `driver` says how, `operations` which.
"""
