"""The `letterwise-service` command, where the service's own packages may be missing: the client alone installs it too.

Knows nothing of what the command does.
"""

from __future__ import annotations

import sys


def main() -> int:
    """The command's exit code."""
    try:
        from .cli import main as command
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] in ("letterwise", "letterwise_service"):
            raise
        print(
            f"letterwise-service: the service is not installed here ({missing.name} is missing): "
            "pip install 'letterwise[service]', or '.[service]' in a checkout",
            file=sys.stderr,
        )
        return 1
    return command()
