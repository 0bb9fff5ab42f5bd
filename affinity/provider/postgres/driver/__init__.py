"""The wire: what the server is told and answers, on libpq alone, and the connections that do so."""
