"""A plugin of pytest that plans every compile of the tests that run.

    python -m pytest -p benchmarks.conformance_plugin tests/api_test.py

Every program is planned, however small, and whatever that saves. The variable
CONFORMANCE_RECORDS names a file that is told what became of each compile.
"""

import dataclasses
import json
import os
import pathlib

import jaxmem

_enabled = jaxmem.enable(min_bytes=0, options=jaxmem.Options(min_gain=0.0))


def pytest_unconfigure() -> None:
  """Writes the records, once all tests ran."""
  path = os.environ.get("CONFORMANCE_RECORDS")
  if path is not None:
    records = [dataclasses.asdict(record) for record in _enabled.records]
    pathlib.Path(path).write_text(json.dumps(records), encoding="utf-8")
