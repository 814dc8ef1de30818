"""Methods and operators of tensors. Written by tools/generate_stubs.py; do not edit."""

from builtins import bool as _bool
from builtins import float as _float
from builtins import int as _int
from typing import Any

from numpy.typing import ArrayLike

from .tensor import Tensor

Operand = Tensor | ArrayLike

class TensorMethods:
    @property
    def H(self) -> Tensor:
        """The conjugate transpose of a matrix."""
    @property
    def T(self) -> Tensor:
        """All dims in reverse order."""
    def __abs__(self) -> Tensor: ...
    def __add__(self, other: Operand) -> Tensor: ...
    def __and__(self, other: Operand) -> Tensor: ...
    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any: ...
    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any: ...
    def __contains__(self, value: Operand) -> _bool: ...
    def __divmod__(self, other: Operand) -> tuple[Tensor, Tensor]: ...
    def __eq__(self, other: Operand) -> Tensor: ...  # type: ignore[override]
    def __floordiv__(self, other: Operand) -> Tensor: ...
    def __ge__(self, other: Operand) -> Tensor: ...
    def __getitem__(self, index: Any) -> Tensor: ...
    def __gt__(self, other: Operand) -> Tensor: ...
    def __iadd__(self, other: Operand) -> Tensor: ...
    def __ifloordiv__(self, other: Operand) -> Tensor: ...
    def __imod__(self, other: Operand) -> Tensor: ...
    def __imul__(self, other: Operand) -> Tensor: ...
    def __invert__(self) -> Tensor: ...
    def __ipow__(self, other: Operand) -> Tensor: ...
    def __isub__(self, other: Operand) -> Tensor: ...
    def __itruediv__(self, other: Operand) -> Tensor: ...
    def __le__(self, other: Operand) -> Tensor: ...
    def __lshift__(self, other: Operand) -> Tensor: ...
    def __lt__(self, other: Operand) -> Tensor: ...
    def __matmul__(self, other: Operand) -> Tensor: ...
    def __mod__(self, other: Operand) -> Tensor: ...
    def __mul__(self, other: Operand) -> Tensor: ...
    def __ne__(self, other: Operand) -> Tensor: ...  # type: ignore[override]
    def __neg__(self) -> Tensor: ...
    def __or__(self, other: Operand) -> Tensor: ...
    def __pos__(self) -> Tensor: ...
    def __pow__(self, other: Operand) -> Tensor: ...
    def __radd__(self, other: Operand) -> Tensor: ...
    def __rand__(self, other: Operand) -> Tensor: ...
    def __rdivmod__(self, other: Operand) -> tuple[Tensor, Tensor]: ...
    def __rfloordiv__(self, other: Operand) -> Tensor: ...
    def __rlshift__(self, other: Operand) -> Tensor: ...
    def __rmatmul__(self, other: Operand) -> Tensor: ...
    def __rmod__(self, other: Operand) -> Tensor: ...
    def __rmul__(self, other: Operand) -> Tensor: ...
    def __ror__(self, other: Operand) -> Tensor: ...
    def __rpow__(self, other: Operand) -> Tensor: ...
    def __rrshift__(self, other: Operand) -> Tensor: ...
    def __rshift__(self, other: Operand) -> Tensor: ...
    def __rsub__(self, other: Operand) -> Tensor: ...
    def __rtruediv__(self, other: Operand) -> Tensor: ...
    def __rxor__(self, other: Operand) -> Tensor: ...
    def __setitem__(self, index: Any, value: Operand) -> None: ...
    def __sub__(self, other: Operand) -> Tensor: ...
    def __truediv__(self, other: Operand) -> Tensor: ...
    def __xor__(self, other: Operand) -> Tensor: ...
    def abs(self) -> Tensor:
        """|x|; its derivative at 0 is 0."""
    def abs_(self) -> Tensor:
        """|x|; its derivative at 0 is 0. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another ..."""
    def absolute(self) -> Tensor:
        """|x|; its derivative at 0 is 0."""
    def absolute_(self) -> Tensor:
        """|x|; its derivative at 0 is 0. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another ..."""
    def acos(self) -> Tensor:
        """Arccosine."""
    def acos_(self) -> Tensor:
        """Arccosine. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another shape, or of a kind that ..."""
    def acosh(self) -> Tensor:
        """Inverse hyperbolic cosine."""
    def acosh_(self) -> Tensor:
        """Inverse hyperbolic cosine. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another shape, or ..."""
    def add(self, other: Operand, *, alpha: _float = ...) -> Tensor:
        """x + y."""
    def add_(self, other: Operand, *, alpha: _float = ...) -> Tensor:
        """x + y. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another shape, or of a kind that the ..."""
    def addbmm(self, batch1: Any, batch2: Any, *, beta: _int = ..., alpha: _float = ...) -> Tensor:
        """``beta * input + alpha * (batch1 @ batch2).sum(0)``."""
    def addbmm_(self, batch1: Any, batch2: Any, *, beta: _int = ..., alpha: _float = ...) -> Tensor:
        """``addbmm``, written into the tensor."""
    def addcdiv(self, tensor1: Operand, tensor2: Operand, *, value: _int = ...) -> Tensor:
        """x + value * y / z."""
    def addcdiv_(self, tensor1: Operand, tensor2: Operand, *, value: _int = ...) -> Tensor:
        """x + value * y / z. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another shape, or of a ..."""
    def addcmul(self, tensor1: Operand, tensor2: Operand, *, value: _int = ...) -> Tensor:
        """x + value * y * z."""
    def addcmul_(self, tensor1: Operand, tensor2: Operand, *, value: _int = ...) -> Tensor:
        """x + value * y * z. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another shape, or of a ..."""
    def addmm(self, mat1: Operand, mat2: Operand, *, beta: _int = ..., alpha: _float = ...) -> Tensor:
        """beta * x + alpha * (y @ z)."""
    def addmm_(self, mat1: Operand, mat2: Operand, *, beta: _int = ..., alpha: _float = ...) -> Tensor:
        """beta * x + alpha * (y @ z). In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another shape, ..."""
    def addmv(self, mat: Any, vec: Any, *, beta: _int = ..., alpha: _float = ...) -> Tensor:
        """``beta * input + alpha * (mat @ vec)``, of a matrix and a vector."""
    def addmv_(self, mat: Any, vec: Any, *, beta: _int = ..., alpha: _float = ...) -> Tensor:
        """``addmv``, written into the tensor."""
    def addr(self, vec1: Any, vec2: Any, *, beta: _int = ..., alpha: _float = ...) -> Tensor:
        """``beta * input + alpha * outer(vec1, vec2)``."""
    def addr_(self, vec1: Any, vec2: Any, *, beta: _int = ..., alpha: _float = ...) -> Tensor:
        """``addr``, written into the tensor."""
    def all(self, dim: Any = ..., keepdim: _bool = ...) -> Tensor:
        """Logical and over ``dim``."""
    def allclose(self, other: Operand, rtol: _float = ..., atol: _float = ..., equal_nan: _bool = ...) -> _bool:
        """Whether all elements agree within ``atol + rtol * |other|``."""
    def amax(self, dim: Any = ..., keepdim: _bool = ...) -> Tensor:
        """maximum over ``dim``, 0 above -0; NaN wins; ties share the derivative evenly; over nothing, the least (greatest) number."""
    def amin(self, dim: Any = ..., keepdim: _bool = ...) -> Tensor:
        """minimum over ``dim``, 0 above -0; NaN wins; ties share the derivative evenly; over nothing, the least (greatest) number."""
    def aminmax(self, *, dim: Any = ..., keepdim: _bool = ...) -> tuple[Tensor, ...]:
        """``amin`` and ``amax``."""
    def any(self, dim: Any = ..., keepdim: _bool = ...) -> Tensor:
        """Logical or over ``dim``."""
    def arccos(self) -> Tensor:
        """Arccosine."""
    def arccos_(self) -> Tensor:
        """Arccosine. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another shape, or of a kind that ..."""
    def arccosh(self) -> Tensor:
        """Inverse hyperbolic cosine."""
    def arccosh_(self) -> Tensor:
        """Inverse hyperbolic cosine. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another shape, or ..."""
    def arcsin(self) -> Tensor:
        """Arcsine."""
    def arcsin_(self) -> Tensor:
        """Arcsine. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another shape, or of a kind that ..."""
    def arcsinh(self) -> Tensor:
        """Inverse hyperbolic sine."""
    def arcsinh_(self) -> Tensor:
        """Inverse hyperbolic sine. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another shape, or ..."""
    def arctan(self) -> Tensor:
        """Arctangent."""
    def arctan2(self, other: Operand) -> Tensor:
        """Angle of the point (x, y)."""
    def arctan2_(self, other: Operand) -> Tensor:
        """Angle of the point (x, y). In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another shape, or ..."""
    def arctan_(self) -> Tensor:
        """Arctangent. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another shape, or of a kind that ..."""
    def arctanh(self) -> Tensor:
        """Inverse hyperbolic tangent."""
    def arctanh_(self) -> Tensor:
        """Inverse hyperbolic tangent. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another shape, ..."""
    def argmax(self, dim: Any = ..., keepdim: _bool = ...) -> Tensor:
        """Index of the first extremum along ``dim``; the first NaN wins."""
    def argmin(self, dim: Any = ..., keepdim: _bool = ...) -> Tensor:
        """Index of the first extremum along ``dim``; the first NaN wins."""
    def argsort(self, dim: Any = ..., descending: _bool = ..., stable: _bool = ...) -> Tensor:
        """Places of the elements along ``dim`` in order, equal ones as they stand; NaN counts as the largest."""
    def argwhere(self) -> Tensor:
        """Places of the elements that are not 0, a row each."""
    def asin(self) -> Tensor:
        """Arcsine."""
    def asin_(self) -> Tensor:
        """Arcsine. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another shape, or of a kind that ..."""
    def asinh(self) -> Tensor:
        """Inverse hyperbolic sine."""
    def asinh_(self) -> Tensor:
        """Inverse hyperbolic sine. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another shape, or ..."""
    def astype(self, dtype: Any) -> Tensor:
        """The tensor in another dtype, in the same shape and memory order: itself where it has that dtype already."""
    @property
    def at(self) -> Any:
        """``x.at[i].set(v)`` and its kin: updated copies."""
    def atan(self) -> Tensor:
        """Arctangent."""
    def atan2(self, other: Operand) -> Tensor:
        """Angle of the point (x, y)."""
    def atan2_(self, other: Operand) -> Tensor:
        """Angle of the point (x, y). In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another shape, or ..."""
    def atan_(self) -> Tensor:
        """Arctangent. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another shape, or of a kind that ..."""
    def atanh(self) -> Tensor:
        """Inverse hyperbolic tangent."""
    def atanh_(self) -> Tensor:
        """Inverse hyperbolic tangent. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another shape, ..."""
    def baddbmm(self, batch1: Operand, batch2: Operand, *, beta: _int = ..., alpha: _float = ...) -> Tensor:
        """beta * x + alpha * (y @ z)."""
    def baddbmm_(self, batch1: Operand, batch2: Operand, *, beta: _int = ..., alpha: _float = ...) -> Tensor:
        """beta * x + alpha * (y @ z). In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another shape, ..."""
    def bernoulli(self, p: Any = ..., *, generator: Any = ...) -> Tensor:
        """1 with the probability that each element is (or with ``p``, in the shape of ``input``), else 0."""
    def bernoulli_(self, p: _float = ..., *, generator: Any = ...) -> Tensor:
        """Every element becomes 1 with probability ``p`` (a number, or a tensor with that of each), else 0. In place."""
    def bfloat16(self, memory_format: Any = ...) -> Tensor:
        """The tensor as bfloat16, in the same shape, and the same memory order where ``memory_format`` says nothing else: itself where it is so already. ..."""
    def bincount(self, weights: Any = ..., minlength: _int = ...) -> Tensor:
        """How often each whole number from 0 stands in a vector, or the sum of its weights."""
    def bitwise_and(self, other: Operand) -> Tensor:
        """Bitwise and of integers or bools."""
    def bitwise_and_(self, other: Operand) -> Tensor:
        """Bitwise and of integers or bools. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another ..."""
    def bitwise_left_shift(self, other: Operand) -> Tensor:
        """Bits of x moved left by y places."""
    def bitwise_left_shift_(self, other: Operand) -> Tensor:
        """Bits of x moved left by y places. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another ..."""
    def bitwise_not(self) -> Tensor:
        """Every bit of an integer turned; not of bools."""
    def bitwise_not_(self) -> Tensor:
        """Every bit of an integer turned; not of bools. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result ..."""
    def bitwise_or(self, other: Operand) -> Tensor:
        """Bitwise or of integers or bools."""
    def bitwise_or_(self, other: Operand) -> Tensor:
        """Bitwise or of integers or bools. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another ..."""
    def bitwise_right_shift(self, other: Operand) -> Tensor:
        """Bits of x moved right by y places."""
    def bitwise_right_shift_(self, other: Operand) -> Tensor:
        """Bits of x moved right by y places. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another ..."""
    def bitwise_xor(self, other: Operand) -> Tensor:
        """Bitwise xor of integers or bools."""
    def bitwise_xor_(self, other: Operand) -> Tensor:
        """Bitwise xor of integers or bools. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another ..."""
    def bmm(self, other: Operand) -> Tensor:
        """Batched matrix product."""
    def bool(self, memory_format: Any = ...) -> Tensor:
        """The tensor as bool, in the same shape, and the same memory order where ``memory_format`` says nothing else: itself where it is so already. Floats ..."""
    def broadcast_to(self, *sizes: Any) -> Tensor:
        """x broadcast to a shape (torch's expand)."""
    def byte(self, memory_format: Any = ...) -> Tensor:
        """The tensor as uint8, in the same shape, and the same memory order where ``memory_format`` says nothing else: itself where it is so already. Floats ..."""
    def cbrt(self) -> Tensor:
        """Real cube root; its derivative at 0 is inf when nothing masks it."""
    def cbrt_(self) -> Tensor:
        """Real cube root; its derivative at 0 is inf when nothing masks it. In place: the result is written into the tensor, which is returned. Shape and ..."""
    def cdouble(self, memory_format: Any = ...) -> Tensor:
        """The tensor as complex128, in the same shape, and the same memory order where ``memory_format`` says nothing else: itself where it is so already. ..."""
    def ceil(self) -> Tensor:
        """Smallest integer not below x."""
    def ceil_(self) -> Tensor:
        """Smallest integer not below x. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another shape, ..."""
    def cfloat(self, memory_format: Any = ...) -> Tensor:
        """The tensor as complex64, in the same shape, and the same memory order where ``memory_format`` says nothing else: itself where it is so already. ..."""
    def char(self, memory_format: Any = ...) -> Tensor:
        """The tensor as int8, in the same shape, and the same memory order where ``memory_format`` says nothing else: itself where it is so already. Floats ..."""
    def chunk(self, chunks: Any, dim: Any = ...) -> tuple[Tensor, ...]:
        """About equal pieces along ``dim``."""
    def clamp(self, min: Operand | None = ..., max: Operand | None = ...) -> Tensor:
        """x limited to [min, max]; either may be absent."""
    def clamp_(self, min: Operand | None = ..., max: Operand | None = ...) -> Tensor:
        """x limited to [min, max]; either may be absent. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result ..."""
    def clamp_max(self, max: Operand) -> Tensor:
        """The smaller of x and ``max``, a number or an array."""
    def clamp_max_(self, max: Operand) -> Tensor:
        """The smaller of x and ``max``, a number or an array. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a ..."""
    def clamp_min(self, min: Operand) -> Tensor:
        """The larger of x and ``min``, a number or an array."""
    def clamp_min_(self, min: Operand) -> Tensor:
        """The larger of x and ``min``, a number or an array. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a ..."""
    def clip(self, min: Operand | None = ..., max: Operand | None = ...) -> Tensor:
        """x limited to [min, max]; either may be absent."""
    def clip_(self, min: Operand | None = ..., max: Operand | None = ...) -> Tensor:
        """x limited to [min, max]; either may be absent. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result ..."""
    def clone(self, *, memory_format: Any = ...) -> Tensor:
        """A copy, recorded."""
    def conj(self) -> Tensor:
        """The complex conjugate: of what is not complex, the tensor itself."""
    def contiguous(self, memory_format: Any = ...) -> Tensor:
        """The tensor with its elements dense in ``memory_format``: itself if they are, else a copy."""
    def copy_(self, src: Operand, non_blocking: _bool = ...) -> Tensor:
        """Takes the values of ``src``, broadcast and converted. In place."""
    def copysign(self, other: Operand) -> Tensor:
        """The size of ``input`` with the sign of ``other`` (a tensor or a number; of -0.0 too). Integers become floats; the derivative is 0 at 0, and in ..."""
    def copysign_(self, *args: Any, **kwargs: Any) -> Tensor:
        """``copysign``, written into the tensor."""
    def corrcoef(self) -> Tensor:
        """Correlations of variables in rows: ``cov`` over both standard deviations, within [-1, 1]."""
    def cos(self) -> Tensor:
        """Cosine, for arguments of any size."""
    def cos_(self) -> Tensor:
        """Cosine, for arguments of any size. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another ..."""
    def cosh(self) -> Tensor:
        """Hyperbolic cosine."""
    def cosh_(self) -> Tensor:
        """Hyperbolic cosine. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another shape, or of a ..."""
    def count_nonzero(self, dim: Any = ...) -> Tensor:
        """How many elements are not 0."""
    def cov(self, *, correction: _int = ..., fweights: Any = ..., aweights: Any = ...) -> Tensor:
        """Covariances of variables in rows, observations in columns: (n, n), a number for a vector. ``fweights``: how often each observation was made, whole ..."""
    def cpu(self) -> Tensor:
        """The tensor itself: the CPU is all there is."""
    def cross(self, other: Operand, dim: Any = ...) -> Tensor:
        """Vector product along ``dim`` of size 3."""
    def cumprod(self, dim: Any = ..., *, dtype: Any = ...) -> Tensor:
        """Running product along ``dim``: the element itself is in it."""
    def cumprod_(self, dim: Any = ..., *, dtype: Any = ...) -> Tensor:
        """Running product along ``dim``: the element itself is in it. In place: the result is written into the tensor, which is returned. Shape and dtype ..."""
    def cumsum(self, dim: Any = ..., *, dtype: Any = ...) -> Tensor:
        """Running sum along ``dim``: the element itself is in it."""
    def cumsum_(self, dim: Any = ..., *, dtype: Any = ...) -> Tensor:
        """Running sum along ``dim``: the element itself is in it. In place: the result is written into the tensor, which is returned. Shape and dtype stay: ..."""
    def deg2rad(self) -> Tensor:
        """Degrees as radians."""
    def deg2rad_(self) -> Tensor:
        """Degrees as radians. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another shape, or of a ..."""
    def diag(self, diagonal: _int = ...) -> Tensor:
        """The diagonal of a matrix, or the matrix of a diagonal."""
    def diag_embed(self, offset: _int = ...) -> Tensor:
        """A matrix with x on its diagonal."""
    def diagflat(self, offset: _int = ...) -> Tensor:
        """The matrix with the elements of ``input`` on a diagonal."""
    def diagonal(self, offset: _int = ..., dim1: _int = ..., dim2: _int = ...) -> Tensor:
        """The diagonal of two dims, as the last dim."""
    def diagonal_scatter(self, src: Operand, offset: _int = ..., dim1: _int = ..., dim2: _int = ...) -> Tensor:
        """``input`` with ``src`` in the place of its diagonal."""
    def diff(self, n: _int = ..., dim: Any = ...) -> Tensor:
        """Differences of neighbours along ``dim``, ``n`` times."""
    def digamma(self) -> Tensor:
        """Derivative of lgamma; NaN at whole numbers below 0."""
    def digamma_(self) -> Tensor:
        """Derivative of lgamma; NaN at whole numbers below 0. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a ..."""
    def dist(self, other: Operand, p: _int = ...) -> Tensor:
        """The ``p`` norm of ``input - other``."""
    def div(self, other: Operand, *, rounding_mode: Any = ...) -> Tensor:
        """x / y (true division of floats); ``rounding_mode``: 'trunc' or 'floor'."""
    def div_(self, other: Operand, *, rounding_mode: Any = ...) -> Tensor:
        """x / y (true division of floats); ``rounding_mode``: 'trunc' or 'floor'. In place: the result is written into the tensor, which is returned. Shape ..."""
    def divide(self, other: Operand, *, rounding_mode: Any = ...) -> Tensor:
        """x / y (true division of floats); ``rounding_mode``: 'trunc' or 'floor'."""
    def divide_(self, other: Operand, *, rounding_mode: Any = ...) -> Tensor:
        """x / y (true division of floats); ``rounding_mode``: 'trunc' or 'floor'. In place: the result is written into the tensor, which is returned. Shape ..."""
    def dot(self, other: Operand) -> Tensor:
        """Inner product of two vectors (as a NumPy function: NumPy's dot)."""
    def double(self, memory_format: Any = ...) -> Tensor:
        """The tensor as float64, in the same shape, and the same memory order where ``memory_format`` says nothing else: itself where it is so already. ..."""
    def dsplit(self, indices_or_sections: Any) -> tuple[Tensor, ...]:
        """``tensor_split`` along dim 2, in equal parts where a number says how many."""
    def eq(self, other: Operand) -> Tensor:
        """x == y, elementwise."""
    def eq_(self, other: Operand) -> Tensor:
        """x == y, elementwise. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another shape, or of a ..."""
    def equal(self, other: Operand) -> _bool:
        """Whether shapes and all elements are equal."""
    def erf(self) -> Tensor:
        """Error function."""
    def erf_(self) -> Tensor:
        """Error function. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another shape, or of a kind ..."""
    def erfc(self) -> Tensor:
        """Complementary error function."""
    def erfc_(self) -> Tensor:
        """Complementary error function. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another shape, ..."""
    def erfinv(self) -> Tensor:
        """The x of which erf(x) is given; inf at 1."""
    def erfinv_(self) -> Tensor:
        """The x of which erf(x) is given; inf at 1. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of ..."""
    def exp(self) -> Tensor:
        """e ** x."""
    def exp2(self) -> Tensor:
        """2 ** x."""
    def exp2_(self) -> Tensor:
        """2 ** x. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another shape, or of a kind that the ..."""
    def exp_(self) -> Tensor:
        """e ** x. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another shape, or of a kind that the ..."""
    def expand(self, *sizes: Any) -> Tensor:
        """x broadcast to a shape (torch's expand)."""
    def expand_as(self, other: Operand) -> Tensor:
        """The tensor broadcast to the shape of ``other``, as ``expand(other.shape)``: a view; ``RuntimeError`` where it does not broadcast."""
    def expit(self) -> Tensor:
        """1 / (1 + e ** -x)."""
    def expit_(self) -> Tensor:
        """1 / (1 + e ** -x). In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another shape, or of a ..."""
    def expm1(self) -> Tensor:
        """e ** x - 1, right for small x."""
    def expm1_(self) -> Tensor:
        """e ** x - 1, right for small x. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another ..."""
    def exponential_(self, lambd: _float = ..., *, generator: Any = ...) -> Tensor:
        """Every element becomes exponential with rate ``lambd``. In place."""
    def fill_(self, value: Operand) -> Tensor:
        """Every element becomes ``value`` (a number or 0-d tensor). In place."""
    def fill_diagonal_(self, fill_value: Any, wrap: _bool = ...) -> Tensor:
        """``fill_value`` on the main diagonal, in place. ``wrap``: of a matrix with more rows than columns it begins again a row below its end."""
    def fix(self) -> Tensor:
        """x rounded towards zero."""
    def fix_(self) -> Tensor:
        """x rounded towards zero. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another shape, or of ..."""
    def flatten(self, start_dim: _int = ..., end_dim: _int = ...) -> Tensor:
        """Dims start_dim to end_dim as one."""
    def flip(self, dims: Any) -> Tensor:
        """Elements in reverse order along ``dims``."""
    def fliplr(self) -> Tensor:
        """Columns in reverse order."""
    def flipud(self) -> Tensor:
        """Rows in reverse order."""
    def float(self, memory_format: Any = ...) -> Tensor:
        """The tensor as float32, in the same shape, and the same memory order where ``memory_format`` says nothing else: itself where it is so already. ..."""
    def float_power(self, exponent: Any) -> Tensor:
        """``input ** exponent``, in float64."""
    def float_power_(self, exponent: Any) -> Tensor:
        """``float_power``, written into the tensor."""
    def floor(self) -> Tensor:
        """Largest integer not above x."""
    def floor_(self) -> Tensor:
        """Largest integer not above x. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another shape, ..."""
    def floor_divide(self, other: Operand) -> Tensor:
        """The largest integer not above x / y. Integers divided by 0 are an error in tensors, 0 in NumPy."""
    def floor_divide_(self, other: Operand) -> Tensor:
        """The largest integer not above x / y. Integers divided by 0 are an error in tensors, 0 in NumPy. In place: the result is written into the tensor, ..."""
    def fmax(self, other: Operand) -> Tensor:
        """The maximum of x and y; a number wins over NaN."""
    def fmin(self, other: Operand) -> Tensor:
        """The minimum of x and y; a number wins over NaN."""
    def fmod(self, other: Operand) -> Tensor:
        """x - trunc(x / y) * y: the sign is x's, as in C. Integers divided by 0 are an error in tensors, 0 in NumPy."""
    def fmod_(self, other: Operand) -> Tensor:
        """x - trunc(x / y) * y: the sign is x's, as in C. Integers divided by 0 are an error in tensors, 0 in NumPy. In place: the result is written into ..."""
    def frac(self) -> Tensor:
        """What is behind the point, with the sign of x."""
    def frac_(self) -> Tensor:
        """What is behind the point, with the sign of x. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result ..."""
    def gather(self, dim: Any, index: Operand) -> Tensor:
        """Elements of x at ``index`` along ``dim``, the other places as in ``index``."""
    def gcd(self, other: Operand) -> Tensor:
        """The greatest common divisor of integers, element by element; of 0 and 0 it is 0."""
    def gcd_(self, *args: Any, **kwargs: Any) -> Tensor:
        """``gcd``, written into the tensor."""
    def ge(self, other: Operand) -> Tensor:
        """x >= y, elementwise."""
    def ge_(self, other: Operand) -> Tensor:
        """x >= y, elementwise. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another shape, or of a ..."""
    def ger(self, vec2: Operand) -> Tensor:
        """All products of elements of two vectors."""
    def greater(self, other: Operand) -> Tensor:
        """x > y, elementwise."""
    def greater_(self, other: Operand) -> Tensor:
        """x > y, elementwise. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another shape, or of a ..."""
    def greater_equal(self, other: Operand) -> Tensor:
        """x >= y, elementwise."""
    def greater_equal_(self, other: Operand) -> Tensor:
        """x >= y, elementwise. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another shape, or of a ..."""
    def gt(self, other: Operand) -> Tensor:
        """x > y, elementwise."""
    def gt_(self, other: Operand) -> Tensor:
        """x > y, elementwise. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another shape, or of a ..."""
    def half(self, memory_format: Any = ...) -> Tensor:
        """The tensor as float16, in the same shape, and the same memory order where ``memory_format`` says nothing else: itself where it is so already. ..."""
    def hardshrink(self, lambd: _float = ...) -> Tensor:
        """x where its absolute value is above ``lambd``, else 0."""
    def heaviside(self, values: Operand) -> Tensor:
        """0 below 0, 1 above, y at 0; of NaN, NaN for NumPy's values and 0 for tensors."""
    def heaviside_(self, values: Operand) -> Tensor:
        """0 below 0, 1 above, y at 0; of NaN, NaN for NumPy's values and 0 for tensors. In place: the result is written into the tensor, which is returned. ..."""
    def histc(self, bins: _int = ..., min: _int = ..., max: _int = ...) -> Tensor:
        """How many elements are in each of ``bins`` equal intervals from ``min`` to ``max`` (of all elements, where both are equal)."""
    def hsplit(self, indices_or_sections: Any) -> tuple[Tensor, ...]:
        """``tensor_split`` along dim 1 (of vectors, dim 0), in equal parts where a number says how many."""
    def hypot(self, other: Operand) -> Tensor:
        """sqrt(x*x + y*y) without overflow or underflow; derivative 0 at (0, 0)."""
    def hypot_(self, other: Operand) -> Tensor:
        """sqrt(x*x + y*y) without overflow or underflow; derivative 0 at (0, 0). In place: the result is written into the tensor, which is returned. Shape ..."""
    @property
    def imag(self) -> Tensor:
        """The imaginary part of a complex tensor."""
    def index_add(self, dim: Any, index: Operand, source: Operand, *, alpha: _float = ...) -> Tensor:
        """x with slices of source added along ``dim``, at the places of ``index``."""
    def index_add_(self, dim: Any, index: Operand, source: Operand, *, alpha: _float = ...) -> Tensor:
        """x with slices of source added along ``dim``, at the places of ``index``. In place: the result is written into the tensor, which is returned. Shape ..."""
    def index_copy(self, dim: Any, index: Any, source: Any) -> Tensor:
        """``input`` with the slices of ``source`` at the places of ``index`` along ``dim``."""
    def index_copy_(self, dim: Any, index: Any, source: Any) -> Tensor:
        """``index_copy``, written into the tensor."""
    def index_fill(self, dim: Any, index: Any, value: Operand) -> Tensor:
        """``input`` with ``value`` in the slices at the places of ``index`` along ``dim``."""
    def index_fill_(self, dim: Any, index: Any, value: Operand) -> Tensor:
        """``index_fill``, written into the tensor."""
    def index_put(self, indices: Any, values: Any, accumulate: _bool = ...) -> Tensor:
        """``input`` with ``values`` at the places that ``indices`` (a tensor for each of the first dims) name; ``accumulate``: added, as often as a place is ..."""
    def index_put_(self, *args: Any, **kwargs: Any) -> Tensor:
        """``index_put``, written into the tensor."""
    def index_select(self, dim: Any, index: Operand) -> Tensor:
        """Slices of x along ``dim``, at the places of ``index``."""
    def inner(self, other: Operand) -> Tensor:
        """The sum of products over the last dim of both; of two vectors, their inner product."""
    def int(self, memory_format: Any = ...) -> Tensor:
        """The tensor as int32, in the same shape, and the same memory order where ``memory_format`` says nothing else: itself where it is so already. Floats ..."""
    def is_nonzero(self) -> _bool:
        """Whether a tensor of one element holds another number than 0; of more or fewer elements that is an error."""
    def is_same_size(self, other: Operand) -> _bool:
        """Whether two tensors have the same shape."""
    def isclose(self, other: Operand, rtol: _float = ..., atol: _float = ..., equal_nan: _bool = ...) -> Tensor:
        """Whether |x - y| <= atol + rtol * |y|."""
    def isfinite(self) -> Tensor:
        """Whether x is neither NaN nor an infinity."""
    def isinf(self) -> Tensor:
        """Whether x is an infinity."""
    def isnan(self) -> Tensor:
        """Whether x is NaN."""
    def isneginf(self) -> Tensor:
        """Whether x is -inf."""
    def isposinf(self) -> Tensor:
        """Whether x is inf."""
    def kron(self, other: Operand) -> Tensor:
        """Kronecker product."""
    def kthvalue(self, k: Any, dim: Any = ..., keepdim: _bool = ...) -> Any:
        """The ``k``-th smallest element along ``dim`` (from 1), and where it stands: (values, indices)."""
    def lcm(self, other: Operand) -> Tensor:
        """The least common multiple of integers, element by element; 0 where one of them is."""
    def lcm_(self, *args: Any, **kwargs: Any) -> Tensor:
        """``lcm``, written into the tensor."""
    def ldexp(self, other: Operand) -> Tensor:
        """``input * 2 ** other``."""
    def ldexp_(self, *args: Any, **kwargs: Any) -> Tensor:
        """``ldexp``, written into the tensor."""
    def le(self, other: Operand) -> Tensor:
        """x <= y, elementwise."""
    def le_(self, other: Operand) -> Tensor:
        """x <= y, elementwise. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another shape, or of a ..."""
    def lerp(self, end: Operand, weight: Operand) -> Tensor:
        """x + weight * (y - x)."""
    def lerp_(self, end: Operand, weight: Operand) -> Tensor:
        """x + weight * (y - x). In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another shape, or of a ..."""
    def less(self, other: Operand) -> Tensor:
        """x < y, elementwise."""
    def less_(self, other: Operand) -> Tensor:
        """x < y, elementwise. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another shape, or of a ..."""
    def less_equal(self, other: Operand) -> Tensor:
        """x <= y, elementwise."""
    def less_equal_(self, other: Operand) -> Tensor:
        """x <= y, elementwise. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another shape, or of a ..."""
    def lgamma(self) -> Tensor:
        """Logarithm of |gamma(x)|; inf at 0 and whole numbers below."""
    def lgamma_(self) -> Tensor:
        """Logarithm of |gamma(x)|; inf at 0 and whole numbers below. In place: the result is written into the tensor, which is returned. Shape and dtype ..."""
    def log(self) -> Tensor:
        """Natural logarithm."""
    def log10(self) -> Tensor:
        """Logarithm to base 10."""
    def log10_(self) -> Tensor:
        """Logarithm to base 10. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another shape, or of a ..."""
    def log1p(self) -> Tensor:
        """log(1 + x), right for small x."""
    def log1p_(self) -> Tensor:
        """log(1 + x), right for small x. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another ..."""
    def log2(self) -> Tensor:
        """Logarithm to base 2."""
    def log2_(self) -> Tensor:
        """Logarithm to base 2. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another shape, or of a ..."""
    def log_(self) -> Tensor:
        """Natural logarithm. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another shape, or of a ..."""
    def log_softmax(self, dim: Any = ..., dtype: Any = ...) -> Tensor:
        """x - logsumexp(x) along ``dim``."""
    def logaddexp(self, other: Operand) -> Tensor:
        """log(e ** x + e ** y), right for all x and y."""
    def logaddexp2(self, other: Operand) -> Tensor:
        """log2(2 ** x + 2 ** y), right for all x and y."""
    def logical_and(self, other: Operand) -> Tensor:
        """Elementwise and of bools."""
    def logical_and_(self, other: Operand) -> Tensor:
        """Elementwise and of bools. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another shape, or ..."""
    def logical_not(self) -> Tensor:
        """Elementwise not of bools."""
    def logical_not_(self) -> Tensor:
        """Elementwise not of bools. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another shape, or ..."""
    def logical_or(self, other: Operand) -> Tensor:
        """Elementwise or of bools."""
    def logical_or_(self, other: Operand) -> Tensor:
        """Elementwise or of bools. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another shape, or ..."""
    def logical_xor(self, other: Operand) -> Tensor:
        """Elementwise xor of bools."""
    def logical_xor_(self, other: Operand) -> Tensor:
        """Elementwise xor of bools. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another shape, or ..."""
    def logit(self, eps: Any = ...) -> Tensor:
        """``log(x / (1 - x))``, of x limited to [eps, 1 - eps] where ``eps`` is given."""
    def logit_(self, eps: Any = ...) -> Tensor:
        """``logit``, written into the tensor."""
    def logsumexp(self, dim: Any = ..., keepdim: _bool = ...) -> Tensor:
        """log of the sum of exponentials; all -inf gives -inf with gradient 0."""
    def long(self, memory_format: Any = ...) -> Tensor:
        """The tensor as int64, in the same shape, and the same memory order where ``memory_format`` says nothing else: itself where it is so already. Floats ..."""
    def lt(self, other: Operand) -> Tensor:
        """x < y, elementwise."""
    def lt_(self, other: Operand) -> Tensor:
        """x < y, elementwise. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another shape, or of a ..."""
    @property
    def mT(self) -> Tensor:
        """The last two dims exchanged."""
    def masked_fill(self, mask: Operand, value: Operand) -> Tensor:
        """x with ``value`` where the mask holds."""
    def masked_fill_(self, mask: Operand, value: Operand) -> Tensor:
        """x with ``value`` where the mask holds. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of ..."""
    def masked_scatter(self, mask: Any, source: Any) -> Tensor:
        """``input`` with the elements of ``source``, in order, where ``mask`` holds. Raises ``AotgradRuntimeError`` for too few of them."""
    def masked_scatter_(self, *args: Any, **kwargs: Any) -> Tensor:
        """``masked_scatter``, written into the tensor."""
    def masked_select(self, mask: Any) -> Tensor:
        """The elements where ``mask`` holds, as a vector; the two broadcast."""
    def matmul(self, other: Operand) -> Tensor:
        """Matrix product with NumPy's rank rules."""
    def max(self, dim: Any = ..., keepdim: _bool = ...) -> Any:
        """The maximum of everything; with ``dim``, (values, indices), and the derivative goes to the index returned. With a second array: ``maximum`` of the ..."""
    def maximum(self, other: Operand) -> Tensor:
        """The larger of x and y, 0 above -0; NaN wins; ties share the derivative evenly."""
    def mean(self, dim: Any = ..., keepdim: _bool = ..., *, dtype: Any = ...) -> Tensor:
        """Arithmetic mean over ``dim``."""
    def median(self, dim: Any = ..., keepdim: _bool = ...) -> Any:
        """The middle element in order, the lower of two: of everything, or along ``dim`` with its place, (values, indices). NaN where there is one. The ..."""
    def min(self, dim: Any = ..., keepdim: _bool = ...) -> Any:
        """The minimum of everything; with ``dim``, (values, indices), and the derivative goes to the index returned. With a second array: ``minimum`` of the ..."""
    def minimum(self, other: Operand) -> Tensor:
        """The smaller of x and y, -0 below 0; NaN wins; ties share the derivative evenly."""
    def mm(self, other: Operand) -> Tensor:
        """Matrix times matrix."""
    def moveaxis(self, source: Any, destination: Any) -> Tensor:
        """Dims moved to other places."""
    def movedim(self, source: Any, destination: Any) -> Tensor:
        """Dims moved to other places."""
    def msort(self) -> Tensor:
        """Elements along the first dim in order."""
    def mul(self, other: Operand) -> Tensor:
        """x * y."""
    def mul_(self, other: Operand) -> Tensor:
        """x * y. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another shape, or of a kind that the ..."""
    def multinomial(self, num_samples: Any, replacement: _bool = ..., *, generator: Any = ...) -> Tensor:
        """Places drawn with the probabilities that a row's elements are in proportion to: ``num_samples`` of each row, int64."""
    def multiply(self, other: Operand) -> Tensor:
        """x * y."""
    def multiply_(self, other: Operand) -> Tensor:
        """x * y. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another shape, or of a kind that the ..."""
    def mv(self, other: Operand) -> Tensor:
        """Matrix times vector."""
    def nan_to_num(self, nan: _float = ..., posinf: Any = ..., neginf: Any = ...) -> Tensor:
        """NaN and infinities replaced by numbers."""
    def nan_to_num_(self, nan: _float = ..., posinf: Any = ..., neginf: Any = ...) -> Tensor:
        """NaN and infinities replaced by numbers. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of ..."""
    def nanmean(self, dim: Any = ..., keepdim: _bool = ..., *, dtype: Any = ...) -> Tensor:
        """The mean of what is no NaN, over ``dim``."""
    def nansum(self, dim: Any = ..., keepdim: _bool = ..., *, dtype: Any = ...) -> Tensor:
        """The sum of what is no NaN, over ``dim``."""
    def narrow(self, dim: Any, start: Any, length: Any) -> Tensor:
        """``length`` elements from ``start`` along ``dim``."""
    def ne(self, other: Operand) -> Tensor:
        """x != y, elementwise."""
    def ne_(self, other: Operand) -> Tensor:
        """x != y, elementwise. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another shape, or of a ..."""
    def neg(self) -> Tensor:
        """-x."""
    def neg_(self) -> Tensor:
        """-x. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another shape, or of a kind that the ..."""
    def negative(self) -> Tensor:
        """-x."""
    def negative_(self) -> Tensor:
        """-x. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another shape, or of a kind that the ..."""
    def new_empty(self, *size: Any, dtype: Any = ..., requires_grad: _bool = ..., device: Any = ..., pin_memory: _bool = ...) -> Tensor:
        """A fresh tensor of shape ``size`` (whole numbers, or one tuple of them), filled with 0, of this tensor's dtype where ``dtype`` does not say ..."""
    def new_full(self, size: Any, fill_value: Any, *, dtype: Any = ..., requires_grad: _bool = ..., device: Any = ..., pin_memory: _bool = ...) -> Tensor:
        """A fresh tensor of shape ``size``, filled with ``fill_value``, of this tensor's dtype where ``dtype`` does not say another; the rest as ``new_zeros``."""
    def new_ones(self, *size: Any, dtype: Any = ..., requires_grad: _bool = ..., device: Any = ..., pin_memory: _bool = ...) -> Tensor:
        """A fresh tensor of shape ``size`` (whole numbers, or one tuple of them), filled with 1, of this tensor's dtype where ``dtype`` does not say ..."""
    def new_tensor(self, data: Any, dtype: Any = ..., requires_grad: _bool = ..., *, device: Any = ..., pin_memory: _bool = ...) -> Tensor:
        """A fresh tensor with a copy of ``data`` (numbers, lists of them, an array), of this tensor's dtype where ``dtype`` does not say another."""
    def new_zeros(self, *size: Any, dtype: Any = ..., requires_grad: _bool = ..., device: Any = ..., pin_memory: _bool = ...) -> Tensor:
        """A fresh tensor of shape ``size`` (whole numbers, or one tuple of them), filled with 0, of this tensor's dtype where ``dtype`` does not say ..."""
    def nextafter(self, other: Operand) -> Tensor:
        """The next number after ``input`` towards ``other``, of their dtype. It has no derivative; in compiled functions it is an error."""
    def nextafter_(self, *args: Any, **kwargs: Any) -> Tensor:
        """``nextafter``, written into the tensor."""
    def nonzero(self, as_tuple: _bool = ...) -> Any:
        """Places of the elements that are not 0: one row each, or one tensor per dim."""
    def norm(self, p: str = ..., dim: Any = ..., keepdim: _bool = ..., dtype: Any = ...) -> Tensor:
        """(sum |x|**p) ** (1/p) over ``dim``; derivative 0 at its kink."""
    def normal_(self, mean: _float = ..., std: _float = ..., *, generator: Any = ...) -> Tensor:
        """Every element becomes normal with this mean and standard deviation. In place."""
    def not_equal(self, other: Operand) -> Tensor:
        """x != y, elementwise."""
    def not_equal_(self, other: Operand) -> Tensor:
        """x != y, elementwise. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another shape, or of a ..."""
    def outer(self, vec2: Operand) -> Tensor:
        """All products of elements of two vectors."""
    def permute(self, *dims: Any) -> Tensor:
        """x with its dims in another order (torch's permute)."""
    def polygamma(self, n: Any) -> Tensor:
        """``ag.polygamma(n, x)``: the n-th derivative of digamma."""
    def polygamma_(self, input: Operand) -> Tensor:
        """``polygamma``, written into the tensor."""
    def positive(self) -> Tensor:
        """The tensor itself; bools have no sign."""
    def pow(self, exponent: Operand) -> Tensor:
        """x ** y."""
    def pow_(self, exponent: Operand) -> Tensor:
        """x ** y. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another shape, or of a kind that the ..."""
    def prelu(self, weight: Any) -> Tensor:
        """``leaky_relu`` with the slopes in ``weight``: one number, or one per channel (dim 1). Tensors are floats of one dtype, other ones raise ..."""
    def prod(self, dim: Any = ..., keepdim: _bool = ..., *, dtype: Any = ...) -> Tensor:
        """Product over ``dim``."""
    def put(self, index: Any, source: Any, accumulate: _bool = ...) -> Tensor:
        """``input`` with ``source`` at the places ``index`` of its elements in order, whatever its shape; ``accumulate``: added."""
    def put_(self, *args: Any, **kwargs: Any) -> Tensor:
        """``put``, written into the tensor."""
    def rad2deg(self) -> Tensor:
        """Radians as degrees."""
    def rad2deg_(self) -> Tensor:
        """Radians as degrees. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another shape, or of a ..."""
    def random_(self, from_: _int = ..., to: Any = ..., *, generator: Any = ..., **named: Any) -> Tensor:
        """Every element becomes a whole number in [from, to), all equally likely; ``random_(to)`` begins at 0; without bounds as many as the dtype holds ..."""
    def ravel(self, start_dim: _int = ..., end_dim: _int = ...) -> Tensor:
        """Dims start_dim to end_dim as one."""
    @property
    def real(self) -> Tensor:
        """The real part."""
    def reciprocal(self) -> Tensor:
        """1 / x."""
    def reciprocal_(self) -> Tensor:
        """1 / x. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another shape, or of a kind that the ..."""
    def relu(self) -> Tensor:
        """x where positive, else 0; derivative 0 at 0; NaN stays."""
    def relu_(self) -> Tensor:
        """x where positive, else 0; derivative 0 at 0; NaN stays. In place: the result is written into the tensor, which is returned. Shape and dtype stay: ..."""
    def remainder(self, other: Operand) -> Tensor:
        """x - floor(x / y) * y: the sign is the divisor's, as in Python. Integers divided by 0 are an error in tensors, 0 in NumPy."""
    def remainder_(self, other: Operand) -> Tensor:
        """x - floor(x / y) * y: the sign is the divisor's, as in Python. Integers divided by 0 are an error in tensors, 0 in NumPy. In place: the result is ..."""
    def repeat(self, *dims: Any) -> Tensor:
        """x repeated along each dim, as often as its number says."""
    def repeat_interleave(self, repeats: Any, dim: Any = ...) -> Tensor:
        """Each element repeated along ``dim``."""
    def reshape(self, *shape: Any) -> Tensor:
        """x with another shape."""
    def reshape_as(self, other: Operand) -> Tensor:
        """The tensor in the shape of ``other``, as ``reshape(other.shape)``: a view where the strides allow it, else a copy; ``RuntimeError`` where sizes do ..."""
    def roll(self, shifts: Any, dims: Any = ...) -> Tensor:
        """Elements shifted along ``dims``, coming back at the other end."""
    def rot90(self, k: _int = ..., dims: Any = ...) -> Tensor:
        """Turned by ``k`` quarters of a turn in the plane of two dims."""
    def round(self, *, decimals: _int = ...) -> Tensor:
        """x rounded to the nearest integer, halves to even."""
    def round_(self, *, decimals: _int = ...) -> Tensor:
        """x rounded to the nearest integer, halves to even. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a ..."""
    def rsqrt(self) -> Tensor:
        """1 / sqrt(x)."""
    def rsqrt_(self) -> Tensor:
        """1 / sqrt(x). In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another shape, or of a kind ..."""
    def scatter(self, dim: Any, index: Operand, src: Operand) -> Tensor:
        """x with src written at ``index`` along ``dim``."""
    def scatter_(self, dim: Any, index: Operand, src: Operand) -> Tensor:
        """x with src written at ``index`` along ``dim``. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result ..."""
    def scatter_add(self, dim: Any, index: Operand, src: Operand) -> Tensor:
        """x with src added at ``index`` along ``dim``."""
    def scatter_add_(self, dim: Any, index: Operand, src: Operand) -> Tensor:
        """x with src added at ``index`` along ``dim``. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of ..."""
    def select(self, dim: Any, index: Any) -> Tensor:
        """The slice at ``index`` along ``dim``, without that dim."""
    def select_scatter(self, src: Operand, dim: Any, index: Any) -> Tensor:
        """``input`` with ``src`` in the place of ``input.select(dim, index)``."""
    def sgn(self) -> Tensor:
        """-1, 0 or 1; NaN stays."""
    def sgn_(self) -> Tensor:
        """-1, 0 or 1; NaN stays. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another shape, or of ..."""
    def short(self, memory_format: Any = ...) -> Tensor:
        """The tensor as int16, in the same shape, and the same memory order where ``memory_format`` says nothing else: itself where it is so already. Floats ..."""
    def sigmoid(self) -> Tensor:
        """1 / (1 + e ** -x)."""
    def sigmoid_(self) -> Tensor:
        """1 / (1 + e ** -x). In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another shape, or of a ..."""
    def sign(self) -> Tensor:
        """-1, 0 or 1; NaN stays."""
    def sign_(self) -> Tensor:
        """-1, 0 or 1; NaN stays. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another shape, or of ..."""
    def signbit(self) -> Tensor:
        """Whether x is negative, or -0."""
    def sin(self) -> Tensor:
        """Sine, for arguments of any size."""
    def sin_(self) -> Tensor:
        """Sine, for arguments of any size. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another ..."""
    def sinc(self) -> Tensor:
        """sin(pi x) / (pi x), 1 at 0."""
    def sinc_(self) -> Tensor:
        """sin(pi x) / (pi x), 1 at 0. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another shape, ..."""
    def sinh(self) -> Tensor:
        """Hyperbolic sine."""
    def sinh_(self) -> Tensor:
        """Hyperbolic sine. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another shape, or of a kind ..."""
    def slice_scatter(self, src: Operand, dim: Any = ..., start: Any = ..., end: Any = ..., step: _int = ...) -> Tensor:
        """``input`` with ``src`` in the place of its slice ``start:end:step`` along ``dim``."""
    def softmax(self, dim: Any = ..., dtype: Any = ...) -> Tensor:
        """exp(x) / sum(exp(x)) along ``dim``."""
    def softplus(self) -> Tensor:
        """log(1 + e ** x), right for all x."""
    def softplus_(self) -> Tensor:
        """log(1 + e ** x), right for all x. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another ..."""
    def sort(self, dim: Any = ..., descending: _bool = ..., *, stable: _bool = ...) -> Any:
        """Elements along ``dim`` in order, and where they stood: (values, indices). Equal ones stay in their order, NaN counts as the largest."""
    def split(self, split_size_or_sections: Any, dim: Any = ...) -> tuple[Tensor, ...]:
        """Pieces along ``dim``."""
    def split_with_sizes(self, split_sizes: Any, dim: Any = ...) -> tuple[Tensor, ...]:
        """Parts of the given sizes along ``dim``."""
    def sqrt(self) -> Tensor:
        """Square root; its derivative at 0 is inf when nothing masks it."""
    def sqrt_(self) -> Tensor:
        """Square root; its derivative at 0 is inf when nothing masks it. In place: the result is written into the tensor, which is returned. Shape and dtype ..."""
    def square(self) -> Tensor:
        """x * x."""
    def square_(self) -> Tensor:
        """x * x. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another shape, or of a kind that the ..."""
    def squeeze(self, dim: Any = ...) -> Tensor:
        """Dims of size 1 left out."""
    def squeeze_(self, dim: Any = ...) -> Tensor:
        """Dims of size 1 left out. In place: the tensor becomes this view of itself. Its numbers stay where they are, other views of it stay as they are, ..."""
    def std(self, dim: Any = ..., unbiased: Any = ..., keepdim: _bool = ..., *, correction: Any = ...) -> Tensor:
        """Square root of the variance; derivative 0 at its kink."""
    def sub(self, other: Operand, *, alpha: _float = ...) -> Tensor:
        """x - y."""
    def sub_(self, other: Operand, *, alpha: _float = ...) -> Tensor:
        """x - y. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another shape, or of a kind that the ..."""
    def subtract(self, other: Operand, *, alpha: _float = ...) -> Tensor:
        """x - y."""
    def subtract_(self, other: Operand, *, alpha: _float = ...) -> Tensor:
        """x - y. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another shape, or of a kind that the ..."""
    def sum(self, dim: Any = ..., keepdim: _bool = ..., *, dtype: Any = ...) -> Tensor:
        """Sum over ``dim`` (pairwise in blocks)."""
    def sum_to_size(self, *size: Any) -> Tensor:
        """x summed over the dims in which ``size`` is 1, and over those it has not: what broadcasting ``size`` to x has as its adjoint."""
    def swapaxes(self, dim0: Any, dim1: Any) -> Tensor:
        """Two dims exchanged (torch's transpose)."""
    def swapaxes_(self, dim0: Any, dim1: Any) -> Tensor:
        """Two dims exchanged (torch's transpose). In place: the tensor becomes this view of itself. Its numbers stay where they are, other views of it stay ..."""
    def swapdims(self, dim0: Any, dim1: Any) -> Tensor:
        """Two dims exchanged (torch's transpose)."""
    def swapdims_(self, dim0: Any, dim1: Any) -> Tensor:
        """Two dims exchanged (torch's transpose). In place: the tensor becomes this view of itself. Its numbers stay where they are, other views of it stay ..."""
    def t(self) -> Tensor:
        """A matrix with rows and columns exchanged; vectors stay."""
    def t_(self) -> Tensor:
        """A matrix with rows and columns exchanged; vectors stay. In place: the tensor becomes this view of itself. Its numbers stay where they are, other ..."""
    def take(self, index: Any) -> Tensor:
        """Elements of the flat ``input`` at the places of ``index``, in its shape."""
    def take_along_dim(self, indices: Operand, dim: Any = ...) -> Tensor:
        """``gather`` with broadcasting."""
    def tan(self) -> Tensor:
        """Tangent."""
    def tan_(self) -> Tensor:
        """Tangent. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another shape, or of a kind that ..."""
    def tanh(self) -> Tensor:
        """Hyperbolic tangent."""
    def tanh_(self) -> Tensor:
        """Hyperbolic tangent. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another shape, or of a ..."""
    def tensor_split(self, indices_or_sections: Any, dim: Any = ...) -> tuple[Tensor, ...]:
        """Parts along ``dim``: as many as a number says, sizes differing by at most one, or between the places in a list."""
    def tile(self, *dims: Any) -> Tensor:
        """x repeated along each dim, as often as its number says."""
    def to(self, *args: Any, dtype: Any = ..., device: Any = ..., non_blocking: _bool = ..., copy: _bool = ..., memory_format: Any = ...) -> Tensor:
        """``to(dtype)``, ``to(other)``, ``to("cpu")``: converted where that changes something, else the tensor itself."""
    def topk(self, k: Any, dim: Any = ..., largest: _bool = ..., sorted: _bool = ...) -> Any:
        """The ``k`` largest (or smallest) elements along ``dim`` in order, and where they stand: (values, indices)."""
    def trace(self) -> Tensor:
        """The sum of the diagonal."""
    def transpose(self, dim0: Any, dim1: Any) -> Tensor:
        """Two dims exchanged (torch's transpose)."""
    def transpose_(self, dim0: Any, dim1: Any) -> Tensor:
        """Two dims exchanged (torch's transpose). In place: the tensor becomes this view of itself. Its numbers stay where they are, other views of it stay ..."""
    def tril(self, diagonal: _int = ...) -> Tensor:
        """The lower triangle; the rest is 0."""
    def tril_(self, diagonal: _int = ...) -> Tensor:
        """The lower triangle; the rest is 0. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another ..."""
    def triu(self, diagonal: _int = ...) -> Tensor:
        """The upper triangle; the rest is 0."""
    def triu_(self, diagonal: _int = ...) -> Tensor:
        """The upper triangle; the rest is 0. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another ..."""
    def true_divide(self, other: Operand, *, rounding_mode: Any = ...) -> Tensor:
        """x / y (true division of floats); ``rounding_mode``: 'trunc' or 'floor'."""
    def true_divide_(self, other: Operand, *, rounding_mode: Any = ...) -> Tensor:
        """x / y (true division of floats); ``rounding_mode``: 'trunc' or 'floor'. In place: the result is written into the tensor, which is returned. Shape ..."""
    def trunc(self) -> Tensor:
        """x rounded towards zero."""
    def trunc_(self) -> Tensor:
        """x rounded towards zero. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another shape, or of ..."""
    def type(self, dtype: Any = ...) -> Any:
        """The tensor in another dtype; without one, the name of its kind in torch's old spelling."""
    def type_as(self, other: Operand) -> Tensor:
        """The tensor in the dtype of ``other``: itself where it has that dtype already."""
    def unbind(self, dim: Any = ...) -> tuple[Tensor, ...]:
        """Slices along ``dim``, which goes."""
    def unflatten(self, dim: Any, sizes: Any) -> Tensor:
        """A dim as several, of sizes that multiply up to its size (one may be -1)."""
    def unfold(self, dimension: Any, size: Any, step: Any) -> Tensor:
        """Windows of ``size`` elements along a dim, ``step`` apart, as a last dim: a copy."""
    def uniform_(self, from_: _float = ..., to: _float = ..., *, generator: Any = ..., **named: Any) -> Tensor:
        """Every element becomes uniform in [from, to). In place."""
    def unique(self, sorted: _bool = ..., return_inverse: _bool = ..., return_counts: _bool = ..., dim: Any = ...) -> Any:
        """The different elements in order (with ``dim``: the different slices); then, where asked for, which of them each element is, and how many there are ..."""
    def unsqueeze(self, dim: Any) -> Tensor:
        """A new dim of size 1."""
    def unsqueeze_(self, dim: Any) -> Tensor:
        """A new dim of size 1. In place: the tensor becomes this view of itself. Its numbers stay where they are, other views of it stay as they are, and ..."""
    def var(self, dim: Any = ..., unbiased: Any = ..., keepdim: _bool = ..., *, correction: Any = ...) -> Tensor:
        """Variance over ``dim`` with ``n - correction`` in the denominator."""
    def vdot(self, other: Operand) -> Tensor:
        """The inner product of two vectors, the first conjugated where it is complex."""
    def view(self, *shape: Any, dtype: Any = ...) -> Tensor:
        """The same memory with another shape; an error where the strides do not allow that (``reshape`` copies then). With a dtype: its bits read as numbers ..."""
    def view_as(self, other: Operand) -> Tensor:
        """The same memory in the shape of ``other``, as ``view(other.shape)``: ``RuntimeError`` where sizes or strides do not allow it."""
    def vsplit(self, indices_or_sections: Any) -> tuple[Tensor, ...]:
        """``tensor_split`` along dim 0, in equal parts where a number says how many."""
    def where(self, condition: Operand, other: Operand) -> Tensor:
        """This tensor where ``condition`` (bools) holds, else ``other``: an array or a number. The three broadcast; the dtype is the common one."""
    def xlogy(self, other: Operand) -> Tensor:
        """x * log(y), 0 where x is 0 and y is no NaN."""
    def xlogy_(self, other: Operand) -> Tensor:
        """x * log(y), 0 where x is 0 and y is no NaN. In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of ..."""
    def zero_(self) -> Tensor:
        """Every element becomes 0. In place."""
