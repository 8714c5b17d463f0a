"""numpy arrays and scalars as bytes. Only this module imports numpy, and only to read an array.

Supported are numbers, bools, fixed-width text and bytes, dates and time spans. Objects, records and long
doubles are rejected, because their bytes have no meaning on another machine.
"""

from __future__ import annotations

import math
import re
import struct
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, TypeGuard, cast

from keepstate.errors import InvalidError, MissingExtraError

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]
    Scalar = np.generic

_HEAD: Final = struct.Struct(">BB")
_DTYPE: Final = re.compile(r"[<>|](b1|[iu][1248]|f[248]|c(8|16)|[mM]8(\[\d*[a-zA-Z]+\])?|[SU][1-9]\d{0,8})")
_MOST_DIMENSIONS: Final = 64


def is_array(value: Any) -> TypeGuard[Array]:
    """Return whether the value is exactly a numpy array."""
    numpy: Any = sys.modules.get("numpy")
    return numpy is not None and type(value) is numpy.ndarray


def is_scalar(value: Any) -> TypeGuard[Scalar]:
    """Return whether the value is a supported numpy scalar (text and bytes would lose trailing zeros)."""
    numpy: Any = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, numpy.generic) or value.dtype.kind not in "biufcmM":
        return False
    return type(value) is numpy.dtype(value.dtype.str).type


def write(value: Array | Scalar) -> bytes:
    """Return dimensions, dtype, shape and elements as bytes.

    Raises:
        InvalidError: The dtype is not supported.
    """
    dtype: str = value.dtype.str
    if _DTYPE.fullmatch(dtype) is None:
        raise InvalidError(
            f"numpy dtype {value.dtype} does not come back; store a list, or an array of numbers"
        )
    shape: tuple[int, ...] = value.shape
    sizes = struct.pack(f">{len(shape)}Q", *shape)
    return _HEAD.pack(len(shape), len(dtype)) + dtype.encode() + sizes + value.tobytes()


def split(data: bytes) -> tuple[str, tuple[int, ...], bytes]:
    """Return dtype, shape and elements of written bytes, without numpy."""
    dimensions, length = _HEAD.unpack_from(data)
    at = _HEAD.size + length
    dtype = data[_HEAD.size : at].decode("ascii")
    shape = struct.unpack_from(f">{dimensions}Q", data, at)
    return dtype, shape, data[at + 8 * dimensions :]


def join(dtype: str, shape: Sequence[int], elements: bytes) -> bytes:
    """Return the bytes that `split` takes apart, without numpy.

    Raises:
        ValueError: There is no such array.
    """
    if _DTYPE.fullmatch(dtype) is None or len(shape) > _MOST_DIMENSIONS or type(elements) is not bytes:
        raise ValueError(f"no array was written with dtype {dtype[:40]!r} and {len(shape)} dimensions")
    width = int(re.findall(r"\d+", dtype)[0]) * (4 if dtype[1] == "U" else 1)
    if math.prod(shape) * width != len(elements):
        raise ValueError(f"an array of dtype {dtype} does not have {len(elements)} bytes")
    if dtype[1] == "b" and max(elements, default=0) > 1:
        raise ValueError("an array of truths holds other numbers")
    if dtype[1] == "U":
        elements.decode("utf-32-be" if dtype[0] == ">" else "utf-32-le", "surrogatepass")
    sizes = struct.pack(f">{len(shape)}Q", *shape)
    return _HEAD.pack(len(shape), len(dtype)) + dtype.encode() + sizes + elements


def read_array(data: bytes) -> Array:
    """Return the array, writable, in C order."""
    dtype, shape, elements = split(data)
    numpy = _numpy()
    if _DTYPE.fullmatch(dtype) is None or len(shape) > _MOST_DIMENSIONS:
        raise ValueError(f"no array was written with dtype {dtype!r} and {len(shape)} dimensions")
    kind = numpy.dtype(dtype)
    if math.prod(shape) * kind.itemsize != len(elements):
        raise ValueError(f"an array of shape {shape} and dtype {dtype} does not have {len(elements)} bytes")
    array: Array = numpy.ndarray(shape, kind, bytearray(elements))
    _check_elements(array)
    return array


def read_scalar(data: bytes) -> Scalar:
    """Return the scalar."""
    scalar: Any = read_array(data)[()]
    return cast("Scalar", scalar)


def _check_elements(array: Array) -> None:
    """Raise `ValueError` for invalid elements, which numpy itself does not check."""
    if not array.size or array.dtype.kind not in "bU":
        return
    if array.dtype.kind == "b":
        most, highest = 1, int(array.reshape(-1).view("u1").max())
    else:
        code_points = array.reshape(-1).view(array.dtype.byteorder.replace("|", "=") + "u4")
        most, highest = sys.maxunicode, int(code_points.max())
    if highest > most:
        raise ValueError(f"an array of kind {array.dtype.kind} holds {highest}")


def _numpy() -> Any:
    try:
        import numpy as np
    except ImportError as error:
        install = "pip install numpy"
        raise MissingExtraError(f"this value holds a numpy array; {install}", install=install) from error
    return np
