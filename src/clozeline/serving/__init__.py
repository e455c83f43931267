"""HTTP server for exported models: several models behind one port, on the loopback by default.

`server.run` opens the port and loads the models; `app.create_app` is the ASGI application alone.
Needs neither torch nor transformers.
"""

from typing import Final

KEYS_VARIABLE: Final = "CLOZELINE_API_KEYS"
"""Environment variable with the accepted API keys, separated by commas."""

DEFAULT_TIMEOUT_SECONDS: Final = 30.0
"""Timeout of a request that sets none itself."""

HEALTH_PATHS: Final = frozenset(
    {"/health", "/health/live", "/health/ready", "/ping", "/v2/health/live", "/v2/health/ready"}
)
"""Paths that probes poll, also while the server stops."""
