"""Check types and shapes of arguments and results of selfsight's functions while tests run.

jaxtyping's own hook binds the signature of every function at every call, also of those without
arrays, and checks the arguments twice. That took a third of the time of the tests. Here beartype
checks each call once, within a scope of shapes only where an annotation has a shape, and most
tensors are compared with their shapes in half of the time that jaxtyping takes.
"""

import functools
import inspect
import typing
from dataclasses import is_dataclass
from operator import eq

import jaxtyping
import torch
from beartype import beartype
from jaxtyping import AbstractArray, config, install_import_hook, jaxtyped
from jaxtyping._storage import get_shape_memo


def install() -> None:
    """Check all modules of selfsight that are imported from now on."""
    jaxtyping.jaxtyped = _check
    type(AbstractArray).__instancecheck__ = _compare_quickly(type(AbstractArray).__instancecheck__)
    install_import_hook("selfsight", "beartype.beartype")


def _check(*, typechecker):
    def decorate(target):
        if target.__module__ == "selfsight.settings":  # checks types itself, of half a million
            return target  # values in the tests of recipes
        if isinstance(target, type):
            if is_dataclass(target) and "__init__" in vars(target):
                target.__init__ = decorate(target.__init__)
            return target
        if not inspect.isfunction(target) or inspect.isgeneratorfunction(target):
            return jaxtyped(target, typechecker=typechecker)
        hints = target.__annotations__.values()
        arrays = [array for hint in hints for array in _arrays_in(hint)]
        # jaxtyping resolves names of classes before tests replace them, and shapes by arguments
        if any(isinstance(h, str) for h in hints) or any("{" in a.dim_str for a in arrays):
            return jaxtyped(target, typechecker=typechecker)
        return _check_once(target, has_shapes=bool(arrays))

    return decorate


def _check_once(function, *, has_shapes):
    if not function.__annotations__:
        return function
    checked = None  # written at the first call: no worker calls more than a part of the functions

    @functools.wraps(function)
    def call(*args, **kwargs):
        nonlocal checked
        if config.jaxtyping_disable or torch.compiler.is_compiling():
            return function(*args, **kwargs)
        if checked is None:
            checked = beartype(function)
        if not has_shapes:
            return checked(*args, **kwargs)
        with jaxtyped("context"):
            return checked(*args, **kwargs)

    return call


def _compare_quickly(compare):
    """Compare tensors with named sizes ("n c h w"); leave all else and every no to `compare`.

    jaxtyping copies all sizes that are known so far, and spells the dtype, at each comparison.
    """
    plans = {}

    def check(cls, x):
        plan = plans.get(cls)
        if plan is None:
            names = getattr(cls, "dim_str", "...").split()
            if not all(name.isidentifier() for name in names) or "_" in names:
                names = [...]
            plan = plans[cls] = names, len(names), set()
        names, ndim, seen = plan
        shape = getattr(x, "shape", ())
        if len(shape) == ndim and (type(x), getattr(x, "dtype", None)) in seen:
            known = get_shape_memo()[0]
            before = known.copy()
            if all(map(eq, map(known.setdefault, names, shape), shape)):
                return True
            known.clear()
            known.update(before)
        right = compare(cls, x)
        if right and names != [...]:
            seen.add((type(x), x.dtype))
        return right

    return check


def _arrays_in(hint):
    if isinstance(hint, type) and issubclass(hint, AbstractArray):
        yield hint
    for inner in typing.get_args(hint):
        yield from _arrays_in(inner)
