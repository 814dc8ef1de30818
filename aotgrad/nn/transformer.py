"""``MultiheadAttention`` and encoder layers of transformers, with torch's arguments and names of weights."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

from aotgrad.frontend.factories import empty, zeros
from aotgrad.frontend.randoms import rand
from aotgrad_runtime import modes
from aotgrad_runtime.errors import AotgradArgumentError, AotgradDTypeError, AotgradNotImplementedError, AotgradRuntimeError

from . import functional
from ._shared import dtype_of, f
from .containers import ModuleList
from .layers import Dropout, Linear
from .module import Module
from .normalization import LayerNorm
from .parameter import Parameter

__all__ = ["MultiheadAttention", "TransformerEncoder", "TransformerEncoderLayer"]


@modes.intact
def _xavier(shape: tuple[int, int], dtype: Any, device: Any) -> Any:
    """Uniform in ±sqrt(6 / (rows + columns))."""
    bound = math.sqrt(6.0 / sum(shape))
    out = empty(*shape, dtype=dtype, device=device)
    with modes.no_grad():
        out.copy_((rand(*shape, dtype=dtype) * 2.0 - 1.0) * bound)
    return out


def _added(mask: Any, like: Any, name: str) -> Any:
    """A mask of torch's kind (bools that are True where nothing is seen, or numbers to add) as numbers to add."""
    if dtype_of(mask).kind == "b":
        return f.masked_fill(zeros(*mask.shape, dtype=dtype_of(like)), mask, float("-inf"))
    if dtype_of(mask).kind != "f":
        raise AotgradDTypeError(f"only bool and floating types of {name} are supported, not {dtype_of(mask).name}")
    return mask


