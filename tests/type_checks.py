"""Check types and shapes of arguments and results of selfsight's functions while tests run.

jaxtyping's own hook binds the signature of every function at every call, also of those without
arrays, and checks the arguments twice. That took a third of the time of the tests. Here beartype
checks each call once, within a scope of shapes only where an annotation has a shape, and most
tensors are compared with their shapes in half of the time that jaxtyping takes.
"""

import functools
import inspect
import math
import typing
from dataclasses import is_dataclass

import jaxtyping
import torch
from beartype import beartype
from jaxtyping import AbstractArray, config, install_import_hook, jaxtyped
from jaxtyping._storage import get_shape_memo, pop_shape_memo, push_shape_memo

NO_ARGUMENTS: dict[str, object] = {}  # jaxtyping copies it


def install() -> None:
    """Check all modules of selfsight that are imported from now on."""
    jaxtyping.jaxtyped = _check
    type(AbstractArray).__instancecheck__ = _compare_quickly(type(AbstractArray).__instancecheck__)
    install_import_hook("selfsight", "beartype.beartype")


def _check(*, typechecker):
    def decorate(target):
        # It checks types itself, of half a million values in the tests of recipes.
        if target.__module__ == "selfsight.check_settings":
            return target
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
        push_shape_memo(NO_ARGUMENTS)
        try:
            return checked(*args, **kwargs)
        finally:
            pop_shape_memo()

    return call


def _compare_quickly(compare):
    """Compare arrays with sizes ("n 3 *space"); leave all else and every no to `compare`.

    jaxtyping copies all sizes that are known so far, and spells the dtype, at each comparison.
    """
    plans = {}

    def check(cls, x):
        plan = plans.get(cls)
        if plan is None:
            plan = plans[cls] = _plan_comparison(cls)
        seen, least, most, sizes, names, star, start, after = plan
        if (x.__class__, getattr(x, "dtype", None)) in seen:
            shape = x.shape
            known, spaces, _, _ = get_shape_memo()
            before = known.copy()
            if least <= len(shape) <= most and _fits(shape, sizes, names, known):
                if star is None:
                    return True
                space = (False, tuple(shape[start : len(shape) - after]))
                if spaces.setdefault(star, space) == space:
                    return True
            known.clear()
            known.update(before)
        right = compare(cls, x)
        if right and sizes is not None:
            seen.add((x.__class__, x.dtype))
        return right

    return check


def _fits(shape, sizes, names, known):
    for place, size in sizes:
        if shape[place] != size:
            return False
    for place, name in names:  # noqa: SIM110, a generator takes longer
        if known.setdefault(name, shape[place]) != shape[place]:
            return False
    return True


def _plan_comparison(cls):
    """What a shape is compared with.

    Kinds and dtypes that fit, the least and the most dimensions, (place, size) and (place, name)
    of each, the name of what lies between, where it starts, and how many dimensions follow it.
    """
    words = getattr(cls, "dim_str", "?").split()
    stars = [i for i, word in enumerate(words) if word == "..." or word[:1] == "*"]
    start = stars[0] if stars else len(words)
    star = words.pop(start).removeprefix("*") if stars else None
    after = len(words) - start
    plain = star is None or star == "..." or star.isidentifier()
    if not plain or not all(word.isidentifier() or word.isdecimal() for word in words):
        return set(), 0, 0, None, None, None, 0, 0
    places = [*range(start), *range(-after, 0)]
    pairs = list(zip(places, words, strict=True))
    sizes = [(place, int(word)) for place, word in pairs if word.isdecimal()]
    names = [(place, word) for place, word in pairs if word.isidentifier() and word != "_"]
    most = len(words) if star is None else math.inf
    return set(), len(words), most, sizes, names, None if star == "..." else star, start, after


def _arrays_in(hint):
    if isinstance(hint, type) and issubclass(hint, AbstractArray):
        yield hint
    for inner in typing.get_args(hint):
        yield from _arrays_in(inner)
