"""``Module``: functions with parameters, buffers and parts, under torch's names."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from aotgrad_runtime import modes
from aotgrad_runtime.dtypes import as_dtype
from aotgrad_runtime.errors import AotgradAttributeError, AotgradError, AotgradNotImplementedError, AotgradRuntimeError, AotgradTypeError
from aotgrad_runtime.tape import Hooks, RemovableHandle
from aotgrad_runtime.tensor import Tensor

from ..frontend.methods import wanted_dtype
from .hooks import called
from .parameter import Buffer, Parameter

__all__ = ["Module"]

Hook = Callable[..., Any]
_TABLES = ("_parameters", "_buffers", "_modules")


class _KeyError(AotgradError, KeyError):
    """A name that cannot be one of a module's."""

    def __str__(self) -> str:
        return str(self.args[0])


class _Keys(NamedTuple):
    missing_keys: list[str]
    unexpected_keys: list[str]


class IncompatibleKeys(_Keys):
    """What ``load_state_dict`` did not find, and what it had no place for."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<All keys matched successfully>" if not self.missing_keys and not self.unexpected_keys else f"_{super().__repr__()}"

    __str__ = __repr__


class Module:
    """The base of all modules: write ``__init__`` (call ``super().__init__()`` first) and ``forward``. Parameters, buffers and modules that become attributes are found
    by ``parameters()``, ``state_dict()`` and their kin. A compiled function that uses a module reads and writes its tensors at every call.

    >>> import aotgrad as ag
    >>> class Scale(ag.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.by = ag.nn.Parameter(ag.tensor([2.0]))
    ...     def forward(self, x):
    ...         return x * self.by
    >>> ag.compile(Scale())(ag.tensor([1.0, 3.0]))
    tensor([2., 6.], grad_fn=<CompiledFunctionBackward>)
    """

    training: bool
    _parameters: dict[str, Any]
    _buffers: dict[str, Any]
    _modules: dict[str, Any]

    def __init__(self) -> None:
        put = super().__setattr__
        put("training", True)
        for name in _TABLES:
            put(name, {})
        put("_transient", set())  # buffers that are no part of the state
        for name in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"):
            put(name, Hooks())

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module computes: written by every subclass."""
        raise AotgradNotImplementedError(f'Module [{type(self).__name__}] is missing the required "forward" function')

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._forward_hooks or self._forward_pre_hooks or self._backward_hooks or self._backward_pre_hooks:
            return called(self, args, kwargs)
        return self.forward(*args, **kwargs)

    # Attributes ---------------------------------------------------------------------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        for table in _TABLES:
            found = self.__dict__.get(table)
            if found is not None and name in found:
                return found[name]
        raise AotgradAttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        if "_parameters" not in self.__dict__:
            if isinstance(value, (Module, Parameter)):
                kind = "module" if isinstance(value, Module) else "parameters"
                raise AotgradAttributeError(f"cannot assign {kind} before Module.__init__() call; call super().__init__() first")
            super().__setattr__(name, value)
        elif isinstance(value, Parameter):
            self._forget(name, "_parameters")
            self.register_parameter(name, value)
        elif isinstance(value, Module):
            self._forget(name, "_modules")
            self._modules[name] = value
        elif isinstance(value, Buffer):
            self._forget(name, "_buffers")
            self.register_buffer(name, value, value.__dict__.get("persistent", True))
        else:
            self._set_plain(name, value)

    def _set_plain(self, name: str, value: Any) -> None:
        for table, what, kinds in (("_parameters", "parameter", "nn.Parameter"), ("_modules", "child module", "nn.Module"), ("_buffers", "buffer", "Tensor")):
            if name in self.__dict__[table]:
                if value is not None and not (table == "_buffers" and isinstance(value, Tensor)):
                    raise AotgradTypeError(f"cannot assign '{type(value).__name__}' object to {what} '{name}' ({kinds} or None required)")
                self.__dict__[table][name] = value
                return
        super().__setattr__(name, value)

    def _forget(self, name: str, but: str = "") -> None:
        """``but``: the table where what comes next keeps the place of what was there."""
        for table in (self.__dict__, *(self.__dict__[t] for t in _TABLES if t != but)):
            table.pop(name, None)
        self._transient.discard(name)

    def __delattr__(self, name: str) -> None:
        if any(name in self.__dict__[t] for t in _TABLES):
            self._forget(name)
        else:
            super().__delattr__(name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *(n for t in _TABLES for n in self.__dict__[t])})

    def _check_name(self, name: Any, what: str, table: str) -> None:
        if "_parameters" not in self.__dict__:
            raise AotgradAttributeError(f"cannot assign {what} before Module.__init__() call; call super().__init__() first")
        if not isinstance(name, str):
            raise AotgradTypeError(f"{what} name should be a string. Got {type(name).__name__}")
        if "." in name or name == "":
            raise _KeyError(f'{what} name can\'t {"contain" if name else "be empty string"}{" " + chr(34) + "." + chr(34) if name else " " + chr(34) * 2}')
        if name not in self.__dict__[table] and hasattr(self, name):
            raise _KeyError(f"attribute '{name}' already exists")

    def register_parameter(self, name: str, param: Any) -> None:
        """Adds a parameter, or None as a place for one."""
        self._check_name(name, "parameter", "_parameters")
        if param is not None and not isinstance(param, Parameter):
            raise AotgradTypeError(f"cannot assign '{type(param).__name__}' object to parameter '{name}' (nn.Parameter or None required)")
        if isinstance(param, Tensor) and param._node is not None:
            raise AotgradRuntimeError(f"Cannot assign non-leaf Tensor to parameter '{name}'. Model parameters must be created explicitly.")
        self._parameters[name] = param

    def register_buffer(self, name: str, tensor: Any, persistent: bool = True) -> None:
        """Adds a tensor that is part of the state (of ``state_dict`` if ``persistent``) and not learned."""
        self._check_name(name, "buffer", "_buffers")
        if tensor is not None and not isinstance(tensor, Tensor):
            raise AotgradTypeError(f"cannot assign '{type(tensor).__name__}' object to buffer '{name}' (Tensor or None required)")
        self._buffers[name] = tensor
        (self._transient.discard if persistent else self._transient.add)(name)

    def add_module(self, name: str, module: Any) -> None:
        """Adds a part."""
        self._check_name(name, "module", "_modules")
        if module is not None and not isinstance(module, Module):
            raise AotgradTypeError(f"{type(module).__name__} is not a Module subclass")
        self._modules[name] = module

    register_module = add_module

    def _ag_parts(self) -> list[str]:
        """What a compiled function that uses the module depends on: names of attributes."""
        own = [n for n, v in self.__dict__.items() if type(v) in (bool, int, float, str, tuple)] if type(self).__module__.startswith("aotgrad.") else ["training"]
        return [*own, *(n for t in _TABLES for n in self.__dict__[t])]

    def _ag_form(self) -> Any:
        """The same besides attributes: its own identity, the names of its parts, its hooks."""
        at = self.__dict__
        hooks = tuple([id(h) for n in ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks") for h in at[n].values()])
        return id(self), *[tuple(at[t]) for t in _TABLES], hooks, type(self).forward, at.get("forward")

    # Walks --------------------------------------------------------------------------------------------------------------------------------------

    def named_modules(self, memo: set[Any] | None = None, prefix: str = "", remove_duplicate: bool = True) -> Iterator[tuple[str, Any]]:
        """All modules from this one down, each once, with their names."""
        seen = set() if memo is None else memo
        if self in seen:
            return
        if remove_duplicate:
            seen.add(self)
        yield prefix, self
        for name, module in self._modules.items():
            if module is not None:
                yield from module.named_modules(seen, f"{prefix}.{name}" if prefix else name, remove_duplicate)

    def modules(self) -> Iterator[Any]:
        """All modules from this one down, each once."""
        return (m for _, m in self.named_modules())

    def named_children(self) -> Iterator[tuple[str, Any]]:
        """The parts right below, with their names."""
        seen = set()
        for name, module in self._modules.items():
            if module is not None and module not in seen:
                seen.add(module)
                yield name, module

    def children(self) -> Iterator[Any]:
        """The parts right below."""
        return (m for _, m in self.named_children())

    def _named(self, table: str, prefix: str, recurse: bool, remove_duplicate: bool) -> Iterator[tuple[str, Any]]:
        seen = set()
        for at, module in self.named_modules(prefix=prefix, remove_duplicate=remove_duplicate) if recurse else [(prefix, self)]:
            for name, x in module.__dict__[table].items():
                if x is None or x in seen:
                    continue
                if remove_duplicate:
                    seen.add(x)
                yield f"{at}.{name}" if at else name, x

    def named_parameters(self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True) -> Iterator[tuple[str, Any]]:
        """Parameters from this module down, each once, with their names."""
        return self._named("_parameters", prefix, recurse, remove_duplicate)

    def parameters(self, recurse: bool = True) -> Iterator[Any]:
        """Parameters from this module down, each once."""
        return (p for _, p in self.named_parameters(recurse=recurse))

    def named_buffers(self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True) -> Iterator[tuple[str, Any]]:
        """Buffers from this module down, each once, with their names."""
        return self._named("_buffers", prefix, recurse, remove_duplicate)

    def buffers(self, recurse: bool = True) -> Iterator[Any]:
        """Buffers from this module down, each once."""
        return (b for _, b in self.named_buffers(recurse=recurse))

    def get_submodule(self, target: str) -> Any:
        """The module with this dotted name."""
        at: Any = self
        for name in filter(None, target.split(".")):
            if not hasattr(at, name):
                raise AotgradAttributeError(f"{type(at).__name__} has no attribute `{name}`")
            at = getattr(at, name)
            if not isinstance(at, Module):
                raise AotgradAttributeError(f"`{name}` is not an nn.Module")
        return at

    def _get(self, target: str, table: str, what: str) -> Any:
        path, _, name = target.rpartition(".")
        found = self.get_submodule(path).__dict__[table].get(name)
        if found is None:
            raise AotgradAttributeError(f"`{target}` is not {what}")
        return found

    def get_parameter(self, target: str) -> Any:
        """The parameter with this dotted name."""
        return self._get(target, "_parameters", "an nn.Parameter")

    def get_buffer(self, target: str) -> Any:
        """The buffer with this dotted name."""
        return self._get(target, "_buffers", "a buffer")

    # All at once --------------------------------------------------------------------------------------------------------------------------------

    def train(self, mode: bool = True) -> Any:
        """Sets training mode (or evaluation mode) for this module and its parts."""
        for module in self.modules():
            module.training = bool(mode)
        return self

    def eval(self) -> Any:
        """Sets evaluation mode."""
        return self.train(False)

    def apply(self, fn: Callable[[Any], Any]) -> Any:
        """Calls ``fn`` with every part, then with this module."""
        for module in self.children():
            module.apply(fn)
        fn(self)
        return self

    def requires_grad_(self, requires_grad: bool = True) -> Any:
        """Sets ``requires_grad`` of all parameters."""
        for p in self.parameters():
            p.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears the gradients of all parameters: None, or zeros in their memory."""
        for p in self.parameters():
            clear_grad(p, set_to_none)

    @modes.intact
    def to(self, *args: Any, **kwargs: Any) -> Any:
        """Converts floating-point parameters and buffers in place: ``to(dtype)``, ``to(other)``, ``to(memory_format=)``; ``to("cpu")`` changes nothing."""
        dtype = wanted_dtype(args, kwargs.pop("dtype", None), kwargs.pop("device", None))
        dtype = None if dtype is None else as_dtype(dtype)
        if dtype is not None and dtype.kind not in "fc":
            raise AotgradTypeError(f"Module.to: parameters are floating-point or complex numbers, and cannot become {dtype.name}")
        with modes.no_grad():
            for x in [*self.parameters(), *self.buffers()]:
                converted = x.to(dtype=dtype if x._dtype.kind in "fc" else None, **kwargs) if kwargs.get("memory_format") is None or x.ndim == 4 else x.to(dtype=dtype)
                x.data = converted
                if x.grad is not None:
                    x.grad.data = x.grad.to(dtype=dtype)
        return self

    def float(self) -> Any:
        """Converts to float32."""
        return self.to(Tensor(0).float().dtype)

    def double(self) -> Any:
        """Converts to float64."""
        return self.to(Tensor(0).double().dtype)

    def half(self) -> Any:
        """Converts to float16."""
        return self.to(Tensor(0).half().dtype)

    def bfloat16(self) -> Any:
        """Converts to bfloat16."""
        return self.to(Tensor(0).bfloat16().dtype)

    @modes.intact
    def type(self, dst_type: Any) -> Any:
        """Converts all parameters and buffers, integers too, to a dtype."""
        dtype = as_dtype(dst_type)
        with modes.no_grad():
            for x in [*self.parameters(), *self.buffers()]:
                x.data = x.to(dtype)
                if x.grad is not None:
                    x.grad.data = x.grad.to(dtype)
        return self

    def cpu(self) -> Any:
        """The module itself, which is on the CPU."""
        return self

    # State --------------------------------------------------------------------------------------------------------------------------------------

    def _own_state(self) -> Iterator[tuple[str, Any]]:
        yield from ((n, p) for n, p in self._parameters.items() if p is not None)
        yield from ((n, b) for n, b in self._buffers.items() if b is not None and n not in self._transient)

    def state_dict(self, *, destination: Any = None, prefix: str = "", keep_vars: bool = False) -> Any:
        """Parameters and persistent buffers by dotted name; they share the module's memory."""
        out: dict[str, Any] = OrderedDict() if destination is None else destination
        for name, x in self._own_state():
            out[prefix + name] = x if keep_vars else x.detach()
        for name, module in self._modules.items():
            if module is not None:
                module.state_dict(destination=out, prefix=f"{prefix}{name}.", keep_vars=keep_vars)
        return out

    @modes.intact
    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> IncompatibleKeys:
        """Copies values by name into parameters and buffers (``assign``: takes the tensors themselves). ``strict``: names that do not match are an error."""
        if not isinstance(state_dict, Mapping):
            raise AotgradTypeError(f"Expected state_dict to be dict-like, got {type(state_dict)}.")
        own = {f"{at}.{name}" if at else name: (module, name, x) for at, module in self.named_modules(remove_duplicate=False) for name, x in module._own_state()}
        missing, unexpected = [n for n in own if n not in state_dict], [n for n in state_dict if n not in own]
        wrong = [f"size mismatch for {n}: copying a param with shape {list(state_dict[n].shape)} from checkpoint, the shape in current model is {list(x.shape)}."
                 for n, (_, _, x) in own.items() if n in state_dict and tuple(state_dict[n].shape) != tuple(x.shape)]
        if strict:
            wrong = [*([f"Missing key(s) in state_dict: {_quoted(missing)}. "] if missing else []),
                     *([f"Unexpected key(s) in state_dict: {_quoted(unexpected)}. "] if unexpected else []), *wrong]
        if wrong:
            raise AotgradRuntimeError(f"Error(s) in loading state_dict for {type(self).__name__}:\n\t" + "\n\t".join(wrong))
        with modes.no_grad():
            for n, (module, name, x) in own.items():
                if n in state_dict:
                    module._load(name, x, state_dict[n], assign)
        return IncompatibleKeys(missing, unexpected)

    def _load(self, name: str, x: Any, value: Any, assign: bool) -> None:
        if not assign:
            x.copy_(value)
        elif name in self._parameters:
            self._parameters[name] = value if isinstance(value, Parameter) else Parameter(value, x.requires_grad)
        else:
            self._buffers[name] = value

    # Hooks --------------------------------------------------------------------------------------------------------------------------------------

    def register_forward_hook(self, hook: Hook, *, prepend: bool = False, with_kwargs: bool = False) -> RemovableHandle:
        """Calls ``hook(module, args, output)`` after ``forward`` (``with_kwargs``: ``hook(module, args, kwargs, output)``); what it returns replaces the output."""
        return _register(self.__dict__["_forward_hooks"], (hook, with_kwargs), prepend)

    def register_forward_pre_hook(self, hook: Hook, *, prepend: bool = False, with_kwargs: bool = False) -> RemovableHandle:
        """Calls ``hook(module, args)`` before ``forward``; what it returns replaces the arguments."""
        return _register(self.__dict__["_forward_pre_hooks"], (hook, with_kwargs), prepend)

    def register_full_backward_hook(self, hook: Hook, prepend: bool = False) -> RemovableHandle:
        """Calls ``hook(module, grad_input, grad_output)`` when the gradients of the module's inputs are there; what it returns replaces ``grad_input``."""
        return _register(self.__dict__["_backward_hooks"], hook, prepend)

    def register_full_backward_pre_hook(self, hook: Hook, prepend: bool = False) -> RemovableHandle:
        """Calls ``hook(module, grad_output)`` before the backward pass of the module; what it returns replaces ``grad_output``."""
        return _register(self.__dict__["_backward_pre_hooks"], hook, prepend)

    # Text ---------------------------------------------------------------------------------------------------------------------------------------

    def extra_repr(self) -> str:
        """What stands between the brackets of the printed form."""
        return ""

    def _get_name(self) -> str:
        return type(self).__name__

    def __repr__(self) -> str:
        extra = self.extra_repr()
        lines = extra.split("\n") if extra else []
        parts = [f"({name}): {_indented(text)}" for name, text in self._parts()]
        all_lines = lines + parts
        if not parts and len(lines) <= 1:
            return f"{self._get_name()}({''.join(lines)})"
        return f"{self._get_name()}(\n  " + "\n  ".join(all_lines) + "\n)"

    def _parts(self) -> Iterable[tuple[str, str]]:
        """Names and texts of the modules in this one, as they are printed."""
        return [(name, repr(module)) for name, module in self._modules.items()]


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f'"{n}"' for n in names)


def _indented(text: str) -> str:
    first, *rest = text.split("\n")
    return "\n".join([first, *(f"  {line}" for line in rest)])


def _register(hooks: Hooks, hook: Any, prepend: bool) -> RemovableHandle:
    given = hook[0] if isinstance(hook, tuple) else hook
    if not callable(given):
        raise AotgradTypeError(f"hook must be callable, got {type(given).__name__}")
    handle = RemovableHandle(hooks)
    before = dict(hooks) if prepend else {}
    if prepend:
        hooks.clear()
    hooks[handle.id] = hook
    hooks.update(before)
    return handle


def clear_grad(p: Any, set_to_none: bool) -> None:
    """The gradient of ``p`` becomes None, or zeros in its memory."""
    if set_to_none:
        p.grad = None
    elif (g := p.grad) is not None:
        if g.requires_grad:
            p.grad = g = g.detach()
        modes.no_grad(g.zero_)()