class MultiheadAttention(Module):
    """Attention of ``num_heads`` heads, each of ``embed_dim // num_heads`` numbers: ``out, weights = attention(query, key, value)``, of (L, N, E), (N, L, E) with
    ``batch_first``, or (L, E). Of masks, bools are True where nothing is seen.

    >>> import aotgrad as ag
    >>> out, weights = ag.nn.MultiheadAttention(4, 2, batch_first=True)(*[ag.ones(5, 3, 4)] * 3)
    >>> out.shape, weights.shape
    (aotgrad.Size([5, 3, 4]), aotgrad.Size([5, 3, 3]))
    """

    def __init__(self, embed_dim: int, num_heads: int, dropout: float = 0.0, bias: bool = True, add_bias_kv: bool = False, add_zero_attn: bool = False,
                 kdim: int | None = None, vdim: int | None = None, batch_first: bool = False, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        if embed_dim <= 0 or num_heads <= 0:
            raise AotgradArgumentError(f"embed_dim and num_heads must be greater than 0, got embed_dim={embed_dim} and num_heads={num_heads} instead")
        if embed_dim % num_heads:
            raise AotgradArgumentError(f"embed_dim must be divisible by num_heads, got {embed_dim} and {num_heads}")
        if add_bias_kv or add_zero_attn:
            raise AotgradNotImplementedError("MultiheadAttention: add_bias_kv and add_zero_attn are not there yet")
        self.embed_dim, self.num_heads, self.dropout, self.batch_first, self.head_dim = embed_dim, num_heads, dropout, batch_first, embed_dim // num_heads
        self.kdim, self.vdim = embed_dim if kdim is None else kdim, embed_dim if vdim is None else vdim
        self._qkv_same_embed_dim = self.kdim == self.vdim == embed_dim
        names = ("q_proj_weight", "k_proj_weight", "v_proj_weight")
        if self._qkv_same_embed_dim:
            self.in_proj_weight = Parameter(_xavier((3 * embed_dim, embed_dim), dtype, device))
        for name, columns in zip(names, (embed_dim, self.kdim, self.vdim)):
            self.register_parameter(name, None if self._qkv_same_embed_dim else Parameter(_xavier((embed_dim, columns), dtype, device)))
        if not self._qkv_same_embed_dim:
            self.register_parameter("in_proj_weight", None)
        self.register_parameter("in_proj_bias", Parameter(zeros(3 * embed_dim, dtype=dtype, device=device)) if bias else None)
        self.out_proj = Linear(embed_dim, embed_dim, bias, device, dtype)
        if bias:
            self.out_proj.bias.detach().zero_()

    def _projected(self, query: Any, key: Any, value: Any) -> list[Any]:
        biases = [None] * 3 if self.in_proj_bias is None else f.chunk(self.in_proj_bias, 3)
        if self._qkv_same_embed_dim:
            if query is key is value:
                return list(f.chunk(functional.linear(query, self.in_proj_weight, self.in_proj_bias), 3, -1))
            weights = f.chunk(self.in_proj_weight, 3)
        else:
            weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        return [functional.linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases)]

    def _mask(self, query: Any, key: Any, key_padding_mask: Any, attn_mask: Any) -> Any:
        """Both masks as one to add, (N or 1, heads or 1, L or 1, S)."""
        n, length, size = query.shape[0], query.shape[1], key.shape[1]
        mask = None
        if attn_mask is not None:
            fits = ((length, size), (n * self.num_heads, length, size))
            if tuple(attn_mask.shape) not in fits:
                raise AotgradRuntimeError(f"The shape of the attn_mask is {tuple(attn_mask.shape)}, but should be {fits[0]} or {fits[1]}.")
            mask = _added(attn_mask, query, "attn_mask")
            mask = f.reshape(mask, (n, self.num_heads, length, size) if len(attn_mask.shape) == 3 else (1, 1, length, size))
        if key_padding_mask is not None:
            if tuple(key_padding_mask.shape) != (n, size):
                raise AotgradArgumentError(f"expecting key_padding_mask shape of {(n, size)}, but got {tuple(key_padding_mask.shape)}")
            padding = f.reshape(_added(key_padding_mask, query, "key_padding_mask"), (n, 1, 1, size))
            mask = padding if mask is None else f.add(mask, padding)
        return mask

    def _heads(self, x: Any) -> Any:
        return f.transpose(f.reshape(x, (x.shape[0], x.shape[1], self.num_heads, self.head_dim)), 1, 2)

    def _batched(self, query: Any, key: Any, value: Any, key_padding_mask: Any, need_weights: bool, attn_mask: Any, average: bool, is_causal: bool) -> tuple[Any, Any]:
        mask = self._mask(query, key, key_padding_mask, attn_mask)
        q, k, v = (self._heads(x) for x in self._projected(query, key, value))
        drop, weights = self.dropout if self.training else 0.0, None
        if need_weights:
            scores = f.matmul(f.mul(q, 1.0 / math.sqrt(self.head_dim)), f.transpose(k, -1, -2))
            weights = f.softmax(scores if mask is None else f.add(scores, mask), -1)
            weights = functional.dropout(weights, drop, True) if drop else weights
            seen = f.matmul(weights, v)
            weights = f.mean(weights, 1) if average else weights
        else:
            causal = is_causal and key_padding_mask is None
            seen = functional.scaled_dot_product_attention(q, k, v, None if causal else mask, drop, causal)
        out = f.reshape(f.transpose(seen, 1, 2), (query.shape[0], query.shape[1], self.embed_dim))
        return self.out_proj(out), weights

    def forward(self, query: Any, key: Any, value: Any, key_padding_mask: Any = None, need_weights: bool = True, attn_mask: Any = None,
                average_attn_weights: bool = True, is_causal: bool = False) -> tuple[Any, Any]:
        """What is attended to, and with what weights (the mean over heads, unless not ``average_attn_weights``; None unless ``need_weights``). ``is_causal`` says of the
        ``attn_mask`` that it is causal."""
        rank = len(query.shape)
        if rank not in (2, 3) or {len(x.shape) for x in (key, value)} != {rank}:
            raise AotgradArgumentError(f"query should be unbatched 2D or batched 3D tensor, and key and value as it is, but received {rank}-D query tensor")
        if is_causal and attn_mask is None:
            raise AotgradRuntimeError("Need attn_mask if specifying the is_causal hint.")
        if query.shape[-1] != self.embed_dim:
            raise AotgradArgumentError(f"was expecting embedding dimension of {self.embed_dim}, but got {query.shape[-1]}")
        same = query is key is value
        turn: Callable[[Any], Any] = (lambda x: f.unsqueeze(x, 0)) if rank == 2 else (lambda x: x) if self.batch_first else (lambda x: f.transpose(x, 0, 1))
        q = turn(query)
        k, v = (q, q) if same else (turn(key), turn(value))
        padding = key_padding_mask if key_padding_mask is None or rank == 3 else f.unsqueeze(key_padding_mask, 0)
        out, weights = self._batched(q, k, v, padding, need_weights, attn_mask, average_attn_weights, is_causal)
        if rank == 2:
            return f.squeeze(out, 0), None if weights is None else f.squeeze(weights, 0)
        return out if self.batch_first else f.transpose(out, 0, 1), weights


