"""``affinity init``: projects to begin with.

============  ==============================================================================
project       the files of a project, from `templates`
command       the command
templates     a folder for each template, and the files that all projects have
============  ==============================================================================
"""
