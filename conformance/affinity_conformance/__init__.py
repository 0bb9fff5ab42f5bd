"""The contracts as executable suites: of providers (`providers`) and of session stores (`stores`).

They need the extra `conformance`, which is pytest.
"""

try:
    import pytest  # noqa: F401
except ModuleNotFoundError:
    raise ModuleNotFoundError(
        "the conformance suites need pytest: pip install 'affinity-workflows[conformance]'", name="pytest"
    ) from None