_ACTIVATIONS: dict[str, Callable[..., Any]] = {"relu": functional.relu, "gelu": functional.gelu}


class TransformerEncoderLayer(Module):
    """Attention of a sequence to itself, then two linear maps with an activation between; each with dropout, added to its input and normalised (before it with
    ``norm_first``). ``activation``: "relu", "gelu", or a function."""

    def __init__(self, d_model: int, nhead: int, dim_feedforward: int = 2048, dropout: float = 0.1, activation: Any = "relu", layer_norm_eps: float = 1e-5,
                 batch_first: bool = False, norm_first: bool = False, bias: bool = True, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        place = {"device": device, "dtype": dtype}
        self.self_attn = MultiheadAttention(d_model, nhead, dropout, bias, batch_first=batch_first, **place)
        self.linear1, self.dropout = Linear(d_model, dim_feedforward, bias, **place), Dropout(dropout)
        self.linear2, self.norm_first = Linear(dim_feedforward, d_model, bias, **place), norm_first
        self.norm1, self.norm2 = (LayerNorm(d_model, layer_norm_eps, bias=bias, **place) for _ in range(2))
        self.dropout1, self.dropout2 = Dropout(dropout), Dropout(dropout)
        if isinstance(activation, str) and activation not in _ACTIVATIONS:
            raise AotgradRuntimeError(f"activation should be relu/gelu, not {activation}")
        self.activation: Any = _ACTIVATIONS[activation] if isinstance(activation, str) else activation

    def _attend(self, x: Any, mask: Any, padding: Any, is_causal: bool) -> Any:
        return self.dropout1(self.self_attn(x, x, x, padding, False, mask, is_causal=is_causal)[0])

    def _feed(self, x: Any) -> Any:
        return self.dropout2(self.linear2(self.dropout(self.activation(self.linear1(x)))))

    def forward(self, src: Any, src_mask: Any = None, src_key_padding_mask: Any = None, is_causal: bool = False) -> Any:
        """The layer of ``src``, with masks as ``MultiheadAttention`` has them."""
        x = src
        if self.norm_first:
            x = x + self._attend(self.norm1(x), src_mask, src_key_padding_mask, is_causal)
            return x + self._feed(self.norm2(x))
        x = self.norm1(x + self._attend(x, src_mask, src_key_padding_mask, is_causal))
        return self.norm2(x + self._feed(x))


class TransformerEncoder(Module):
    """``num_layers`` copies of ``encoder_layer``, one after the other, then ``norm``."""

    def __init__(self, encoder_layer: Any, num_layers: int, norm: Any = None, enable_nested_tensor: bool = True, mask_check: bool = True) -> None:
        super().__init__()
        self.layers = ModuleList([copy.deepcopy(encoder_layer) for _ in range(num_layers)])
        self.num_layers, self.norm = num_layers, norm

    def forward(self, src: Any, mask: Any = None, src_key_padding_mask: Any = None, is_causal: bool | None = None) -> Any:
        """All layers of ``src``."""
        for layer in self.layers:
            src = layer(src, mask, src_key_padding_mask, bool(is_causal))
        return src if self.norm is None else self.norm(src)
