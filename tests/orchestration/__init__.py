"""Tests of authoring and replay: no store, no loop, no clock; histories are built by hand or by running."""
