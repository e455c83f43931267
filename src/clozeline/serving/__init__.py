"""The HTTP face of inference: several exported models behind one loopback port.

`server.run` opens the port and loads the models; `app.create_app` is the ASGI application alone.
Needs no torch and no transformers.
"""

from typing import Final

KEYS_VARIABLE: Final = "CLOZELINE_API_KEYS"
"""Environment variable with the API keys that are let in, parted by commas."""

DEFAULT_TIMEOUT_SECONDS: Final = 30.0
"""Of a request that does not say itself how long it may take."""

HEALTH_PATHS: Final = frozenset(
    {"/health", "/health/live", "/health/ready", "/ping", "/v2/health/live", "/v2/health/ready"}
)
"""Asked by machines, again and again, also while the server stops."""
