"""The contracts as executable suites: of providers (`providers`) and of session stores (`stores`)."""
