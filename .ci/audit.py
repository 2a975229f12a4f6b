"""Compares what is installed with the public list of known weaknesses, by pip-audit and OSV.

Fails on a finding. Passes with a note where the list cannot be reached, or not in time: a check must not fail for want
of a network.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

# Findings that were looked at and do not concern us: identifier → why.
ACCEPTED: dict[str, str] = {}
COMMAND = [
    *(sys.executable, "-m", "pip_audit", "--local", "--skip-editable", "--vulnerability-service", "osv"),
    *("--progress-spinner", "off", "--timeout", "5", "--format", "json"),
]


def main(seconds: float) -> int:
    """The exit code; one line on standard output, or one for each finding."""
    try:
        done = subprocess.run(COMMAND, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        print(f"audit: not done within {seconds:g} s; `make audit` has more time")
        return 0
    try:
        audited: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        reason = done.stderr.strip().rpartition("\n")[2]
        print(f"audit: the list of known weaknesses cannot be reached ({reason[:200]})")
        return 0
    found = [line for package in audited for line in findings(package)]
    print("\n".join(found) or f"audit: no known weakness in {len(audited)} packages")
    return 1 if found else 0


def findings(package: dict[str, Any]) -> list[str]:
    """A line for each weakness of a package that is not accepted."""
    return [
        f"audit: {package['name']} {package.get('version')}: {one['id']}, mended in {', '.join(one['fix_versions'])}"
        for one in package.get("vulns", [])
        if not {one["id"], *one.get("aliases", [])} & set(ACCEPTED)
    ]


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1])))
