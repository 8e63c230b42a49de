"""Factorizations of matrices, and triangular solves: their operations.

Libraries compute them: LAPACK on CPUs, cuSOLVER and cuBLAS on GPUs. The counts
are the leading terms for m by n matrices, in m n min(m, n) (Golub and Van Loan,
Matrix Computations); iterations are taken to converge as they mostly do.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

# By the names of jax's primitives.
_FACTORS = {
  "cholesky": 1 / 3,
  "eig": 25.0,
  "eigh": 9.0,
  "geqp3": 2.0,
  "geqrf": 2.0,
  "hessenberg": 10 / 3,
  "householder_product": 2.0,
  "lu": 2 / 3,
  "qr": 4.0,
  "schur": 25.0,
  "svd": 20.0,
  "tridiagonal": 4 / 3,
}
_TRIANGULAR_SOLVE = "triangular_solve"
FACTORIZATIONS = frozenset({*_FACTORS, _TRIANGULAR_SOLVE})
# What the names of library functions have in them, and an opcode of XLA's.
_ROUTINES = {
  "geev": "eig",
  "gees": "schur",
  "gehrd": "hessenberg",
  "geqp3": "geqp3",
  "geqrf": "geqrf",
  "gesdd": "svd",
  "gesvd": "svd",
  "getrf": "lu",
  "heevd": "eigh",
  "hetrd": "tridiagonal",
  "orgqr": "householder_product",
  "potrf": "cholesky",
  "syevd": "eigh",
  "sytrd": "tridiagonal",
  "triangular-solve": _TRIANGULAR_SOLVE,
  "triangularSolve": _TRIANGULAR_SOLVE,
  "trsm": _TRIANGULAR_SOLVE,
  "ungqr": "householder_product",
}
_ROUTINE = re.compile("|".join(_ROUTINES))


def factorization_flops(
  name: str, shapes: Sequence[Sequence[int]]
) -> float | None:
  """Returns the flops of a factorization or a triangular solve.

  Args:
    name: Of a primitive of jax, an opcode of XLA's, or a library function.
    shapes: Of its operands.

  Returns:
    None if it is none, or its operands are no matrices.
  """
  found = _ROUTINE.search(name)
  name = _ROUTINES[found.group()] if found else name
  if not shapes or len(shapes[0]) < 2:
    return None
  *_, rows, columns = shapes[0]
  if name == _TRIANGULAR_SOLVE and len(shapes) > 1:
    return float(math.prod(shapes[1]) * columns)
  if name not in _FACTORS:
    return None
  return _FACTORS[name] * math.prod(shapes[0]) * min(rows, columns)
