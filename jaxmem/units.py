"""Byte counts as people write them: parsing and formatting.

Binary units (KiB, MiB, GiB, TiB) are powers of 1024, decimal units (kB, MB,
GB, TB) powers of 1000; case does not matter. A bare prefix ("24G") is refused,
because tools disagree on which of the two it means.
"""

import fractions
import math
import numbers
import re

# XLA counts bytes in signed 64-bit integers.
_MOST_BYTES = 2**63 - 1
_UNIT_BYTES = {
  "": 1,
  "b": 1,
  "kb": 10**3,
  "mb": 10**6,
  "gb": 10**9,
  "tb": 10**12,
  "kib": 2**10,
  "mib": 2**20,
  "gib": 2**30,
  "tib": 2**40,
}
# Characters of a wrong value that its error shows.
_MAX_SHOWN = 60
_BINARY_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_QUANTITY = re.compile(
  r"\s*(?P<number>[0-9]+(?:_[0-9]+)*(?:\.[0-9]*)?|\.[0-9]+)"
  r"\s*(?P<unit>%|[a-z]*)\s*",
  re.IGNORECASE,
)

ByteQuantity = int | float | str


def parse_bytes(
  value: ByteQuantity,
  *,
  total_bytes: int | None = None,
  name: str = "memory_limit",
) -> int:
  """Returns a number of bytes from what a user wrote.

  Args:
    value: An integer is bytes. A float in (0, 1] is a fraction of
      `total_bytes`; a larger float must be a whole number of bytes (`24e9`). A
      string is a number with a unit ("24GiB", "512 MB"), a plain number of
      bytes, or a percentage of `total_bytes` ("80%").
    total_bytes: What fractions and percentages are taken of, in bytes, usually
      the memory of the device. None if unknown.
    name: The option's name, for the error message.

  Returns:
    Bytes, at least 1 and less than 2**63, rounded down.

  Raises:
    ValueError: If `value` cannot be read, is out of range, or is a share of an
      unknown total; or if it has no unit and is no whole number.
  """
  if isinstance(value, str):
    num_bytes = _parse_text(value, total_bytes, name)
  elif isinstance(value, bool) or not isinstance(value, numbers.Real):
    raise _error(name, value)
  elif isinstance(value, numbers.Integral):
    num_bytes = int(value)
  else:
    try:
      number = float(value)
    except OverflowError:  # Such as a fraction of many digits.
      number = math.inf
    num_bytes = _parse_float(number, total_bytes, name)
  if num_bytes < 1:
    raise ValueError(
      f"{name} must be at least one byte, got {_shown(value)}; use e.g."
      " '24GiB'."
    )
  if num_bytes > _MOST_BYTES:
    raise ValueError(
      f"{name} must be less than 2**63 bytes, got {_shown(value)}; use e.g."
      " '24GiB'."
    )
  return num_bytes


def check_limit(written: ByteQuantity, *, name: str = "memory_limit") -> None:
  """Checks a limit that may be "auto", or a share of what is not known yet.

  Raises:
    ValueError: If it is malformed.
  """
  if written != "auto":
    parse_bytes(written, total_bytes=1 << 40, name=name)


def format_bytes(num_bytes: int | float) -> str:
  """Returns a byte count with three or four digits and a binary unit.

  Args:
    num_bytes: Bytes; may be negative, as a difference is.

  Returns:
    For example "512 B", "1.50 KiB", "24.0 GiB", "-135 MiB".
  """
  size = abs(float(num_bytes))
  exponent = 0
  # 1023.5 would print as "1024", which the next unit says in fewer digits.
  while size >= 1023.5 and exponent < len(_BINARY_UNITS) - 1:
    size /= 1024
    exponent += 1
  if exponent == 0 or size >= 99.95:
    decimals = 0
  elif size >= 9.995:
    decimals = 1
  else:
    decimals = 2
  sign = "-" if num_bytes < 0 else ""
  return f"{sign}{size:.{decimals}f} {_BINARY_UNITS[exponent]}"


def _parse_text(text: str, total_bytes: int | None, name: str) -> int:
  match = _QUANTITY.fullmatch(text)
  if match is None:
    raise _error(name, text)
  unit = match["unit"].lower()
  if unit == "%":
    fraction = float(match["number"]) / 100
    return _share(fraction, total_bytes, name, text)
  if unit not in _UNIT_BYTES:
    raise _error(name, text, f"unknown unit {match['unit']!r}")
  # Exact for as many digits as Python converts, which a float would not be.
  try:
    num_bytes = fractions.Fraction(match["number"]) * _UNIT_BYTES[unit]
  except ValueError:
    raise _error(name, text, "too many digits") from None
  if _UNIT_BYTES[unit] == 1 and not num_bytes.is_integer():
    raise _error(name, text, "not a whole number of bytes")
  return int(num_bytes)


def _parse_float(value: float, total_bytes: int | None, name: str) -> int:
  if 0 < value <= 1:
    return _share(value, total_bytes, name, value)
  if not math.isfinite(value) or not value.is_integer():
    raise _error(name, value)
  return int(value)


def _share(
  fraction: float,
  total_bytes: int | None,
  name: str,
  value: ByteQuantity,
) -> int:
  if total_bytes is None:
    raise ValueError(
      f"{name} must be a number of bytes here, got {_shown(value)}: the memory"
      " of the device is unknown, so a share of it is too; use e.g. '24GiB', or"
      " name a target."
    )
  if fraction > 1:
    raise ValueError(
      f"{name} must be at most 100% of the device, got {_shown(value)}; use "
      "e.g. '80%' or '24GiB'."
    )
  return int(fraction * total_bytes)


def _error(name: str, value: object, why: str = "") -> ValueError:
  reason = f" ({why})" if why else ""
  return ValueError(
    f"{name} must be a number of bytes, a size with a unit (B, kB, MB, GB, "
    f"TB, KiB, MiB, GiB, TiB) or a share of the device, got {_shown(value)}"
    f"{reason}; use e.g. '24GiB', '512MB' or '80%'."
  )


def _shown(value: object) -> str:
  """Returns a value as errors show it: in one line, and cut short."""
  try:
    text = repr(value)
  except ValueError:  # Python prints no integer of thousands of digits.
    text = "a number of thousands of digits"
  return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
