"""The page at `/`: one self-contained file, and a security policy that lets nothing else run in it."""

import base64
import hashlib
from importlib.resources import files


def page() -> str:
    """Return the HTML with its style and script inlined."""
    return _part("page.html").replace("/* style */", _part("style.css")).replace("/* script */", _part("script.js"))


def headers() -> dict[str, str]:
    """Return headers that allow only this style and this script, by their hashes, and requests to this server."""
    policy = (
        "default-src 'none'",
        f"style-src {_hash('style.css')}",
        f"script-src {_hash('script.js')}",
        "connect-src 'self'",
        "img-src data:",
        "frame-ancestors 'none'",
        "base-uri 'none'",
        "form-action 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
    return {"content-security-policy": "; ".join(policy)}


def _part(name: str) -> str:
    return files(__name__).joinpath(name).read_text(encoding="utf-8")


def _hash(name: str) -> str:
    digest = hashlib.sha256(_part(name).encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
