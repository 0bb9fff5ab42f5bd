"""Random programs over all that an author can write, many concurrent instances, with faults drawn at random.

`python -m tests.programs --help` looks for defects; a program that fails is printed as text that repeats it.
"""
